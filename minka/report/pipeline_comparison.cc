#include "minka/report/pipeline_comparison.h"

#include <algorithm>
#include <map>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "minka/report/format.h"
#include "minka/report/table.h"

namespace minka {

PipelineFigures FiguresOf(const PipelinePlan& plan) {
  PipelineFigures figures{.step_time_us = plan.step_time_us,
                          .bubble = plan.bubble,
                          .peak_memory_bytes = plan.peak_memory_bytes};
  std::map<int, Mesh> meshes;
  for (const PipelineStagePlan& stage : plan.stages) {
    figures.num_layers.push_back(static_cast<int>(stage.plan.stage.layers.size()));
    meshes.try_emplace(stage.mesh_number, stage.plan.stage.mesh);
  }
  for (const auto& [number, mesh] : meshes) figures.meshes.push_back(mesh);
  return figures;
}

std::string MeshesText(const std::vector<Mesh>& meshes) {
  const bool are_equal =
      std::ranges::all_of(meshes, [&](const Mesh& mesh) { return mesh == meshes.front(); });
  if (meshes.size() > 1 && are_equal) return meshes.front().ToString() + " each";
  std::vector<std::string> names;
  for (const Mesh& mesh : meshes) names.push_back(mesh.ToString());
  return fmt::format("{}", fmt::join(names, " | "));
}

std::string PipelineComparison(const std::vector<PipelineRow>& rows) {
  Table table({{""},
               {"pipeline"},
               {"layers"},
               {"meshes"},
               {"step time", Align::kRight},
               {"bubble", Align::kRight},
               {"memory/device", Align::kRight},
               {"remark"}});
  for (const PipelineRow& row : rows) {
    const std::string mark = row.chosen ? "*" : "";
    if (!row.figures) {
      table.Add({mark, row.what, "-", "-", "-", "-", "-", row.remark});
      continue;
    }
    const PipelineFigures& figures = *row.figures;
    table.Add({mark, row.what, fmt::format("{}", fmt::join(figures.num_layers, ",")),
               MeshesText(figures.meshes), FormatTime(figures.step_time_us),
               FormatPercent(figures.bubble), FormatBytes(figures.peak_memory_bytes), row.remark});
  }
  return table.ToString();
}

}  // namespace minka
