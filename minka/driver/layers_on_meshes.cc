#include "minka/driver/layers_on_meshes.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <ranges>
#include <set>
#include <string>
#include <utility>

#include "minka/base/status.h"
#include "minka/driver/mesh_shapes.h"
#include "minka/driver/predict_pipeline.h"
#include "minka/driver/schedule_search.h"
#include "minka/report/format.h"
#include "minka/schedule/generate.h"

namespace minka {
namespace {

// By kind.
std::vector<HostsOfKind> HostsByKind(const PlanRequest& request) {
  std::vector<HostsOfKind> out;
  for (int kind = 0; kind < request.num_kinds(); ++kind) {
    const Cluster& hosts = request.HostsOf(kind);
    out.push_back({.num_devices = hosts.num_devices(), .devices_per_host = hosts.devices_per_host});
  }
  return out;
}

// Is a mesh of so many devices a part of the hosts?
bool IsPartOf(const Cluster& hosts, int size) {
  return size <= hosts.num_devices() && SubmeshShapes(hosts, size).ok();
}

// InvalidArgument where the sizes that are asked for are no part of any hosts.
absl::Status CheckSubmeshChoices(const PlanRequest& request) {
  for (const int size : request.pipeline->submesh_choices) {
    if (size > request.num_devices()) {
      return InvalidArgument("a submesh of {} devices may be chosen, but there are {}", size,
                             request.num_devices());
    }
    if (request.num_kinds() == 1) {
      RETURN_IF_ERROR(SubmeshShapes(request.cluster, size).status());
      continue;
    }
    bool is_part = false;
    for (int kind = 0; kind < request.num_kinds(); ++kind)
      is_part = is_part || IsPartOf(request.HostsOf(kind), size);
    if (is_part) continue;
    return InvalidArgument(
        "a submesh of {} devices may be chosen: hosts of no kind have such a part, some devices of "
        "one or whole ones",
        size);
  }
  return absl::OkStatus();
}

// Which numbers of devices a stage on the hosts may have.
std::vector<int> SubmeshSizes(const PlanRequest& request, const Cluster& hosts, int num_stages) {
  std::vector<int> out;
  for (const int size : request.pipeline->submesh_choices) {
    if (IsPartOf(hosts, size)) out.push_back(size);
  }
  if (!request.pipeline->submesh_choices.empty()) return out;
  const int num_devices = hosts.num_devices();
  std::set<int> sizes;
  if (request.num_kinds() > 1) sizes.insert(num_devices);
  for (int size = 1; size < num_devices; size *= 2) sizes.insert(size);
  for (int parts = 2; parts <= num_devices; ++parts) {
    if (num_devices % parts == 0) sizes.insert(num_devices / parts);
  }
  // FindStages looks at no others; but what layers take on one device bounds what they take
  // anywhere (LeastStepUs).
  std::erase_if(sizes, [block = DevicesPerBlock(HostsByKind(request))](int size) {
    return size > 1 && size % block != 0;
  });
  if (num_stages == 1) sizes = {num_devices};
  for (const int size : sizes) {
    if (IsPartOf(hosts, size)) out.push_back(size);
  }
  return out;
}

constexpr int kEndless = 1'000'000;
// Of what layers say that a step takes plans take so much at least, of steps of up to so many
// operations less: 50 plans of text, mixtures of experts and pictures on one mesh and as pipelines
// of 4 to 64 devices 0.96 to 1.09, bert-tiny (2,189 operations) on 8 and 16 devices 0.87.
constexpr double kOfEstimate = 0.95, kOfEstimateOfSmall = 0.8;
constexpr int kSmallStep = 3'000;
// Of each number of devices so many shapes are tried saving memory, and those as fast nearly. A
// shape has to be faster by kAsFast than each one of fewer axes; devices together may take
// kMostDeviceTime of what the best number of them takes for the work.
constexpr size_t kLeastSavingShapes = 2;
constexpr double kAsFast = 1.002, kMostDeviceTime = 1.5;
// Meshes of more devices are searched in shapes of two axes at most.
constexpr int kMostDevicesOfAllShapes = 8;

// As if every device did its even part of what the layers take on one.
absl::StatusOr<std::vector<StageWay>> EvenWays(PipelinePlanner& planner,
                                               const std::vector<MeshOfKind>& meshes) {
  std::set<Submesh> submeshes;
  for (const auto& [kind, mesh] : meshes)
    submeshes.insert({kind, static_cast<int>(mesh.num_devices())});
  std::vector<StageWay> out;
  for (const auto& [kind, size] : submeshes) {
    ASSIGN_OR_RETURN(const std::vector<double> load, planner.LoadOfLayers(kind));
    StageWay way{.kind = kind, .num_devices = size};
    for (const double of_layer : load) way.kept.push_back({.micro_batch_us = of_layer / size});
    out.push_back(std::move(way));
  }
  return out;
}

// As they are asked for.
absl::Status SetShares(PipelinePlanner& planner, const PlanRequest& request,
                       StageSearchInput& input) {
  const std::vector<double>& shares = request.pipeline->shares;
  if (shares.empty()) return absl::OkStatus();
  for (size_t kind = 0; kind < shares.size(); ++kind) input.hosts[kind].share = shares[kind];
  ASSIGN_OR_RETURN(input.work, planner.LoadOfLayers(/*kind=*/0));
  return absl::OkStatus();
}

// The meshes that a stage may have.
absl::StatusOr<std::vector<MeshOfKind>> Submeshes(const PlanRequest& request, int num_stages) {
  RETURN_IF_ERROR(CheckSubmeshChoices(request));
  std::vector<MeshOfKind> meshes;
  for (int kind = 0; kind < request.num_kinds(); ++kind) {
    const Cluster& hosts = request.HostsOf(kind);
    for (const int size : SubmeshSizes(request, hosts, num_stages)) {
      ASSIGN_OR_RETURN(const std::vector<Mesh> shapes, SubmeshShapes(hosts, size));
      for (const Mesh& mesh : shapes) {
        if (size <= kMostDevicesOfAllShapes || NumAxesThatSplit(mesh) <= 2)
          meshes.push_back({kind, mesh});
      }
    }
  }
  return meshes;
}

std::vector<ScheduleOfLayers> OtherSchedules(const LayersOnMeshes& layers, PipelinePlanner& planner,
                                             const PlanRequest& request) {
  std::vector<ScheduleOfLayers> out;
  if (request.pipeline->schedule != kChooseSchedule || layers.free.empty()) return out;
  const auto num_stages = static_cast<int>(layers.free.front().stages.size());
  const int most_stages = static_cast<int>(layers.input.held.size()) - 1;
  for (const std::string_view name : SchedulesBeside(layers.schedule, num_stages)) {
    absl::StatusOr<std::vector<MicroBatchesHeld>> held =
        planner.Held(most_stages, name, /*num_stages=*/2);
    if (!held.ok()) continue;
    ScheduleOfLayers& other = out.emplace_back(std::string(name), layers.input);
    other.input.held = *std::move(held);
    other.input.splits_backward = SplitsBackward(name);
    // Estimates know nothing of cores that meshes share.
    if (layers.input.meshes_share_cores) continue;
    std::vector<FoundPipeline> found = FindStages(layers.ways.ways, other.input);
    if (!found.empty()) other.free = std::move(found.front());
  }
  return out;
}

absl::StatusOr<LayersOnMeshes> FindLayers(std::vector<MeshOfKind> meshes,
                                          std::vector<HostsOfKind> hosts, PipelinePlanner& planner,
                                          const PlanRequest& request, int num_stages) {
  LayersOnMeshes out{
      .meshes = std::move(meshes),
      .input = {.hosts = std::move(hosts),
                .num_micro_batches = static_cast<int>(request.micro_batches.num_micro_batches),
                .num_stages = num_stages,
                .meshes_share_cores = MeshesShareCores(request)}};
  const std::vector<int>& given = request.pipeline->stage_of_layer;
  if (!given.empty() && static_cast<int>(given.size()) != planner.num_layers()) {
    return InvalidArgument("{} layers are given to stages; {} has {}", given.size(), planner.name(),
                           planner.num_layers());
  }
  for (int layer = 0; layer < static_cast<int>(given.size()); ++layer) {
    if (layer == 0 || given[layer] != given[layer - 1]) out.input.stage_begins.push_back(layer);
  }
  RETURN_IF_ERROR(SetShares(planner, request, out.input));
  ASSIGN_OR_RETURN(out.schedule, planner.FirstSchedule());
  out.input.splits_backward = SplitsBackward(out.schedule);
  ASSIGN_OR_RETURN(out.input.held,
                   planner.Held(std::min(planner.num_layers(), out.input.num_devices())));
  out.input.send_us = planner.SendUs();
  out.ways = planner.WaysOn(out.meshes, /*saving=*/{});
  RETURN_IF_ERROR(CheckNotCancelled(request));
  if (out.ways.ways.empty()) {
    ASSIGN_OR_RETURN(out.ways.ways, EvenWays(planner, out.meshes));
  }
  out.free = FindStages(out.ways.ways, out.input);
  out.other_schedules = OtherSchedules(out, planner, request);
  return out;
}

// Of the limits, what pipelines of the ways need at least, by tries a quarter apart.
double LeastPart(const std::vector<StageWay>& ways, const StageSearchInput& input,
                 const PlanRequest& request) {
  constexpr double kTry = 1.25, kMost = 64;
  double part = 1;
  while (part < kMost && FindStages(ways, WithLimits(input, request, kTry * part)).empty())
    part *= kTry;
  return part;
}

// The fastest that fits by any schedule; nullopt: none does.
std::optional<double> FittingUs(const LayersOnMeshes& layers, const std::vector<StageWay>& ways,
                                PipelinePlanner& planner, const PlanRequest& request) {
  std::optional<double> us;
  const auto find = [&](const std::string& schedule, const StageSearchInput& input) {
    const std::vector<FoundPipeline> found =
        FindUnderLimits(ways, schedule, WithLimits(input, request), planner);
    if (found.empty()) return;
    us = std::min(us.value_or(found.front().step_time_us), found.front().step_time_us);
  };
  find(layers.schedule, layers.input);
  for (const ScheduleOfLayers& other : layers.other_schedules) {
    if (other.free) find(other.name, other.input);
  }
  return us;
}

// The fastest of each schedule, whatever memory it needs.
struct FreeBySchedule {
  const FoundPipeline* pipeline = nullptr;
  const StageSearchInput* input = nullptr;

  double step_time_us() const { return pipeline->step_time_us; }
};

// Fastest first. Precondition: there is one by the first schedule.
std::vector<FreeBySchedule> FreeBySchedules(const LayersOnMeshes& layers) {
  std::vector<FreeBySchedule> out = {{&layers.free.front(), &layers.input}};
  for (const ScheduleOfLayers& other : layers.other_schedules) {
    if (other.free) out.push_back({&*other.free, &other.input});
  }
  std::ranges::stable_sort(out, {}, &FreeBySchedule::step_time_us);
  return out;
}

// Of their limits, what one that is nearly as fast as the fastest needs at least.
double PartOfFast(const std::vector<FreeBySchedule>& free, const std::vector<StageWay>& ways,
                  const PlanRequest& request) {
  double part = std::numeric_limits<double>::infinity();
  for (const FreeBySchedule& by : free) {
    if (by.step_time_us() > kNearFastest * free.front().step_time_us()) break;
    part = std::min(part, PartOfLimits(*by.pipeline, ways, WithLimits(*by.input, request)));
  }
  return part;
}

}  // namespace

std::vector<MeshOfKind> FastestMeshOfEach(const LayerWays& ways, const StageSearchInput& input) {
  std::vector<MeshOfKind> out;
  std::set<Submesh> seen;
  for (const MeshOfKind& on : FastestMeshes(ways, input)) {
    if (seen.insert({on.kind, static_cast<int>(on.mesh.num_devices())}).second) out.push_back(on);
  }
  return out;
}

std::vector<MeshOfKind> FastestMeshes(const LayerWays& ways, const StageSearchInput& input) {
  struct Timed {
    double us = 0;
    MeshOfKind on;
  };
  std::map<Submesh, std::vector<Timed>> of_submesh;
  // By kind: what all devices that work on it take for a step together, on the best number of them
  // that may hold each layer.
  std::map<int, double> least_device_us;
  for (size_t i = 0; i < ways.meshes.size(); ++i) {
    const StageWay& way = ways.ways[i];
    double us = 0;
    bool fits = true;
    for (const LayerCost& layer : way.kept) {
      us += input.num_micro_batches * layer.micro_batch_us + layer.step_us;
      fits = fits && input.FitsOn(way.kind, layer.owned_bytes);
    }
    of_submesh[way.submesh()].push_back({us, ways.meshes[i].on});
    if (!fits) continue;
    const auto [least, added] = least_device_us.try_emplace(way.kind, way.num_devices * us);
    if (!added) least->second = std::min(least->second, way.num_devices * us);
  }
  std::vector<MeshOfKind> fastest;
  for (auto& [submesh, shapes] : of_submesh) {
    std::ranges::stable_sort(shapes, {}, &Timed::us);
    const auto least = least_device_us.find(submesh.kind);
    const bool wastes_devices =
        least != least_device_us.end() &&
        submesh.num_devices * shapes.front().us > kMostDeviceTime * least->second;
    // A given number of stages may leave no other numbers of devices.
    if (wastes_devices && input.num_stages <= 0) continue;
    std::erase_if(shapes, [&, all = shapes](const Timed& shape) {
      return std::ranges::any_of(all, [&](const Timed& other) {
        return NumAxesThatSplit(other.on.mesh) < NumAxesThatSplit(shape.on.mesh) &&
               other.us <= kAsFast * shape.us;
      });
    });
    for (size_t rank = 0; rank < shapes.size(); ++rank) {
      if (rank < kLeastSavingShapes || shapes[rank].us <= kNearFastest * shapes.front().us)
        fastest.push_back(shapes[rank].on);
    }
  }
  return fastest;
}

absl::StatusOr<LayersOnMeshes> FindLayersOnSubmeshes(PipelinePlanner& planner,
                                                     const PlanRequest& request, int num_stages,
                                                     const IsTried& is_tried) {
  const int num_devices = request.num_devices();
  if (num_stages > 0 && num_stages < request.num_kinds()) {
    return InvalidArgument(
        "hosts of {} kinds take {} stages at least, each on one kind; {} asked for",
        request.num_kinds(), request.num_kinds(),
        num_stages == 1 ? "one is" : fmt::format("{} are", num_stages));
  }
  RETURN_IF_ERROR(
      planner.CheckStages(num_stages > 0 ? num_stages : std::max(2, request.num_kinds())));
  ASSIGN_OR_RETURN(std::vector<MeshOfKind> meshes, Submeshes(request, num_stages));
  if (is_tried) std::erase_if(meshes, std::not_fn(is_tried));
  ASSIGN_OR_RETURN(LayersOnMeshes out, FindLayers(std::move(meshes), HostsByKind(request), planner,
                                                  request, num_stages));
  if (!out.free.empty()) return out;
  const std::vector<int>& choices = request.pipeline->submesh_choices;
  return InvalidArgument(
      "{} devices do not go {} on {} stages; name the submeshes", num_devices,
      choices.empty() ? "evenly" : fmt::format("in parts of {}", fmt::join(choices, ", ")),
      num_stages > 0 ? fmt::to_string(num_stages) : fmt::format("2 to {}", planner.num_layers()));
}

absl::StatusOr<LayersOnMeshes> FindLayersOn(const StageMeshes& given, PipelinePlanner& planner,
                                            const PlanRequest& request, int num_stages) {
  RETURN_IF_ERROR(planner.CheckStages(num_stages));
  std::vector<MeshOfKind> meshes;
  std::vector<HostsOfKind> hosts = HostsByKind(request);
  for (HostsOfKind& of_kind : hosts) of_kind.num_devices = 0;
  for (size_t number = 0; number < given.shapes.size(); ++number) {
    const int kind = given.kinds[number];
    hosts[kind].num_devices += static_cast<int>(given.shapes[number].front().num_devices());
    for (const Mesh& mesh : given.shapes[number]) {
      const MeshOfKind on = {kind, mesh};
      if (std::ranges::find(meshes, on) == meshes.end()) meshes.push_back(on);
    }
  }
  return FindLayers(std::move(meshes), std::move(hosts), planner, request, num_stages);
}

absl::StatusOr<LayersOnMeshes> FindLayersOnMesh(std::vector<Mesh> shapes, PipelinePlanner& planner,
                                                const PlanRequest& request) {
  ASSIGN_OR_RETURN(LayersOnMeshes found,
                   FindLayersOn({.shapes = {std::move(shapes)}, .kinds = {0}}, planner, request,
                                /*num_stages=*/1));
  if (found.free.empty() || found.ways.meshes.empty())
    return absl::NotFoundError("layers have no plans");
  return found;
}

std::vector<FoundPipeline> FindUnderLimits(const std::vector<StageWay>& ways,
                                           const std::string& schedule, StageSearchInput search,
                                           PipelinePlanner& planner) {
  // So many numbers of stages are searched apart.
  constexpr int kMostStageCounts = 8;
  std::vector<FoundPipeline> found = FindStages(ways, search);
  if (!search.has_limit() || !search.splits_backward) return found;
  const int most_stages = static_cast<int>(search.held.size()) - 1;
  std::vector<FoundPipeline> out;
  for (const FoundPipeline& at_best : found | std::views::take(kMostStageCounts)) {
    if (!out.empty() && out.front().step_time_us <= at_best.step_time_us) break;
    search.num_stages = static_cast<int>(at_best.stages.size());
    absl::StatusOr<std::vector<MicroBatchesHeld>> held =
        planner.Held(most_stages, schedule, search.num_stages);
    if (!held.ok()) continue;
    search.held = *std::move(held);
    std::ranges::move(FindStages(ways, search), std::back_inserter(out));
    std::ranges::stable_sort(out, {}, &FoundPipeline::step_time_us);
  }
  return out;
}

StageSearchInput WithLimits(StageSearchInput input, const PlanRequest& request, double part) {
  for (int kind = 0; kind < request.num_kinds(); ++kind) {
    const std::optional<int64_t> limit = request.MemoryLimitOn(kind);
    if (limit)
      input.hosts[kind].limit_bytes = static_cast<int64_t>(part * static_cast<double>(*limit));
  }
  return input;
}

double MostEstimatedUs(const PlanRequest& request, const Step& simplified) {
  const bool is_small = simplified.module.entry_computation().num_instructions() <= kSmallStep;
  return request.faster_than_us.value_or(std::numeric_limits<double>::infinity()) /
         (is_small ? kOfEstimateOfSmall : kOfEstimate);
}

absl::Status EstimatedToTake(double us) {
  return MakeError(absl::StatusCode::kAborted,
                   fmt::format("not planned: estimated to take {}", FormatTime(us)));
}

CountEstimate EstimateOf(const LayersOnMeshes& layers, const PlanRequest& request) {
  if (layers.free.empty()) return {};  // nothing is known
  // In so many micro-batches the busiest stage takes the whole step.
  StageSearchInput endless = layers.input;
  endless.num_micro_batches = kEndless;
  endless.held = {};
  endless.send_us = {};
  const double micro_batch_us =
      FindStages(layers.ways.ways, endless).front().step_time_us / kEndless;
  const std::vector<FreeBySchedule> free = FreeBySchedules(layers);
  const auto& [fastest, input] = free.front();
  const double work_us = micro_batch_us * layers.input.num_micro_batches;
  const int most_held = input->Held(static_cast<int>(fastest->stages.size())).in_flight;
  const bool may_hold_all = 2 * most_held > layers.input.num_micro_batches;
  return {.step_time_us = fastest->step_time_us,
          .work_us = work_us,
          .waits_us = may_hold_all ? 0 : fastest->step_time_us - work_us,
          .part_of_limits = PartOfFast(free, layers.ways.ways, request)};
}

FittingEstimate EstimateFitting(const LayersOnMeshes& layers, PipelinePlanner& planner,
                                const PlanRequest& request) {
  if (layers.free.empty()) return {.step_time_us = 0};
  const std::vector<StageWay>& ways = layers.ways.ways;
  const double fastest_us = FreeBySchedules(layers).front().step_time_us();
  if (!request.has_memory_limit()) return {.step_time_us = fastest_us};
  const std::optional<double> us = FittingUs(layers, ways, planner, request);
  if (us && *us <= kNearFastest * fastest_us) return {.step_time_us = us};
  const LayerWays found =
      planner.WaysOn(layers.meshes, FastestMeshes(layers.ways, WithLimits(layers.input, request)));
  const std::vector<StageWay>& saving = found.ways.empty() ? ways : found.ways;
  const std::optional<double> saving_us = FittingUs(layers, saving, planner, request);
  if (!saving_us) return {.least_part = LeastPart(saving, layers.input, request)};
  return {.step_time_us = saving_us};
}

}  // namespace minka
