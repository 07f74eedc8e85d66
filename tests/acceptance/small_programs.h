// The small programs of Alpa's tests (OSDI'22): basic ones, gradient accumulation, shardings given
// by hand, each with how it is parallelized.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/driver/parallelize.h"
#include "minka/ir/step.h"

namespace minka {

struct SmallProgram {
  std::string name;
  Step step;
  Shard how;
  CostModelChoice costs;
};

// Latency and bandwidth 1 on both axes.
CostModelChoice AlpaCosts();

// The program of the name; CHECKs that there is one.
SmallProgram SmallProgramNamed(const std::string& name);
std::vector<SmallProgram> SmallPrograms();

}  // namespace minka
