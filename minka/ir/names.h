// Unique HLO names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"

namespace minka {

// Characters that HLO names may not have replaced by '_'.
std::string SanitizedName(std::string_view name);

// "loop#1": result 1 of the operation `loop`, which has several. Of an operation with one result,
// and where there is no name: the name.
std::string ValueName(std::string_view name, size_t num_results, int32_t result);

// Hands out names that were not taken before: "add", then "add.1", "add.2".
class UniqueNames {
 public:
  // False: the name was taken already.
  bool Reserve(const std::string& name) { return taken_.insert(name).second; }
  std::string Take(const std::string& wanted);

 private:
  absl::flat_hash_set<std::string> taken_;
  absl::flat_hash_map<std::string, int> last_suffix_;  // by name without its numeric suffix
};

}  // namespace minka
