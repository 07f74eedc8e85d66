// Files of tests: in a folder of this process alone, so that two checkouts can run the same test at
// a time.
#pragma once

#include <string>

namespace minka {

// The path of `name` in the folder, which is below testing::TempDir(), is made by the first call
// and removed when the process ends. Calls from several threads are safe.
std::string TemporaryPath(const std::string& name);

}  // namespace minka
