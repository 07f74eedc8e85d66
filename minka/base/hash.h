// Hashes that are equal on every machine and in every run (xxHash), for what is stored or compared
// between processes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace minka {

uint64_t StableHash(std::string_view bytes, uint64_t seed = 0);

// 16 lower-case hexadecimal digits.
std::string HashText(uint64_t hash);

}  // namespace minka
