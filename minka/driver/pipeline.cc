#include "minka/driver/pipeline.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "minka/analysis/xla_cpu_memory.h"
#include "minka/base/hash.h"
#include "minka/base/status.h"
#include "minka/driver/dump.h"
#include "minka/driver/mesh_shapes.h"
#include "minka/driver/prepare.h"
#include "minka/ir/hlo_proto.h"
#include "minka/lowering/emit.h"
#include "minka/lowering/task_programs.h"
#include "minka/planner/intra_op/describe.h"
#include "minka/schedule/generate.h"
#include "minka/simulator/mesh_memory.h"
#include "minka/simulator/timeline.h"

namespace minka {
namespace {

// Writes into the plan what every mesh needs per device, from what each of its programs takes
// besides its arguments and results (by mesh and program).
void SetMemory(const PipelineProgram& program,
               std::span<const std::vector<int64_t>> temporary_bytes, PipelinePlan& plan) {
  plan.peak_memory_bytes = 0;
  for (size_t mesh = 0; mesh < program.meshes.size(); ++mesh) {
    const int64_t peak = PeakMemory(program, program.meshes[mesh], temporary_bytes[mesh]);
    plan.peak_memory_bytes = std::max(plan.peak_memory_bytes, peak);
    for (PipelineStagePlan& stage : plan.stages) {
      if (stage.mesh_number != static_cast<int>(mesh)) continue;
      stage.plan.peak_memory_bytes = stage.plan.stage.peak_memory_bytes = peak;
    }
  }
}

// Layers in consecutive stages of the sizes (devices each), so that the largest load per device is
// least; a dynamic program over the end of each stage.
std::vector<int> BalanceLayers(const std::vector<double>& load, const std::vector<int64_t>& sizes) {
  const size_t num_layers = load.size(), num_stages = sizes.size();
  std::vector<double> before = {0};
  for (const double of_layer : load) before.push_back(before.back() + of_layer);
  constexpr double kNever = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> best(num_stages + 1,
                                        std::vector<double>(num_layers + 1, kNever));
  std::vector<std::vector<size_t>> begin(num_stages + 1, std::vector<size_t>(num_layers + 1));
  best[0][0] = 0;
  for (size_t stage = 1; stage <= num_stages; ++stage) {
    for (size_t end = stage; end <= num_layers; ++end) {
      for (size_t first = stage - 1; first < end; ++first) {
        const double of_stage =
            (before[end] - before[first]) / static_cast<double>(sizes[stage - 1]);
        const double worst = std::max(best[stage - 1][first], of_stage);
        if (worst >= best[stage][end]) continue;
        best[stage][end] = worst;
        begin[stage][end] = first;
      }
    }
  }
  std::vector<int> stage_of_layer(num_layers);
  size_t end = num_layers;
  for (size_t stage = num_stages; stage > 0; --stage) {
    for (size_t layer = begin[stage][end]; layer < end; ++layer) {
      stage_of_layer[layer] = static_cast<int>(stage) - 1;
    }
    end = begin[stage][end];
  }
  return stage_of_layer;
}

// The cluster's part that one mesh is: whole hosts, or devices of one.
absl::StatusOr<Cluster> SubmeshOf(const Cluster& cluster, int num_devices) {
  Cluster part = cluster;
  if (num_devices <= cluster.devices_per_host) {
    part.num_hosts = 1;
    part.devices_per_host = num_devices;
  } else if (num_devices % cluster.devices_per_host == 0) {
    part.num_hosts = num_devices / cluster.devices_per_host;
  } else {
    return InvalidArgument("{} devices are no whole number of hosts of {}", num_devices,
                           cluster.devices_per_host);
  }
  return part;
}

// What it takes to bring so many bytes from one mesh to another: every device of the smaller mesh
// sends or receives its part, over the links within a host where both meshes lie in one.
double TransferTime(const Cluster& cluster, double bytes, int64_t num_devices, bool within_host) {
  const Link& link = within_host ? cluster.intra_host : cluster.inter_host;
  double us = bytes / (static_cast<double>(num_devices) * link.bytes_per_us);
  if (!within_host && cluster.host_network_bytes_per_us > 0) {
    us = std::max(us, bytes / cluster.host_network_bytes_per_us);
  }
  return link.latency_us + us;
}

void SetSendTimes(const Cluster& cluster, PlannedPipeline& out) {
  std::vector<int64_t> first_device = {0};  // by mesh, and behind the last
  for (const Mesh& mesh : out.meshes()) {
    first_device.push_back(first_device.back() + mesh.num_devices());
  }
  const auto host = [&](int64_t device) { return device / cluster.devices_per_host; };
  const auto time = [&](int from, int to, double bytes) {
    if (bytes == 0 || from == to) return 0.0;
    const auto devices = [&](int mesh) { return first_device[mesh + 1] - first_device[mesh]; };
    const int64_t first = std::min(first_device[from], first_device[to]);
    const int64_t last = std::max(first_device[from + 1], first_device[to + 1]) - 1;
    return TransferTime(cluster, bytes, std::min(devices(from), devices(to)),
                        host(first) == host(last));
  };
  std::vector<double> up(out.plan.stages.size()), down(out.plan.stages.size());
  for (const Border& border : out.staged.borders) {
    if (!border.per_micro_batch) continue;
    for (const StagePort& to : border.to) {
      const auto bytes = static_cast<double>(border.shape.num_bytes());
      (to.stage > border.from.stage ? up : down)[border.from.stage] += bytes;
    }
  }
  const auto num_stages = static_cast<int>(out.plan.stages.size());
  for (int i = 0; i < num_stages; ++i) {
    PipelineStagePlan& stage = out.plan.stages[i];
    const int next = out.plan.stages[std::min(i + 1, num_stages - 1)].mesh_number;
    const int before = out.plan.stages[std::max(i - 1, 0)].mesh_number;
    stage.send_forward_us = time(stage.mesh_number, next, up[i]);
    stage.send_backward_us = time(stage.mesh_number, before, down[i]);
  }
}

bool HasBackward(const Step& step) {
  return std::ranges::any_of(
      step.module.entry_computation().instructions,
      [](const Instruction& instruction) { return instruction.part.phase == Phase::kBackward; });
}

class PipelinePlanner {
 public:
  PipelinePlanner(const PlanRequest& planning, Step prepared)
      : planning_(planning), prepared_(std::move(prepared)) {}

  int num_layers() const { return prepared_.num_layers.value_or(0); }

  absl::Status CheckStages(int num_stages) const {
    if (num_stages <= num_layers()) return absl::OkStatus();
    if (num_layers() == 0) {
      return InvalidArgument(
          "{} has no layers to part into stages: none are marked, and none are found between its "
          "inputs and its loss (--loss names that result of a module)",
          prepared_.module.name);
    }
    return InvalidArgument(
        "{} stages are asked for, but {} has {} layers, and each stage one at least", num_stages,
        prepared_.module.name, num_layers());
  }

  // Of so many stages on meshes of the shapes given by mesh.
  absl::StatusOr<PlannedPipeline> Plan(std::vector<int> stage_of_layer, int num_stages,
                                       const std::vector<std::vector<Mesh>>& shapes) const {
    const auto num_meshes = static_cast<int>(shapes.size());
    if (num_stages < 1 || num_stages % num_meshes != 0) {
      return InvalidArgument("{} stages do not go evenly on {} meshes", num_stages, num_meshes);
    }
    PlannedPipeline out{.prepared = prepared_};
    const auto num_micro_batches = planning_.micro_batches.num_micro_batches;
    ASSIGN_OR_RETURN(out.schedule,
                     MakeSchedule(planning_.pipeline->schedule,
                                  {.num_meshes = num_meshes,
                                   .num_micro_batches = static_cast<int>(num_micro_batches),
                                   .stages_per_mesh = num_stages / num_meshes}));
    if (!out.schedule.trains && HasBackward(prepared_)) {
      return InvalidArgument("schedule {} runs forward passes only, and {} has a backward pass",
                             out.schedule.name, prepared_.module.name);
    }
    if (stage_of_layer.empty()) {
      std::vector<int64_t> sizes;
      for (int stage = 0; stage < num_stages; ++stage) {
        sizes.push_back(shapes[out.schedule.MeshOf(stage)].front().num_devices());
      }
      ASSIGN_OR_RETURN(const std::vector<double> load, LoadOfLayers());
      stage_of_layer = BalanceLayers(load, sizes);
    }
    out.plan.stage_of_layer = std::move(stage_of_layer);
    ASSIGN_OR_RETURN(out.staged, CutIntoStages(prepared_, OptionsOf(out)));
    RETURN_IF_ERROR(PlanStages(shapes, out));
    RETURN_IF_ERROR(Describe(out));
    return out;
  }

  static StageOptions OptionsOf(const PlannedPipeline& planned) {
    return {.stage_of_layer = planned.plan.stage_of_layer,
            .splits_backward = planned.schedule.splits_backward};
  }

 private:
  // What the forward and backward pass of each layer take on one device.
  absl::StatusOr<std::vector<double>> LoadOfLayers() const {
    const Mesh one_device({{"x", 1}});
    ASSIGN_OR_RETURN(const std::unique_ptr<CostModel> cost,
                     MakeCostModel(planning_.cost_model, planning_.cluster, one_device));
    ASSIGN_OR_RETURN(const IntraOpResult planned, PlanMesh(prepared_, one_device, *cost, {}));
    std::vector<double> load(num_layers());
    const Computation& entry = prepared_.module.entry_computation();
    for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
      const StepPart& part = entry.instructions[id].part;
      if (part.layer < 0 || part.phase == Phase::kApply) continue;
      load[part.layer] += planned.stage.ops[id].cost_us;
    }
    return load;
  }

  absl::Status PlanStages(const std::vector<std::vector<Mesh>>& shapes,
                          PlannedPipeline& out) const {
    std::vector<std::vector<Mesh>> left = shapes;  // of each mesh the one that its first stage took
    for (int stage = 0; stage < out.schedule.num_stages(); ++stage) {
      const int number = out.schedule.MeshOf(stage);
      absl::StatusOr<minka::Plan> best =
          PlanStage(out.staged.stages[stage].step, left[number], out.schedule.num_stages());
      if (!best.ok()) return WithContext(best.status(), fmt::format("stage {}", stage));
      for (size_t layer = 0; layer < out.plan.stage_of_layer.size(); ++layer) {
        if (out.plan.stage_of_layer[layer] == stage)
          best->stage.layers.push_back(static_cast<int>(layer));
      }
      left[number] = {best->stage.mesh};
      out.plan.stages.push_back({.plan = *std::move(best), .mesh_number = number});
    }
    return absl::OkStatus();
  }

  absl::StatusOr<minka::Plan> PlanStage(const Step& step, const std::vector<Mesh>& candidates,
                                        int num_stages) const {
    std::optional<minka::Plan> best;
    absl::Status refusal;
    for (const Mesh& mesh : candidates) {
      ASSIGN_OR_RETURN(const std::unique_ptr<CostModel> cost,
                       MakeCostModel(planning_.cost_model, planning_.cluster, mesh));
      SearchOptions search = planning_.search;
      search.memory_limit_bytes.reset();
      WorkBudget budget(search.work_limit / static_cast<int64_t>(num_stages * candidates.size()));
      IntraOpOptions options{
          .method = planning_.methods.front(), .search = search, .budget = &budget};
      if (best) options.cutoff = best->objective;
      SearchResult<IntraOpResult> planned = PlanMesh(step, mesh, *cost, options);
      if (!planned.ok()) {
        if (refusal.ok()) refusal = planned.status().why;
        continue;
      }
      if (best && planned->stage.step_time_us >= best->step_time_us) continue;
      best = PlanOfStage(step, options, *std::move(planned), std::string(cost->name()));
    }
    if (!best) return refusal;
    return *std::move(best);
  }

  static minka::Plan PlanOfStage(const Step& step, const IntraOpOptions& options,
                                 IntraOpResult result, std::string cost_model) {
    minka::Plan plan;
    plan.method = std::string(MethodName(options.method));
    plan.cost_model = std::move(cost_model);
    plan.step_time_us = result.stage.step_time_us;
    plan.peak_memory_bytes = result.stage.peak_memory_bytes;
    plan.objective = result.objective;
    plan.lower_bound = result.lower_bound;
    plan.gap = plan.sharding_gap = result.gap;
    plan.memory_price = result.memory_price;
    plan.stop_reason = result.stop_reason;
    plan.search_seconds = result.seconds;
    plan.notes = result.notes;
    plan.stage = std::move(result.stage);
    minka::Describe(step, plan);
    return plan;
  }

  absl::Status Describe(PlannedPipeline& out) const {
    PipelinePlan& plan = out.plan;
    plan.module_hash = HashText(ModuleHash(prepared_.module));
    plan.options = planning_.options;
    plan.cost_model = plan.stages.front().plan.cost_model;
    plan.num_micro_batches = out.schedule.shape.num_micro_batches;
    plan.per_micro_batch = plan.num_micro_batches > 1 && planning_.micro_batches.per_micro_batch;
    plan.remat = planning_.remat.value_or(RematChoice());
    plan.schedule = out.schedule.name;
    for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
      SetTaskTimes(out.staged.stages[stage], plan.num_micro_batches, plan.stages[stage]);
    }
    SetSendTimes(planning_.cluster, out);
    ASSIGN_OR_RETURN(const Timeline timeline, PredictTimeline(out));
    plan.step_time_us = timeline.step_time;
    const double idle = std::accumulate(timeline.idle.begin(), timeline.idle.end(), 0.0);
    plan.bubble = idle / (timeline.step_time * static_cast<double>(timeline.idle.size()));
    return EstimateMemory(out);
  }

  // What the plan predicts of its operations and reshards, by the program that they run in.
  static void SetTaskTimes(const StageStep& staged, int num_micro_batches,
                           PipelineStagePlan& stage) {
    const auto time_of = [&](ProgramKind kind) -> double& {
      switch (kind) {
        case ProgramKind::kForward:
          return stage.forward_us;
        case ProgramKind::kBackward:
          return stage.backward_us;
        case ProgramKind::kWeightGradient:
          return stage.weight_gradient_us;
        case ProgramKind::kFront:
        case ProgramKind::kApply:
          break;
      }
      return stage.apply_us;
    };
    const StagePlan& plan = stage.plan.stage;
    for (size_t id = 0; id < plan.ops.size(); ++id) {
      time_of(staged.tasks[id].kind) += plan.ops[id].cost_us;
    }
    for (const PlannedCollective& collective : ListCollectives(staged.step.module, plan)) {
      if (collective.reshards.empty()) continue;  // in its operation's costs
      const Reshard& reshard = plan.reshards[collective.reshards.front()];
      const bool at_end = reshard.before == static_cast<InstructionId>(plan.ops.size());
      const InstructionId id = at_end ? reshard.value.instruction : reshard.before;
      time_of(staged.tasks[id].kind) += collective.cost_us * static_cast<double>(collective.runs);
    }
    stage.forward_us /= num_micro_batches;
    stage.backward_us /= num_micro_batches;
    stage.weight_gradient_us /= num_micro_batches;
  }

  static absl::Status EstimateMemory(PlannedPipeline& out) {
    ASSIGN_OR_RETURN(const PipelineProgram program, LowerPipeline(out));
    std::vector<std::vector<int64_t>> temporary;
    for (const MeshProgram& mesh : program.meshes) {
      temporary.emplace_back();
      for (const StageProgram& of_stage : mesh.programs) {
        const XlaCpuMemory memory = XlaCpuMemoryOf(of_stage.module);
        temporary.back().push_back(memory.upper_bound_bytes() - memory.argument_bytes -
                                   memory.output_bytes);
      }
    }
    SetMemory(program, temporary, out.plan);
    out.plan.transfers = TransfersOf(program, out.plan.num_micro_batches);
    return absl::OkStatus();
  }

  static std::vector<PlannedTransfers> TransfersOf(const PipelineProgram& program,
                                                   int num_micro_batches) {
    std::map<std::tuple<int, int, std::string>, int64_t> messages_of_value;
    std::map<std::tuple<int, int, std::string>, int64_t> bytes_of_value;
    for (const Channel& channel : program.channels) {
      const ArraySlot& from = program.slot(channel.from);
      const std::tuple key(channel.from.mesh, channel.to.mesh, from.name);
      ++messages_of_value[key];
      bytes_of_value[key] += from.shape.num_bytes();
    }
    std::map<std::tuple<int, int, bool>, PlannedTransfers> found;
    for (const auto& [key, num_messages] : messages_of_value) {
      const auto& [from, to, name] = key;
      const bool per_micro_batch = num_micro_batches > 1 && num_messages == num_micro_batches;
      PlannedTransfers& transfers = found[{from, to, per_micro_batch}];
      transfers.from_mesh = from;
      transfers.to_mesh = to;
      transfers.per_micro_batch = per_micro_batch;
      ++transfers.num_values;
      transfers.num_messages += num_messages;
      transfers.bytes += bytes_of_value[key];
    }
    std::vector<PlannedTransfers> out;
    for (const auto& [key, transfers] : found) out.push_back(transfers);
    return out;
  }

  const PlanRequest& planning_;
  const Step prepared_;
};

// Numbers of stages that devices and layers allow, one on each mesh, at least two.
std::vector<int> StagesToTry(const Cluster& cluster, int num_layers) {
  std::vector<int> numbers;
  for (int n = 2; n <= std::min(cluster.num_devices(), num_layers); ++n) {
    if (cluster.num_devices() % n == 0 && SubmeshOf(cluster, cluster.num_devices() / n).ok())
      numbers.push_back(n);
  }
  return numbers;
}

// By mesh, the shapes it may have.
absl::StatusOr<std::vector<std::vector<Mesh>>> ShapesOf(const Cluster& cluster,
                                                        const PipelineOptions& options,
                                                        int num_stages) {
  std::vector<std::vector<Mesh>> shapes;
  for (const Mesh& mesh : options.meshes) shapes.push_back({mesh});
  if (!shapes.empty()) return shapes;
  std::vector<int> sizes = options.submeshes;
  if (sizes.empty()) {
    if (cluster.num_devices() % num_stages != 0) {
      return InvalidArgument("{} devices do not go evenly on {} stages; name the submeshes",
                             cluster.num_devices(), num_stages);
    }
    sizes.assign(num_stages, cluster.num_devices() / num_stages);
  }
  for (const int size : sizes) {
    ASSIGN_OR_RETURN(const Cluster submesh, SubmeshOf(cluster, size));
    shapes.push_back(MeshShapes(submesh));
  }
  return shapes;
}

int NumDevices(const std::vector<std::vector<Mesh>>& shapes) {
  int64_t num_devices = 0;
  for (const std::vector<Mesh>& of_mesh : shapes) num_devices += of_mesh.front().num_devices();
  return static_cast<int>(num_devices);
}

absl::StatusOr<PlannedPipeline> SearchStages(const PipelinePlanner& planner,
                                             const PlanRequest& request) {
  const PipelineOptions& options = *request.pipeline;
  const auto plan = [&](int num_stages) -> absl::StatusOr<PlannedPipeline> {
    RETURN_IF_ERROR(planner.CheckStages(num_stages));
    ASSIGN_OR_RETURN(const auto shapes, ShapesOf(request.cluster, options, num_stages));
    if (NumDevices(shapes) > request.cluster.num_devices()) {
      return InvalidArgument("the stages' meshes have {} devices, cluster {} has {}",
                             NumDevices(shapes), request.cluster.name,
                             request.cluster.num_devices());
    }
    return planner.Plan(options.stage_of_layer, num_stages, shapes);
  };
  if (!options.stage_of_layer.empty()) return plan(options.stage_of_layer.back() + 1);
  if (options.num_stages > 0) return plan(options.num_stages);
  const size_t num_meshes = std::max(options.meshes.size(), options.submeshes.size());
  if (num_meshes > 0) return plan(static_cast<int>(num_meshes));
  const std::vector<int> numbers = StagesToTry(request.cluster, planner.num_layers());
  if (numbers.empty()) {
    return InvalidArgument(
        "{} layers on {} devices leave no number of stages above 1; boundaries between layers are "
        "marked in the model, or found where one value alone leads on",
        planner.num_layers(), request.cluster.num_devices());
  }
  std::optional<PlannedPipeline> best;
  absl::Status refusal;
  for (const int num_stages : numbers) {
    absl::StatusOr<PlannedPipeline> planned = plan(num_stages);
    if (!planned.ok()) {
      if (refusal.ok()) refusal = planned.status();
    } else if (!best || planned->plan.step_time_us < best->plan.step_time_us) {
      best = *std::move(planned);
    }
  }
  if (!best) return refusal;
  return *std::move(best);
}

}  // namespace

std::vector<const Module*> PlannedPipeline::modules() const {
  std::vector<const Module*> modules;
  for (const StageStep& stage : staged.stages) modules.push_back(&stage.step.module);
  return modules;
}

std::vector<Mesh> PlannedPipeline::meshes() const {
  std::vector<Mesh> meshes(schedule.shape.num_meshes);
  for (const PipelineStagePlan& stage : plan.stages) {
    meshes[stage.mesh_number] = stage.plan.stage.mesh;
  }
  return meshes;
}

absl::StatusOr<PlannedPipeline> PlanPipeline(const Step& step, const PlanRequest& request) {
  const auto start = std::chrono::steady_clock::now();
  const RematChoice remat = request.remat.value_or(RematChoice());
  ASSIGN_OR_RETURN(Step prepared,
                   Prepare(step, {.micro_batches = request.micro_batches, .remat = remat}));
  const PipelinePlanner planner(request, std::move(prepared));
  ASSIGN_OR_RETURN(PlannedPipeline planned, SearchStages(planner, request));
  planned.plan.search_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const int64_t needed = planned.plan.peak_memory_bytes;
  if (const auto limit = request.search.memory_limit_bytes; limit && needed > *limit) {
    return ResourceExhausted(
        "the pipeline needs {} bytes per device, {} are allowed; raise the limit, take more "
        "micro-batches or stages, or recompute (--remat all)",
        needed, *limit);
  }
  return planned;
}

absl::StatusOr<PlannedPipeline> LoadPipeline(const Step& step, std::string_view plan_json) {
  ASSIGN_OR_RETURN(const PlannedPreparation how, PlannedPreparationOf(plan_json));
  if (how.stage_of_layer.empty()) return InvalidArgument("plan: it is not one of a pipeline");
  ASSIGN_OR_RETURN(const Preparation preparation, PreparationOfJson(plan_json));
  PlannedPipeline out;
  ASSIGN_OR_RETURN(out.prepared, Prepare(step, preparation));
  out.plan.stage_of_layer = how.stage_of_layer;
  const auto kind = std::ranges::find(ScheduleKinds(), how.schedule, &ScheduleKind::name);
  ASSIGN_OR_RETURN(out.staged,
                   CutIntoStages(out.prepared, {.stage_of_layer = how.stage_of_layer,
                                                .splits_backward = kind != ScheduleKinds().end() &&
                                                                   kind->splits_backward}));
  const std::vector<const Module*> modules = out.modules();
  ASSIGN_OR_RETURN(out.plan, PipelinePlanFromJson(plan_json, out.prepared.module, modules));
  std::map<int, Mesh> meshes;
  for (size_t i = 0; i < out.plan.stages.size(); ++i) {
    const PipelineStagePlan& stage = out.plan.stages[i];
    RETURN_IF_ERROR(WithContext(CheckPlan(stage.plan, *modules[i]), fmt::format("stage {}", i)));
    const auto [found, is_new] = meshes.try_emplace(stage.mesh_number, stage.plan.stage.mesh);
    if (!(found->second == stage.plan.stage.mesh)) {
      return InvalidArgument("plan: stage {} has another mesh than an earlier stage of mesh {}", i,
                             stage.mesh_number);
    }
  }
  const auto num_meshes = static_cast<int>(meshes.size());
  const auto num_stages = static_cast<int>(out.plan.stages.size());
  ASSIGN_OR_RETURN(out.schedule,
                   MakeSchedule(how.schedule, {.num_meshes = num_meshes,
                                               .num_micro_batches = out.plan.num_micro_batches,
                                               .stages_per_mesh = num_stages / num_meshes}));
  for (int stage = 0; stage < num_stages; ++stage) {
    if (num_stages % num_meshes == 0 &&
        out.plan.stages[stage].mesh_number == out.schedule.MeshOf(stage))
      continue;
    return InvalidArgument("plan: stage {} is on mesh {}; consecutive stages go round the meshes",
                           stage, out.plan.stages[stage].mesh_number);
  }
  return out;
}

absl::StatusOr<Timeline> PredictTimeline(const PlannedPipeline& planned) {
  const auto send = [&planned](const Task& from, const Task&) {
    const PipelineStagePlan& stage = planned.plan.stages[from.stage];
    return from.kind == TaskKind::kForward ? stage.send_forward_us : stage.send_backward_us;
  };
  return Simulate(planned.schedule, {.task =
                                         [&planned](const Task& task) {
                                           const PipelineStagePlan& stage =
                                               planned.plan.stages[task.stage];
                                           switch (task.kind) {
                                             case TaskKind::kForward:
                                               return stage.forward_us;
                                             case TaskKind::kBackward:
                                               return stage.backward_us;
                                             case TaskKind::kWeightGradient:
                                               return stage.weight_gradient_us;
                                             case TaskKind::kApply:
                                               break;
                                           }
                                           return stage.apply_us;
                                         },
                                     .transfer = send});
}

MicroBatchOptions MicroBatchesOf(const PipelinePlan& plan) {
  return {.num_micro_batches = plan.num_micro_batches, .per_micro_batch = plan.per_micro_batch};
}

absl::StatusOr<PipelineProgram> LowerPipeline(const PlannedPipeline& planned) {
  std::vector<std::vector<TaskProgram>> programs;
  std::vector<StagePlan> plans;
  for (size_t stage = 0; stage < planned.plan.stages.size(); ++stage) {
    plans.push_back(planned.plan.stages[stage].plan.stage);
    absl::StatusOr<std::vector<TaskProgram>> lowered =
        LowerTasks(planned.staged.stages[stage], plans.back());
    if (!lowered.ok()) return WithContext(lowered.status(), fmt::format("stage {}", stage));
    programs.push_back(*std::move(lowered));
  }
  return Emit(planned.schedule, planned.staged, plans, programs);
}

absl::StatusOr<std::unique_ptr<PipelineExecutor>> CompilePipeline(PlannedPipeline& planned,
                                                                  const pjrt::Client& client) {
  ASSIGN_OR_RETURN(PipelineProgram program, LowerPipeline(planned));
  ASSIGN_OR_RETURN(PipelineExecutor executor, PipelineExecutor::Create(client, std::move(program)));
  SetMemory(executor.program(), executor.temporary_bytes(), planned.plan);
  planned.plan.memory_tier = MemoryTier::kCompiled;
  return std::make_unique<PipelineExecutor>(std::move(executor));
}

absl::Status DumpPipeline(const PlannedPipeline& planned, const std::string& folder) {
  ASSIGN_OR_RETURN(const DumpFolder dump, DumpFolder::Create(folder));
  ASSIGN_OR_RETURN(const PipelineProgram program, LowerPipeline(planned));
  RETURN_IF_ERROR(dump.Write("prepared.txt", HloText(ToModule(planned.prepared))));
  RETURN_IF_ERROR(dump.Write("plan.json", PipelinePlanToJson(planned.plan, planned.modules())));
  for (size_t mesh = 0; mesh < program.meshes.size(); ++mesh) {
    for (const StageProgram& of_stage : program.meshes[mesh].programs) {
      std::string name = fmt::format("stage{}.{}.hlo.txt", of_stage.stage, ToString(of_stage.task));
      std::ranges::replace(name, ' ', '_');
      RETURN_IF_ERROR(dump.Write(name, HloText(of_stage.module)));
    }
    RETURN_IF_ERROR(dump.Write(fmt::format("mesh{}.instructions.txt", mesh),
                               InstructionsText(program.meshes[mesh])));
  }
  return dump.Write("cross_mesh_transfers.txt", TransfersText(program));
}

}  // namespace minka
