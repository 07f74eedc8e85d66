// A file in the contest's format as large as the largest that the solver has to read.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace minka {

struct LargeFileSize {
  int32_t num_nodes = 60'000;
  int32_t num_edges = 200'000;
  int32_t mean_choices = 10;  // of a node; so edges have about 100 cells
};

// Random costs of up to twelve digits, three in ten forbidden; a node's edges lead to the 50 nodes
// behind it. About 300 MB. Overwrites `path`.
absl::Status WriteLargeFile(const LargeFileSize& size, const std::string& path);

}  // namespace minka
