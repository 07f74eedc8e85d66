// Those of the planning flags that are of pipelines alone.
#pragma once

#include <optional>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "minka/driver/pipeline_options.h"
#include "minka/tools/planning_flags.h"

namespace minka {

void AddPipelineFlags(CLI::App& command, PlanningFlags& flags, const char* group);

// Are there any, by whatever method?
bool AsksForPipeline(const PlanningFlags& flags);

// nullopt: another method is asked for. `meshes` are those of flags.meshes, `limits` hold for
// stages that do not say otherwise.
absl::StatusOr<std::optional<PipelineOptions>> PipelineOf(const PlanningFlags& flags,
                                                          const std::vector<Mesh>& meshes,
                                                          const SearchLimits& limits);

}  // namespace minka
