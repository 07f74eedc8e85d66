// The steps whose predictions are compared with what they take, and how each is planned.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/ir/step.h"
#include "minka/planner/intra_op/intra_op.h"

namespace minka {

struct PredictionProgram {
  std::string
      step;  // "flax lstm" of make_modules.py, or a named model and its type: "gpt-tiny f32"
  Method method = Method::kShard;
  std::string mesh;  // as --mesh takes it

  std::string name() const;  // "flax lstm: shard on 2x4"
};

// Every step with the plans of several methods and meshes, so that plans of one step can be
// compared.
std::vector<PredictionProgram> AllPrograms();

// `module_folder`: where make_modules.py wrote.
absl::StatusOr<Step> LoadProgram(const PredictionProgram& program,
                                 const std::string& module_folder);

}  // namespace minka
