// What the plan of a pipeline says about its steps: times of tasks and transfers, memory, bytes
// sent.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "minka/cluster/cluster.h"
#include "minka/driver/pipeline.h"

namespace minka {

// Fills it in from the plans of the stages.
absl::Status PredictPipeline(const Cluster& cluster, PlannedPipeline& planned);

// What every mesh needs per device, from what each of its programs holds besides its arguments and
// results (by mesh and program).
void SetMemory(const PipelineProgram& program,
               std::span<const std::vector<int64_t>> temporary_bytes, PipelinePlan& plan);

}  // namespace minka
