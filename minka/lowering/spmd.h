// Writes the program of one device: local shapes, explicit collectives with replica groups, no
// partitioner. What the plan prices is what runs, collective for collective.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/ir/module.h"
#include "minka/plan/plan.h"
#include "minka/program/signature.h"

namespace minka {

struct SpmdProgram {
  Module module;  // num_replicas = devices of the mesh; replica id = device number
  std::vector<Sharding> parameters;
  std::vector<Sharding> results;
  std::vector<std::string> notes;  // barriers that could not be put together again
};

// `module` is what was lowered.
MeshSignature SignatureOf(const Module& module, const SpmdProgram& program);

// Precondition: CheckPlan. `module` is the prepared module that the plan names.
absl::StatusOr<SpmdProgram> LowerSpmd(const Module& module, const StagePlan& stage);

}  // namespace minka
