#include "minka/driver/pipeline_planner.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <mutex>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "minka/base/hash.h"
#include "minka/base/parallel.h"
#include "minka/base/status.h"
#include "minka/cost/cross_mesh_load.h"
#include "minka/driver/predict_pipeline.h"
#include "minka/driver/stage_hash.h"
#include "minka/planner/inter_op/balance_stages.h"
#include "minka/schedule/generate.h"

namespace minka {
namespace {

// Under limits stages are searched again and again, and seldom to the end: about so often.
constexpr int64_t kLimitedSearches = 12;
// Where other pipelines may fit instead; what fits by limits at all mostly does by the first one.
constexpr int kTighteningsOfMany = 2;

// Without a limit, and with one: what settles ties, as much as a little time, as much as what
// splitting all state takes.
constexpr double kMemoryPrices[] = {0, 0.0003, 8, 128};

// Where any schedule may be chosen.
constexpr std::string_view kFirstSchedule = "1f1b", kForwardSchedule = "inference";

// By what pins name things (SearchOptions::pins).
bool NamesParameterOrResult(const Step& step, std::string_view glob) {
  const auto matches = [&](const auto& info) { return MatchesGlob(glob, info.name); };
  return std::ranges::any_of(step.parameters, matches) ||
         std::ranges::any_of(step.results, matches);
}
bool NamesOperation(const Step& step, std::string_view glob) {
  return std::ranges::any_of(
      step.module.entry_computation().instructions, [&](const Instruction& instruction) {
        return MatchesGlob(glob, instruction.name) || MatchesGlob(glob, instruction.op_name);
      });
}

// Without pins on what other stages have.
std::vector<std::string> PinsOfStage(const std::vector<std::string>& pins, const Step& whole,
                                     const Step& stage) {
  std::vector<std::string> of_stage;
  for (const std::string& pin : pins) {
    const std::string_view glob = std::string_view(pin).substr(0, pin.rfind('='));
    const auto names =
        NamesParameterOrResult(whole, glob) ? NamesParameterOrResult : NamesOperation;
    if (names(stage, glob) || !names(whole, glob)) of_stage.push_back(pin);
  }
  return of_stage;
}

// Meshes in the order in which to search their stages: those whose first stage is equal to an
// earlier one have little to do once that has been searched.
std::vector<int> DifferentFirst(const Assignment& assignment, const PlannedPipeline& pipeline) {
  std::vector<int> order, repeated;
  std::set<std::tuple<uint64_t, int, std::string>> seen;
  for (int mesh = 0; mesh < static_cast<int>(assignment.meshes.shapes.size()); ++mesh) {
    const Step& first = pipeline.staged.stages[mesh].step;
    const bool is_new = seen.emplace(StageHash(first), assignment.meshes.kinds[mesh],
                                     assignment.meshes.shapes[mesh].front().ToString())
                            .second;
    (is_new ? order : repeated).push_back(mesh);
  }
  order.insert(order.end(), repeated.begin(), repeated.end());
  return order;
}

}  // namespace

PipelinePlanner::PipelinePlanner(const PlanRequest& planning, PreparedSteps& steps,
                                 LayerChoice layers, StagePlanner& stages, StagePrograms programs)
    : planning_(planning),
      steps_(steps),
      layers_(std::move(layers)),
      stages_(stages),
      programs_(programs),
      layer_costs_(planning, steps_, stages, programs) {}

absl::Status PipelinePlanner::CheckStages(int num_stages) const {
  if (num_stages <= num_layers()) return absl::OkStatus();
  if (num_layers() == 0) {
    return InvalidArgument(
        "{} has no layers to part into stages: none are marked, and none are found between its "
        "inputs and its loss (--loss names that result of a module); --pipeline-layers N parts "
        "it into N layers",
        name());
  }
  return InvalidArgument(
      "{} stages are asked for, but {} has {} layers, and each stage one at least{}", num_stages,
      name(), num_layers(),
      std::holds_alternative<MarkedLayers>(layers_) ? " (--pipeline-layers N parts it into N)"
                                                    : "");
}

absl::StatusOr<Assignment> PipelinePlanner::Assign(std::vector<int> stage_of_layer, int num_stages,
                                                   StageMeshes meshes) {
  const auto num_meshes = static_cast<int>(meshes.shapes.size());
  if (num_stages < 1 || num_stages % num_meshes != 0) {
    return InvalidArgument("{} stages do not go evenly on {} meshes", num_stages, num_meshes);
  }
  const size_t num_options = planning_.pipeline->stage_search.size();
  if (num_options > 0 && num_options != static_cast<size_t>(num_stages)) {
    return InvalidArgument("{} stages are planned, but there are options for {}", num_stages,
                           num_options);
  }
  ASSIGN_OR_RETURN(const Step* prepared, PreparedInFewLayers());
  Assignment out{.meshes = std::move(meshes)};
  ASSIGN_OR_RETURN(
      out.schedule,
      ScheduleFor(*prepared, FirstScheduleOf(*prepared),
                  {.num_meshes = num_meshes,
                   .num_micro_batches = static_cast<int>(planning_.micro_batches.num_micro_batches),
                   .stages_per_mesh = num_stages / num_meshes}));
  if (stage_of_layer.empty()) {
    ASSIGN_OR_RETURN(const std::vector<double> speeds, SpeedOfMeshes(out.meshes));
    std::vector<double> rates;
    for (int stage = 0; stage < num_stages; ++stage) {
      const int mesh = out.schedule.MeshOf(stage);
      const int64_t num_devices = out.meshes.shapes[mesh].front().num_devices();
      rates.push_back(speeds[mesh] * static_cast<double>(num_devices));
    }
    ASSIGN_OR_RETURN(const std::vector<double> load, LoadOfLayers(/*kind=*/0));
    stage_of_layer = BalanceLayers(load, rates);
  }
  out.stage_of_layer = std::move(stage_of_layer);
  return out;
}

absl::StatusOr<Assignment> PipelinePlanner::BySchedule(const Assignment& assignment,
                                                       std::string_view schedule) {
  ASSIGN_OR_RETURN(const Step* prepared, PreparedInFewLayers());
  Assignment out = assignment;
  ASSIGN_OR_RETURN(out.schedule, ScheduleFor(*prepared, schedule, assignment.schedule.shape));
  return out;
}

std::string_view PipelinePlanner::FirstScheduleOf(const Step& prepared) const {
  const std::string& asked = planning_.pipeline->schedule;
  if (asked != kChooseSchedule) return asked;
  return HasBackwardPass(prepared) ? kFirstSchedule : kForwardSchedule;
}

absl::StatusOr<FittedPipeline> PipelinePlanner::PlanWithin(const Assignment& assignment,
                                                           const StageDemands& first,
                                                           Reshaping reshaping) {
  ASSIGN_OR_RETURN(Searched latest, PlanAs(assignment, first));
  const DemandedPipeline unlimited = Summary(latest);
  FittedPipeline out{.assignment = assignment, .unlimited_us = unlimited.step_time_us};
  if (reshaping == Reshaping::kNothing || CheckMemory(latest.pipeline.plan, planning_).ok()) {
    out.pipeline = std::move(latest.pipeline);
    return out;
  }
  FitOptions options{.stage_of_layer = assignment.stage_of_layer};
  for (const int kind : assignment.meshes.kinds)
    options.limit_of_mesh.push_back(planning_.MemoryLimitOn(kind).value_or(INT64_MAX));
  if (reshaping == Reshaping::kLimits) {
    options.most_tightenings = kTighteningsOfMany;
  } else if (!planning_.remat) {
    options.candidates = steps_.RematCandidates();
  }
  for (int stage = 0; stage < assignment.schedule.num_stages(); ++stage) {
    options.mesh_of_stage.push_back(assignment.schedule.MeshOf(stage));
  }
  StageDemands planned_latest = first;
  const auto plan = [&](const StageDemands& demands) -> absl::StatusOr<DemandedPipeline> {
    if (demands == first) return unlimited;
    ASSIGN_OR_RETURN(latest, PlanAs(assignment, demands));
    planned_latest = demands;
    return Summary(latest);
  };
  ASSIGN_OR_RETURN(const StageDemands demands, FitStages(first, options, plan));
  if (demands != planned_latest) {
    ASSIGN_OR_RETURN(latest, PlanAs(assignment, demands));
  }
  out.pipeline = std::move(latest.pipeline);
  return out;
}

std::span<const double> PipelinePlanner::MemoryPrices(const MeshOfKind& on,
                                                      bool saves_memory) const {
  const std::span<const double> all = kMemoryPrices;
  const bool has_times = planning_.cost_model.kind != CostModelKind::kAlpa;  // prices are such
  if (!planning_.MemoryLimitOn(on.kind) || !has_times) return all.first(1);
  // One device has nothing to split.
  const bool is_one = !saves_memory || on.mesh.num_devices() == 1;
  return all.subspan(1, is_one ? 1 : all.size() - 1);
}

LayerWays PipelinePlanner::WaysOn(const std::vector<MeshOfKind>& meshes,
                                  const std::vector<MeshOfKind>& saving) {
  const bool gives_shapes = !planning_.meshes.empty() || GivesMeshes(*planning_.pipeline);
  if (!gives_shapes) unlikely_.Find(meshes, [this](const auto& on) { return RepeatedOn(on); });
  std::vector<MeshOfKind> likely;
  std::vector<RefusedWay> left_out;
  for (const MeshOfKind& mesh : meshes) {
    const absl::Status why_not = unlikely_.WhyNot(mesh);
    if (why_not.ok()) {
      likely.push_back(mesh);
    } else {
      left_out.push_back({{.on = mesh}, why_not});
    }
  }
  LayerWays ways = WaysOnAll(likely, saving);
  std::ranges::move(left_out, std::back_inserter(ways.refused));
  return ways;
}

std::vector<std::optional<RepeatedLayers>> PipelinePlanner::RepeatedOn(
    const std::vector<MeshOfKind>& meshes) {
  std::vector<LayersOn> asked;
  for (const MeshOfKind& mesh : meshes)
    asked.push_back({mesh, MemoryPrices(mesh, /*saves_memory=*/false).front(), FirstRemat()});
  const auto num_micro_batches = static_cast<double>(planning_.micro_batches.num_micro_batches);
  std::vector<std::optional<RepeatedLayers>> out;
  for (const absl::StatusOr<std::vector<LayerCost>>& costs : layer_costs_.OfRepeated(asked)) {
    std::optional<RepeatedLayers>& sum = out.emplace_back();
    if (!costs.ok()) continue;
    sum.emplace();
    for (const LayerCost& layer : *costs) {
      sum->us += num_micro_batches * layer.micro_batch_us + layer.step_us;
      sum->bytes += static_cast<double>(layer.static_bytes + layer.saved_bytes);
    }
  }
  return out;
}

LayerWays PipelinePlanner::WaysOnAll(const std::vector<MeshOfKind>& meshes,
                                     const std::vector<MeshOfKind>& saving) {
  RematChoice all, dots;
  if (!saving.empty() && !planning_.remat) all = steps_.RematCandidates();
  for (const RematPolicy policy : all)
    dots.push_back(policy == RematPolicy::kNone ? policy : RematPolicy::kDots);
  struct Asked {
    int mesh = 0;
    size_t kept = 0;
    std::optional<size_t> dots_kept, recomputed;
  };
  std::vector<LayersOn> layers;
  std::vector<Asked> asked;
  for (size_t number = 0; number < meshes.size(); ++number) {
    const MeshOfKind& mesh = meshes[number];
    const bool saves_memory = std::ranges::find(saving, mesh) != saving.end();
    for (const double price : MemoryPrices(mesh, saves_memory)) {
      asked.push_back({.mesh = static_cast<int>(number), .kept = layers.size()});
      layers.push_back({mesh, price, FirstRemat()});
      if (!saves_memory || all.empty()) continue;
      asked.back().dots_kept = layers.size();
      layers.push_back({mesh, price, dots});
      asked.back().recomputed = layers.size();
      layers.push_back({mesh, price, all});
    }
  }
  std::vector<absl::StatusOr<std::vector<LayerCost>>> costs = layer_costs_.Of(layers);
  LayerWays out;
  const auto costs_of = [&](std::optional<size_t> number) {
    return number && costs[*number].ok() ? *std::move(costs[*number]) : std::vector<LayerCost>();
  };
  for (const auto& [number, kept, dots_kept, recomputed] : asked) {
    const MeshOfWay where = {layers[kept].on, layers[kept].memory_price};
    if (!costs[kept].ok()) {
      out.refused.push_back({where, costs[kept].status()});
      continue;
    }
    StageWay way{.kind = where.on.kind,
                 .num_devices = static_cast<int>(where.mesh().num_devices()),
                 .mesh = number,
                 .charged = MemoryPriceOf(where.memory_price, InFlight(programs_),
                                          planning_.micro_batches.num_micro_batches,
                                          planning_.HostsOf(where.on.kind)),
                 .kept = *std::move(costs[kept])};
    way.dots_kept = costs_of(dots_kept);
    way.recomputed = costs_of(recomputed);
    way.keeps_dots_first = SavesMoreByKeepingDots(way);
    out.ways.push_back(std::move(way));
    out.meshes.push_back(where);
  }
  return out;
}

StageDemands PipelinePlanner::DemandsOf(const FoundPipeline& found,
                                        const std::vector<StageWay>& ways) {
  StageDemands demands{.remat = FirstRemat()};
  const RematChoice all = steps_.RematCandidates();
  for (const FoundStage& stage : found.stages) {
    for (int layer = stage.begin_layer; layer < stage.end_layer; ++layer) {
      const RematPolicy policy = RecomputedOf(ways[stage.way], stage, layer);
      if (policy == RematPolicy::kNone || all[layer] == RematPolicy::kNone) continue;
      demands.remat.resize(num_layers(), RematPolicy::kNone);
      demands.remat[layer] = policy;
    }
  }
  return demands;
}

absl::StatusOr<std::string> PipelinePlanner::FirstSchedule() {
  ASSIGN_OR_RETURN(const Step* prepared, PreparedInFewLayers());
  return std::string(FirstScheduleOf(*prepared));
}

absl::StatusOr<std::vector<MicroBatchesHeld>> PipelinePlanner::Held(int most_stages) {
  ASSIGN_OR_RETURN(const Step* prepared, PreparedInFewLayers());
  return Held(most_stages, FirstScheduleOf(*prepared), /*num_stages=*/1);
}

absl::StatusOr<std::vector<MicroBatchesHeld>> PipelinePlanner::Held(int most_stages,
                                                                    std::string_view schedule,
                                                                    int num_stages) {
  const auto known = held_.find({most_stages, std::string(schedule), num_stages});
  if (known != held_.end()) return known->second;
  ASSIGN_OR_RETURN(const Step* prepared, PreparedInFewLayers());
  const auto num_micro_batches = static_cast<int>(planning_.micro_batches.num_micro_batches);
  // What the step lacks, it lacks for any number of meshes.
  RETURN_IF_ERROR(
      ScheduleFor(*prepared, schedule, {.num_micro_batches = num_micro_batches}).status());
  std::vector<MicroBatchesHeld> out(1);
  for (int from_end = 1; from_end <= most_stages; ++from_end) {
    const int all = std::max(from_end, std::min(num_stages, most_stages));
    const auto held =
        MostHeldBy(schedule, {.num_meshes = all, .num_micro_batches = num_micro_batches});
    if (!held.ok() && from_end == 1) return held.status();
    // Some schedules cannot have every number of stages.
    out.push_back(held.ok() ? (*held)[all - from_end] : out.back());
  }
  held_[{most_stages, std::string(schedule), num_stages}] = out;
  return out;
}

std::function<double(const StageBorder& border)> PipelinePlanner::SendUs() {
  const absl::StatusOr<const Step*> prepared = PreparedInFewLayers();
  if (!prepared.ok()) return {};
  absl::StatusOr<std::vector<BytesBetween>> bytes = layer_costs_.BytesInFrontOf(FirstRemat());
  if (!bytes.ok()) return {};
  std::vector<Cluster> hosts;
  for (int kind = 0; kind < planning_.num_kinds(); ++kind) hosts.push_back(planning_.HostsOf(kind));
  return [bytes = *std::move(bytes), hosts = std::move(hosts)](const StageBorder& border) {
    const auto us = [&](int64_t of_way) {
      return LeastSendUs(of_way, {hosts[border.before.kind], border.before.num_devices},
                         {hosts[border.behind.kind], border.behind.num_devices},
                         border.crosses_hosts);
    };
    return us(bytes[border.layer].forward) + us(bytes[border.layer].backward);
  };
}

absl::StatusOr<std::vector<double>> PipelinePlanner::SpeedOfMeshes(const StageMeshes& meshes) {
  std::vector<double> speeds(meshes.kinds.size(), 1);
  if (planning_.num_kinds() == 1) return speeds;
  for (size_t mesh = 0; mesh < speeds.size(); ++mesh) {
    ASSIGN_OR_RETURN(const std::vector<double> load, LoadOfLayers(meshes.kinds[mesh]));
    speeds[mesh] = 1 / std::accumulate(load.begin(), load.end(), 0.0);
  }
  return speeds;
}

absl::StatusOr<PipelinePlanner::Searched> PipelinePlanner::PlanAs(const Assignment& assignment,
                                                                  const StageDemands& demands) {
  ASSIGN_OR_RETURN(const Step* prepared, PreparedWith(demands.remat));
  Searched out{.pipeline = {.prepared = *prepared, .schedule = assignment.schedule}};
  PlannedPipeline& pipeline = out.pipeline;
  pipeline.plan.stage_of_layer = assignment.stage_of_layer;
  pipeline.plan.remat = demands.remat;
  ASSIGN_OR_RETURN(
      pipeline.staged,
      CutIntoStages(*prepared, {.stage_of_layer = assignment.stage_of_layer,
                                .splits_backward = assignment.schedule.splits_backward}));
  RETURN_IF_ERROR(PlanStages(assignment, demands.limit_bytes, pipeline));
  for (const PipelineStagePlan& stage : pipeline.plan.stages) {
    out.bytes.push_back(stage.plan.peak_memory_bytes);
  }
  RETURN_IF_ERROR(Describe(pipeline));
  return out;
}

DemandedPipeline PipelinePlanner::Summary(const Searched& searched) {
  const PipelinePlan& plan = searched.pipeline.plan;
  DemandedPipeline out{.step_time_us = plan.step_time_us};
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    const PipelineStagePlan& stage = plan.stages[i];
    const double micro_batch_us = stage.forward_us + stage.backward_us + stage.weight_gradient_us;
    out.stages.push_back({.searched_bytes = searched.bytes[i],
                          .peak_bytes = stage.plan.peak_memory_bytes,
                          .busy_us = plan.num_micro_batches * micro_batch_us + stage.apply_us});
  }
  return out;
}

absl::StatusOr<std::vector<double>> PipelinePlanner::LoadOfLayers(int kind) {
  if (const auto known = load_.find(kind); known != load_.end()) return known->second;
  ASSIGN_OR_RETURN(const Step* prepared, PreparedWith(FirstRemat()));
  const Mesh one_device({{"x", 1}});
  ASSIGN_OR_RETURN(const std::unique_ptr<CostModel> cost,
                   MakeCostModel(planning_.cost_model, planning_.HostsOf(kind), one_device));
  ASSIGN_OR_RETURN(const IntraOpResult planned,
                   PlanMesh(*prepared, one_device, *cost, {.method = Method::kData}));
  std::vector<double> load(num_layers());
  const Computation& entry = prepared->module.entry_computation();
  for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
    const StepPart& part = entry.instructions[id].part;
    if (part.layer < 0 || part.phase == Phase::kApply) continue;
    load[part.layer] += planned.stage.ops[id].cost_us;
  }
  return load_[kind] = std::move(load);
}

void PipelinePlanner::ReportProgress(int num_planned, int num_stages) const {
  if (!planning_.on_progress) return;
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
  planning_.on_progress(fmt::format("{} of {} stages", num_planned, num_stages), elapsed.count(),
                        1);
}

absl::Status PipelinePlanner::PlanStages(const Assignment& assignment,
                                         const std::vector<std::optional<int64_t>>& limits,
                                         PlannedPipeline& out) {
  const auto num_stages = static_cast<int>(out.staged.stages.size());
  std::vector<absl::StatusOr<minka::Plan>> plans(num_stages, absl::UnknownError("not searched"));
  std::mutex mutex;
  int num_planned = 0;
  const auto plan_stages_of = [&](int mesh) {
    std::vector<Mesh> shapes = assignment.meshes.shapes[mesh];
    for (int stage = 0; stage < num_stages; ++stage) {
      if (out.schedule.MeshOf(stage) != mesh) continue;
      if (absl::Status status = CheckNotCancelled(planning_); !status.ok()) {
        plans[stage] = std::move(status);
        return;
      }
      const std::optional<int64_t> limit = limits.empty() ? std::nullopt : limits[stage];
      plans[stage] = stages_.PlanOn(
          out.staged.stages[stage].step,
          {.meshes = shapes,
           .kind = assignment.meshes.kinds[mesh],
           .search = SearchOf(stage, limit, out),
           .memory_price = assignment.memory_prices.empty() ? 0 : assignment.memory_prices[stage],
           // What its layers were planned with, if they were.
           .tries_unusual = assignment.memory_prices.empty()});
      if (!plans[stage].ok()) return;
      shapes = {plans[stage]->stage.mesh};  // the next stages have it, too
      const std::lock_guard lock(mutex);
      ReportProgress(++num_planned, num_stages);
    }
  };
  const std::vector<int> order = DifferentFirst(assignment, out);
  ForEachInParallel(static_cast<int>(order.size()), NumSearchThreads(planning_.search),
                    [&](int number) { plan_stages_of(order[number]); });
  for (int stage = 0; stage < num_stages; ++stage) {
    absl::StatusOr<minka::Plan>& plan = plans[stage];
    if (!plan.ok()) return WithContext(plan.status(), fmt::format("stage {}", stage));
    for (size_t layer = 0; layer < out.plan.stage_of_layer.size(); ++layer) {
      if (out.plan.stage_of_layer[layer] == stage)
        plan->stage.layers.push_back(static_cast<int>(layer));
    }
    const int mesh = out.schedule.MeshOf(stage);
    PipelineStagePlan& planned = out.plan.stages.emplace_back(
        PipelineStagePlan{.plan = *std::move(plan), .mesh_number = mesh});
    if (planning_.num_kinds() == 1) continue;
    planned.kind = assignment.meshes.kinds[mesh];
    planned.device = planning_.HostsOf(planned.kind).device.name;
  }
  return absl::OkStatus();
}

SearchOptions PipelinePlanner::SearchOf(int stage, std::optional<int64_t> limit,
                                        const PlannedPipeline& pipeline) const {
  SearchOptions search = planning_.search;
  search.memory_limit_bytes = limit;
  search.work_limit /= pipeline.schedule.num_stages() * (limit ? kLimitedSearches : 1);
  search.pins = PinsOfStage(search.pins, pipeline.prepared, pipeline.staged.stages[stage].step);
  const std::vector<StageSearchOptions>& of_stages = planning_.pipeline->stage_search;
  if (of_stages.empty()) return search;
  std::ranges::copy(of_stages[stage].pins, std::back_inserter(search.pins));
  if (of_stages[stage].limits) search.limits = *of_stages[stage].limits;
  return search;
}

absl::Status PipelinePlanner::Describe(PlannedPipeline& out) const {
  PipelinePlan& plan = out.plan;
  plan.module_hash = HashText(ModuleHash(out.prepared.module));
  plan.options = planning_.options;
  plan.cost_model = plan.stages.front().plan.cost_model;
  plan.num_micro_batches = out.schedule.shape.num_micro_batches;
  plan.per_micro_batch = plan.num_micro_batches > 1 && planning_.micro_batches.per_micro_batch;
  plan.narrow_sums = plan.num_micro_batches > 1 && planning_.micro_batches.narrow_sums;
  plan.schedule = out.schedule.name;
  plan.layers = layers_;
  return PredictPipeline(planning_, out);
}

}  // namespace minka
