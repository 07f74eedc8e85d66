#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace minka {

// Unpacks a gzip stream (all its members); other bytes are returned as they are.
absl::StatusOr<std::string> Gunzip(std::string bytes);

}  // namespace minka
