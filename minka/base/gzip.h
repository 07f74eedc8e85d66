#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace minka {

// Unpacks a gzip stream (all its members); other bytes are returned as they are.
absl::StatusOr<std::string> Gunzip(std::string bytes);

// A gzip stream without a time or a name: equal bytes give equal streams. At most 4 GiB.
std::string Gzip(std::string_view bytes);

}  // namespace minka
