// Pipelines of one step side by side.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "minka/plan/pipeline_plan.h"
#include "minka/sharding/mesh.h"

namespace minka {

// What of a plan is compared.
struct PipelineFigures {
  std::vector<int> num_layers;  // by stage
  std::vector<Mesh> meshes;     // by mesh number
  double step_time_us = 0;
  double bubble = 0;
  int64_t peak_memory_bytes = 0;
};

PipelineFigures FiguresOf(const PipelinePlan& plan);

// "x=2,y=2 each", "x=2 | x=4".
std::string MeshesText(const std::vector<Mesh>& meshes);

struct PipelineRow {
  bool chosen = false;
  std::string what;  // in which it differs
  std::optional<PipelineFigures> figures;
  std::string remark;  // why there are none, or why it was not taken
};

// Layers of the stages, meshes, step time, bubble and peak memory of each; '*' marks the chosen
// one.
std::string PipelineComparison(const std::vector<PipelineRow>& rows);

}  // namespace minka
