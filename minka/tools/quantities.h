// Quantities as flags spell them; messages name the flag.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace minka {

// "60s", "500ms", "2m", "1h", "1.5" (seconds).
absl::StatusOr<double> ParseSeconds(const std::string& flag, const std::string& text);

// "2GiB", "500MB", "1.5g" (binary), "4096".
absl::StatusOr<int64_t> ParseBytes(const std::string& flag, const std::string& text);

}  // namespace minka
