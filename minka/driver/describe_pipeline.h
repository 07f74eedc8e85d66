// A planned pipeline as people read it, and as the files of `--dump-to`.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "minka/driver/pipeline.h"
#include "minka/runtime/pipeline/pipeline_executor.h"

namespace minka {

// See PipelineTable.
absl::StatusOr<std::string> DescribePipeline(const PlannedPipeline& planned);

// Stage by stage how parameters, optimizer state and inputs lie, with their labels, and the
// collectives of a step.
std::string DescribeStages(const PlannedPipeline& planned);

// Writes into the folder, which is made:
//
//   prepared.txt, plan.json
//   step_inputs.txt, step_outputs.txt  where everything lies: mesh, sharding, what a device holds
//   stage0.forward.hlo.txt             the local program, so for every program of every stage, and
//     .inputs.txt, .outputs.txt        what it reads and makes, and how that lies
//     .optimized.hlo.txt, .memory.json what the compiler made of it; not without `executor`
//   mesh0.instructions.txt             what the mesh does in a step
//   cross_mesh_transfers.txt           what is sent from mesh to mesh
absl::Status DumpPipeline(const PlannedPipeline& planned, Platform platform,
                          PipelineExecutor* executor, const std::string& folder);

}  // namespace minka
