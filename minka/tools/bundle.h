// A compressed archive of small files, for reports of what went wrong.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"

namespace minka {

// Writes a .tar.gz with these files: name -> contents. Times and owners are left out, so equal
// files give equal archives.
absl::Status WriteBundle(const std::string& path, const std::map<std::string, std::string>& files);

}  // namespace minka
