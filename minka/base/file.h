// Whole files in and out.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace minka {

// The bytes of a file, or of standard input for "-".
absl::StatusOr<std::string> ReadFile(const std::string& path);

// Writes beside the target and renames, so that a reader never sees half a file; "-" is standard
// output.
absl::Status WriteFile(const std::string& path, std::string_view contents);

// The same for contents in pieces, one after the other.
absl::Status WriteFile(const std::string& path, std::span<const std::string_view> pieces);

// Returns when a file's contents, or a folder's entries, are on the disk.
absl::Status SyncToDisk(const std::string& path);

}  // namespace minka
