// Writes the program of one device: local shapes, explicit collectives with replica groups, no
// partitioner. What the plan prices is what runs, collective for collective.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/base/platform.h"
#include "minka/ir/builder.h"
#include "minka/ir/module.h"
#include "minka/lowering/departures.h"
#include "minka/lowering/planned_stage.h"
#include "minka/plan/plan.h"
#include "minka/program/signature.h"

namespace minka {

struct SpmdProgram {
  Module module;  // num_replicas = devices of the mesh; replica id = device number
  std::vector<Sharding> parameters;
  std::vector<Sharding> results;
  std::vector<std::string> notes;  // barriers that could not be put together again
};

// `module` is what was lowered, with nothing kept.
MeshSignature SignatureOf(const Module& module, const SpmdProgram& program);

// Makes `target` the program's module, in the forms that the platform's compiler has fast code for,
// with notes.
absl::Status FinishLocal(ModuleBuilder target, Departures departures, SpmdProgram& program);

// Precondition: CheckPlan. `module` is the prepared module that the plan names, `platform` where
// the program will be compiled (departures.h).
//
// What is `kept` becomes a result behind those of the module: [..] in its version's sharding; of a
// value that exists during one micro-batch only, [m, ..], all of them one behind the other.
absl::StatusOr<SpmdProgram> LowerSpmd(const Module& module, const StagePlan& stage,
                                      Platform platform,
                                      const std::vector<ValueVersion>& kept = {});

}  // namespace minka
