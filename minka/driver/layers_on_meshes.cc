#include "minka/driver/layers_on_meshes.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "minka/base/status.h"
#include "minka/driver/mesh_shapes.h"
#include "minka/driver/predict_pipeline.h"
#include "minka/schedule/generate.h"

namespace minka {
namespace {

// Which numbers of devices a stage may have. InvalidArgument: the cluster has no such part.
absl::StatusOr<std::vector<int>> SubmeshSizes(const PlanRequest& request, int num_stages) {
  const Cluster& cluster = request.cluster;
  const int num_devices = cluster.num_devices();
  if (const std::vector<int>& given = request.pipeline->submesh_choices; !given.empty()) {
    for (const int size : given) {
      if (size > num_devices)
        return InvalidArgument("a submesh of {} devices may be chosen, but there are {}", size,
                               num_devices);
      RETURN_IF_ERROR(SubmeshShapes(cluster, size).status());
    }
    return given;
  }
  std::set<int> sizes;
  for (int size = 1; size < num_devices; size *= 2) sizes.insert(size);
  for (int parts = 2; parts <= num_devices; ++parts) {
    if (num_devices % parts == 0) sizes.insert(num_devices / parts);
  }
  // FindStages looks at no others; but what layers take on one device bounds what they take
  // anywhere (LeastStepUs).
  std::erase_if(sizes, [block = DevicesPerBlock(num_devices)](int size) {
    return size > 1 && size % block != 0;
  });
  if (num_stages == 1) sizes = {num_devices};
  std::vector<int> out;
  for (const int size : sizes) {
    if (SubmeshShapes(cluster, size).ok()) out.push_back(size);
  }
  return out;
}

constexpr int kEndless = 1'000'000;
// Of each number of devices so many shapes are tried saving memory, and those as fast nearly.
constexpr size_t kLeastSavingShapes = 2;
// Meshes of more devices are searched in shapes of two axes at most.
constexpr int kMostDevicesOfAllShapes = 8;

// As if every device did its even part of what the layers take on one.
absl::StatusOr<std::vector<StageWay>> EvenWays(PipelinePlanner& planner,
                                               const std::set<int>& sizes) {
  ASSIGN_OR_RETURN(const std::vector<double> load, planner.LoadOfLayers());
  std::vector<StageWay> out;
  for (const int size : sizes) {
    StageWay way{.num_devices = size};
    for (const double of_layer : load) way.kept.push_back({.micro_batch_us = of_layer / size});
    out.push_back(std::move(way));
  }
  return out;
}

// The meshes that a stage may have.
absl::StatusOr<std::vector<Mesh>> Submeshes(const PlanRequest& request, int num_stages) {
  ASSIGN_OR_RETURN(const std::vector<int> sizes, SubmeshSizes(request, num_stages));
  std::vector<Mesh> meshes;
  for (const int size : sizes) {
    ASSIGN_OR_RETURN(const std::vector<Mesh> shapes, SubmeshShapes(request.cluster, size));
    std::ranges::copy_if(shapes, std::back_inserter(meshes), [size](const Mesh& mesh) {
      return size <= kMostDevicesOfAllShapes || NumAxesThatSplit(mesh) <= 2;
    });
  }
  return meshes;
}

absl::StatusOr<LayersOnMeshes> FindLayers(std::vector<Mesh> meshes, int num_devices,
                                          PipelinePlanner& planner, const PlanRequest& request,
                                          int num_stages) {
  LayersOnMeshes out{
      .meshes = std::move(meshes),
      .input = {.num_devices = num_devices,
                .devices_per_host = request.cluster.devices_per_host,
                .num_micro_batches = static_cast<int>(request.micro_batches.num_micro_batches),
                .num_stages = num_stages,
                .meshes_share_cores = MeshesShareCores(request.cluster)}};
  const std::vector<int>& given = request.pipeline->stage_of_layer;
  if (!given.empty() && static_cast<int>(given.size()) != planner.num_layers()) {
    return InvalidArgument("{} layers are given to stages; {} has {}", given.size(), planner.name(),
                           planner.num_layers());
  }
  for (int layer = 0; layer < static_cast<int>(given.size()); ++layer) {
    if (layer == 0 || given[layer] != given[layer - 1]) out.input.stage_begins.push_back(layer);
  }
  ASSIGN_OR_RETURN(out.schedule, planner.FirstSchedule());
  out.input.splits_backward = SplitsBackward(out.schedule);
  ASSIGN_OR_RETURN(out.input.held, planner.Held(std::min(planner.num_layers(), num_devices)));
  out.input.send_us = planner.SendUs();
  out.ways = planner.WaysOn(out.meshes, /*saving=*/{});
  RETURN_IF_ERROR(CheckNotCancelled(request));
  if (out.ways.ways.empty()) {
    std::set<int> sizes;
    for (const Mesh& mesh : out.meshes) sizes.insert(static_cast<int>(mesh.num_devices()));
    ASSIGN_OR_RETURN(out.ways.ways, EvenWays(planner, sizes));
  }
  out.free = FindStages(out.ways.ways, out.input);
  return out;
}

}  // namespace

std::vector<Mesh> FastestMeshes(const LayerWays& ways, const StageSearchInput& input) {
  std::map<int, std::vector<std::pair<double, Mesh>>> of_size;
  for (size_t i = 0; i < ways.meshes.size(); ++i) {
    double us = 0;
    for (const LayerCost& layer : ways.ways[i].kept)
      us += input.num_micro_batches * layer.micro_batch_us + layer.step_us;
    of_size[ways.ways[i].num_devices].emplace_back(us, ways.meshes[i].mesh);
  }
  std::vector<Mesh> fastest;
  for (auto& [size, meshes] : of_size) {
    std::ranges::stable_sort(meshes, {}, &std::pair<double, Mesh>::first);
    for (size_t rank = 0; rank < meshes.size(); ++rank) {
      if (rank < kLeastSavingShapes || meshes[rank].first <= kNearFastest * meshes.front().first)
        fastest.push_back(std::move(meshes[rank].second));
    }
  }
  return fastest;
}

absl::StatusOr<LayersOnMeshes> FindLayersOnSubmeshes(PipelinePlanner& planner,
                                                     const PlanRequest& request, int num_stages) {
  RETURN_IF_ERROR(planner.CheckStages(num_stages > 0 ? num_stages : 2));
  ASSIGN_OR_RETURN(std::vector<Mesh> meshes, Submeshes(request, num_stages));
  const int num_devices = request.cluster.num_devices();
  ASSIGN_OR_RETURN(LayersOnMeshes out,
                   FindLayers(std::move(meshes), num_devices, planner, request, num_stages));
  if (!out.free.empty()) return out;
  const std::vector<int>& choices = request.pipeline->submesh_choices;
  return InvalidArgument(
      "{} devices do not go {} on {} stages; name the submeshes", num_devices,
      choices.empty() ? "evenly" : fmt::format("in parts of {}", fmt::join(choices, ", ")),
      num_stages > 0 ? fmt::to_string(num_stages) : fmt::format("2 to {}", planner.num_layers()));
}

absl::StatusOr<LayersOnMeshes> FindLayersOn(const std::vector<std::vector<Mesh>>& shapes,
                                            PipelinePlanner& planner, const PlanRequest& request,
                                            int num_stages) {
  RETURN_IF_ERROR(planner.CheckStages(num_stages));
  std::vector<Mesh> meshes;
  int64_t num_devices = 0;
  for (const std::vector<Mesh>& of_mesh : shapes) {
    num_devices += of_mesh.front().num_devices();
    for (const Mesh& mesh : of_mesh) {
      if (std::ranges::find(meshes, mesh) == meshes.end()) meshes.push_back(mesh);
    }
  }
  return FindLayers(std::move(meshes), static_cast<int>(num_devices), planner, request, num_stages);
}

CountEstimate EstimateOf(const LayersOnMeshes& layers) {
  if (layers.free.empty()) return {};  // nothing is known
  // In so many micro-batches the busiest stage takes the whole step.
  StageSearchInput endless = layers.input;
  endless.num_micro_batches = kEndless;
  endless.held = {};
  endless.send_us = {};
  const double micro_batch_us =
      FindStages(layers.ways.ways, endless).front().step_time_us / kEndless;
  const FoundPipeline& fastest = layers.free.front();
  const int num_micro_batches = layers.input.num_micro_batches;
  const double work_us = micro_batch_us * num_micro_batches;
  const int most_held = layers.input.Held(static_cast<int>(fastest.stages.size())).in_flight;
  const bool may_hold_all = 2 * most_held > num_micro_batches;
  return {.step_time_us = fastest.step_time_us,
          .work_us = work_us,
          .waits_us = may_hold_all ? 0 : fastest.step_time_us - work_us};
}

std::optional<double> EstimateFitting(const LayersOnMeshes& layers, PipelinePlanner& planner,
                                      const PlanRequest& request) {
  if (layers.free.empty()) return 0;
  const FoundPipeline& fastest = layers.free.front();
  StageSearchInput search = layers.input;
  search.limit_bytes = request.search.memory_limit_bytes;
  if (!search.limit_bytes || fastest.peak_bytes() <= *search.limit_bytes)
    return fastest.step_time_us;
  std::vector<FoundPipeline> found = FindStages(layers.ways.ways, search);
  if (found.empty() || found.front().step_time_us > kNearFastest * fastest.step_time_us) {
    const LayerWays saving =
        planner.WaysOn(layers.meshes, FastestMeshes(layers.ways, layers.input));
    if (!saving.ways.empty()) found = FindStages(saving.ways, search);
  }
  if (found.empty()) return std::nullopt;
  return found.front().step_time_us;
}

}  // namespace minka
