#include "minka/base/hash.h"

#include <xxhash.h>

#include "fmt/format.h"

namespace minka {

uint64_t StableHash(std::string_view bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

std::string HashText(uint64_t hash) { return fmt::format("{:016x}", hash); }

}  // namespace minka
