// PlanPipeline: which layers are a stage, and how each runs on its mesh.
#include <algorithm>
#include <chrono>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "minka/base/hash.h"
#include "minka/base/status.h"
#include "minka/driver/mesh_shapes.h"
#include "minka/driver/pipeline.h"
#include "minka/driver/predict_pipeline.h"
#include "minka/driver/prepare.h"
#include "minka/driver/prepared_steps.h"
#include "minka/planner/inter_op/balance_stages.h"
#include "minka/planner/inter_op/fit_stages.h"
#include "minka/planner/intra_op/describe.h"

namespace minka {
namespace {

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

// Which layers run where, before anything is searched.
struct Assignment {
  Schedule schedule;
  std::vector<int> stage_of_layer;
  std::vector<std::vector<Mesh>> shapes;  // that each mesh may have
};

class PipelinePlanner {
 public:
  // `asked_layers`: by which the step was simplified.
  PipelinePlanner(const PlanRequest& planning, Step simplified, int asked_layers)
      : planning_(planning),
        steps_(std::move(simplified), planning.micro_batches),
        asked_layers_(asked_layers) {}

  int num_layers() const { return steps_.simplified().num_layers.value_or(0); }
  const std::string& name() const { return steps_.simplified().module.name; }

  absl::Status CheckStages(int num_stages) const {
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
        name(), num_layers(), asked_layers_ > 0 ? "" : " (--pipeline-layers N parts it into N)");
  }

  // Of so many stages on meshes of the shapes given by mesh. Without stage_of_layer, layers are
  // spread evenly.
  absl::StatusOr<Assignment> Assign(std::vector<int> stage_of_layer, int num_stages,
                                    std::vector<std::vector<Mesh>> shapes) {
    const auto num_meshes = static_cast<int>(shapes.size());
    if (num_stages < 1 || num_stages % num_meshes != 0) {
      return InvalidArgument("{} stages do not go evenly on {} meshes", num_stages, num_meshes);
    }
    ASSIGN_OR_RETURN(const Step* prepared, steps_.With(FirstRemat()));
    Assignment out{.shapes = std::move(shapes)};
    ASSIGN_OR_RETURN(out.schedule, ScheduleFor(*prepared, planning_.pipeline->schedule,
                                               {.num_meshes = num_meshes,
                                                .num_micro_batches = static_cast<int>(
                                                    planning_.micro_batches.num_micro_batches),
                                                .stages_per_mesh = num_stages / num_meshes}));
    if (stage_of_layer.empty()) {
      std::vector<int> sizes;
      for (int stage = 0; stage < num_stages; ++stage) {
        const Mesh& mesh = out.shapes[out.schedule.MeshOf(stage)].front();
        sizes.push_back(static_cast<int>(mesh.num_devices()));
      }
      ASSIGN_OR_RETURN(const std::vector<double> load, LoadOfLayers());
      stage_of_layer = BalanceLayers(load, sizes);
    }
    out.stage_of_layer = std::move(stage_of_layer);
    return out;
  }

  // As fast as it gets, whatever memory it needs.
  absl::StatusOr<PlannedPipeline> Plan(const Assignment& assignment) {
    ASSIGN_OR_RETURN(Searched searched, PlanAs(assignment, {.remat = FirstRemat()}));
    return std::move(searched.pipeline);
  }

  // The fastest found that fits into the memory limit; if none does, the one that needs least.
  absl::StatusOr<PlannedPipeline> PlanWithin(const Assignment& assignment) {
    if (!planning_.search.memory_limit_bytes) return Plan(assignment);
    FitOptions options{.limit_bytes = *planning_.search.memory_limit_bytes,
                       .stage_of_layer = assignment.stage_of_layer,
                       .candidates = planning_.remat ? RematChoice() : steps_.RematCandidates()};
    for (int stage = 0; stage < assignment.schedule.num_stages(); ++stage) {
      options.mesh_of_stage.push_back(assignment.schedule.MeshOf(stage));
    }
    const auto plan = [&](const StageDemands& demands) -> absl::StatusOr<DemandedPipeline> {
      ASSIGN_OR_RETURN(const Searched searched, PlanAs(assignment, demands));
      return Summary(searched);
    };
    ASSIGN_OR_RETURN(const StageDemands demands, FitStages({.remat = FirstRemat()}, options, plan));
    ASSIGN_OR_RETURN(Searched searched, PlanAs(assignment, demands));
    return std::move(searched.pipeline);
  }

  // What the forward and backward pass of each layer take on one device.
  absl::StatusOr<std::vector<double>> LoadOfLayers() {
    if (load_.empty()) RETURN_IF_ERROR(FindLoadOfLayers());
    return load_;
  }

 private:
  struct Searched {
    PlannedPipeline pipeline;
    std::vector<int64_t> bytes;  // by stage, that its search takes it to need
  };

  RematChoice FirstRemat() const { return planning_.remat.value_or(RematChoice()); }

  absl::StatusOr<Searched> PlanAs(const Assignment& assignment, const StageDemands& demands) {
    ASSIGN_OR_RETURN(const Step* prepared, steps_.With(demands.remat));
    Searched out{.pipeline = {.prepared = *prepared, .schedule = assignment.schedule}};
    PlannedPipeline& pipeline = out.pipeline;
    pipeline.plan.stage_of_layer = assignment.stage_of_layer;
    pipeline.plan.remat = demands.remat;
    ASSIGN_OR_RETURN(
        pipeline.staged,
        CutIntoStages(*prepared, {.stage_of_layer = assignment.stage_of_layer,
                                  .splits_backward = assignment.schedule.splits_backward}));
    RETURN_IF_ERROR(PlanStages(assignment.shapes, demands.limit_bytes, pipeline));
    for (const PipelineStagePlan& stage : pipeline.plan.stages) {
      out.bytes.push_back(stage.plan.peak_memory_bytes);
    }
    RETURN_IF_ERROR(Describe(pipeline));
    return out;
  }

  static DemandedPipeline Summary(const Searched& searched) {
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

  absl::Status FindLoadOfLayers() {
    ASSIGN_OR_RETURN(const Step* prepared, steps_.With(FirstRemat()));
    const Mesh one_device({{"x", 1}});
    ASSIGN_OR_RETURN(const std::unique_ptr<CostModel> cost,
                     MakeCostModel(planning_.cost_model, planning_.cluster, one_device));
    ASSIGN_OR_RETURN(const IntraOpResult planned,
                     PlanMesh(*prepared, one_device, *cost, {.method = Method::kData}));
    load_.resize(num_layers());
    const Computation& entry = prepared->module.entry_computation();
    for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
      const StepPart& part = entry.instructions[id].part;
      if (part.layer < 0 || part.phase == Phase::kApply) continue;
      load_[part.layer] += planned.stage.ops[id].cost_us;
    }
    return absl::OkStatus();
  }

  void ReportProgress(int stage, int num_stages) const {
    if (!planning_.on_progress) return;
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
    planning_.on_progress(fmt::format("stage {} of {}", stage + 1, num_stages), elapsed.count(), 1);
  }

  absl::Status PlanStages(const std::vector<std::vector<Mesh>>& shapes,
                          const std::vector<std::optional<int64_t>>& limits, PlannedPipeline& out) {
    std::vector<std::vector<Mesh>> left = shapes;  // of each mesh the one that its first stage took
    for (int stage = 0; stage < out.schedule.num_stages(); ++stage) {
      const int number = out.schedule.MeshOf(stage);
      RETURN_IF_ERROR(CheckNotCancelled(planning_));
      ReportProgress(stage, out.schedule.num_stages());
      const std::optional<int64_t> limit = limits.empty() ? std::nullopt : limits[stage];
      absl::StatusOr<minka::Plan> best =
          PlanStage(out.staged.stages[stage].step, left[number], out.schedule.num_stages(),
                    SearchOf(stage, limit));
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

  // Under limits stages are searched again and again, and seldom to the end: about so often.
  static constexpr int64_t kLimitedSearches = 12;

  // What the search found of a stage: its fastest mesh and how it runs there.
  struct SearchedStage {
    Mesh mesh;
    IntraOpResult result;
  };

  SearchOptions SearchOf(int stage, std::optional<int64_t> limit) const {
    SearchOptions search = planning_.search;
    search.memory_limit_bytes = limit;
    const std::vector<std::vector<std::string>>& pins = planning_.pipeline->stage_pins;
    if (!pins.empty()) std::ranges::copy(pins[stage], std::back_inserter(search.pins));
    return search;
  }

  absl::StatusOr<minka::Plan> PlanStage(const Step& step, const std::vector<Mesh>& candidates,
                                        int num_stages, const SearchOptions& search) {
    const uint64_t key = KeyOf(step, candidates, search);
    auto found = searched_.find(key);
    if (found == searched_.end()) {
      ASSIGN_OR_RETURN(SearchedStage searched, SearchStage(step, candidates, num_stages, search));
      found = searched_.emplace(key, std::move(searched)).first;
    }
    const SearchedStage& searched = found->second;
    ASSIGN_OR_RETURN(const std::unique_ptr<CostModel> cost, CostModelFor(searched.mesh));
    return PlanOf(step, planning_.methods.front(), *cost, searched.result);
  }

  // Equal for stages of equal layers: what a search looks at.
  static uint64_t KeyOf(const Step& step, const std::vector<Mesh>& candidates,
                        const SearchOptions& search) {
    std::string text = fmt::to_string(ModuleHash(step.module));
    for (const Instruction& instruction : step.module.entry_computation().instructions) {
      text += static_cast<char>('0' + static_cast<int>(instruction.part.phase));
    }
    for (const ParameterInfo& info : step.parameters) {
      text += fmt::format(" {}:{}:{}", RoleName(info.role), info.state_result, info.batch_dim);
      if (!search.pins.empty()) text += info.name;
    }
    for (const std::string& pin : search.pins) text += " " + pin;
    if (search.memory_limit_bytes) text += fmt::format(" <{}", *search.memory_limit_bytes);
    for (const Mesh& mesh : candidates) text += " " + mesh.ToString();
    return StableHash(text);
  }

  absl::StatusOr<std::unique_ptr<CostModel>> CostModelFor(const Mesh& mesh) const {
    return MakeCostModel(planning_.cost_model, planning_.cluster, mesh);
  }

  absl::StatusOr<SearchedStage> SearchStage(const Step& step, const std::vector<Mesh>& candidates,
                                            int num_stages, const SearchOptions& search) const {
    std::optional<SearchedStage> best;
    absl::Status refusal;
    for (const Mesh& mesh : candidates) {
      ASSIGN_OR_RETURN(const std::unique_ptr<CostModel> cost, CostModelFor(mesh));
      WorkBudget budget(search.work_limit / static_cast<int64_t>(num_stages * candidates.size()) /
                        (search.memory_limit_bytes ? kLimitedSearches : 1));
      IntraOpOptions options{.method = planning_.methods.front(),
                             .search = search,
                             .budget = &budget,
                             .cancelled = planning_.cancelled};
      if (best) options.cutoff = best->result.objective;
      SearchResult<IntraOpResult> planned = PlanMesh(step, mesh, *cost, options);
      if (!planned.ok()) {
        if (refusal.ok()) refusal = planned.status().why;
        continue;
      }
      if (best && planned->stage.step_time_us >= best->result.stage.step_time_us) continue;
      best = SearchedStage{mesh, *std::move(planned)};
    }
    if (!best) return refusal;
    return *std::move(best);
  }

  absl::Status Describe(PlannedPipeline& out) const {
    PipelinePlan& plan = out.plan;
    plan.module_hash = HashText(ModuleHash(out.prepared.module));
    plan.options = planning_.options;
    plan.cost_model = plan.stages.front().plan.cost_model;
    plan.num_micro_batches = out.schedule.shape.num_micro_batches;
    plan.per_micro_batch = plan.num_micro_batches > 1 && planning_.micro_batches.per_micro_batch;
    plan.schedule = out.schedule.name;
    plan.num_layers = asked_layers_;
    return PredictPipeline(planning_.cluster, out);
  }

  const PlanRequest& planning_;
  PreparedSteps steps_;
  const int asked_layers_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::vector<double> load_;                    // by layer
  std::map<uint64_t, SearchedStage> searched_;  // by KeyOf
};

// By mesh, the shapes it may have.
absl::StatusOr<std::vector<std::vector<Mesh>>> ShapesOf(const Cluster& cluster,
                                                        const std::vector<int>& submeshes) {
  std::vector<std::vector<Mesh>> shapes;
  for (const int size : submeshes) {
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

// Finds the submeshes of stages that are not given any.
class SubmeshSearch {
 public:
  SubmeshSearch(PipelinePlanner& planner, const PlanRequest& request)
      : planner_(planner), request_(request), cluster_(request.cluster) {}

  // num_stages 0 or less: of every number, two at least.
  absl::StatusOr<PlannedPipeline> Run(int num_stages) {
    RETURN_IF_ERROR(planner_.CheckStages(num_stages > 0 ? num_stages : 2));
    AddEqual(num_stages);
    const size_t num_equal = candidates_.size();
    if (request_.pipeline->stage_of_layer.empty()) RETURN_IF_ERROR(AddUnequal(num_stages));
    if (candidates_.empty() && num_stages > 0) {
      return InvalidArgument("{} devices do not go evenly on {} stages; name the submeshes",
                             cluster_.num_devices(), num_stages);
    }
    if (candidates_.empty()) {
      return InvalidArgument("{} devices do not go evenly on 2 to {} stages; name the submeshes",
                             cluster_.num_devices(), planner_.num_layers());
    }
    return Fastest(num_equal);
  }

 private:
  // So many unequal ones are planned beside the equal ones.
  static constexpr size_t kMostUnequal = 3;

  void AddEqual(int num_stages) {
    const int num_devices = cluster_.num_devices();
    const int first = num_stages > 0 ? num_stages : 2;
    const int last = num_stages > 0 ? num_stages : std::min(num_devices, planner_.num_layers());
    for (int n = first; n <= last; ++n) {
      if (num_devices % n != 0 || !SubmeshOf(cluster_, num_devices / n).ok()) continue;
      candidates_.emplace_back(n, num_devices / n);
    }
  }

  // Those by which the work is spread better than by all equal ones.
  absl::Status AddUnequal(int num_stages) {
    ASSIGN_OR_RETURN(const std::vector<double> load, planner_.LoadOfLayers());
    const auto estimate = [&](const std::vector<int>& sizes) {
      return EstimateStepTime(load, sizes, request_.micro_batches.num_micro_batches);
    };
    std::optional<double> equal;
    for (const std::vector<int>& sizes : candidates_) {
      equal = std::min(equal.value_or(estimate(sizes)), estimate(sizes));
    }
    std::vector<std::pair<double, std::vector<int>>> unequal;
    for (auto& [number, sizes] : BalanceSubmeshes(load, cluster_)) {
      if (num_stages > 0 && number != num_stages) continue;
      const double time = estimate(sizes);
      if (!equal || time < *equal) unequal.emplace_back(time, sizes);
    }
    std::ranges::sort(unequal);
    if (unequal.size() > kMostUnequal) unequal.resize(kMostUnequal);
    for (auto& [time, sizes] : unequal) candidates_.push_back(std::move(sizes));
    return absl::OkStatus();
  }

  // Of the candidates, of which those of equal sizes are first: errors of others say less.
  absl::StatusOr<PlannedPipeline> Fastest(size_t num_equal) {
    std::vector<PlannedPipeline> planned;
    absl::Status refusal;
    for (size_t i = 0; i < candidates_.size(); ++i) {
      absl::StatusOr<PlannedPipeline> pipeline = Plan(candidates_[i]);
      RETURN_IF_ERROR(CheckNotCancelled(request_));
      if (pipeline.ok()) {
        planned.push_back(*std::move(pipeline));
      } else if (refusal.ok() && (i < num_equal || num_equal == 0)) {
        refusal = pipeline.status();
      }
    }
    if (planned.empty()) return refusal;
    std::ranges::stable_sort(planned, {}, StepTime);
    return FastestThatFits(std::move(planned));
  }

  // What is made to fit is hardly faster than it was: candidates that were slower than the best so
  // far are not tried.
  absl::StatusOr<PlannedPipeline> FastestThatFits(std::vector<PlannedPipeline> planned) {
    const std::optional<int64_t> limit = request_.search.memory_limit_bytes;
    const auto fits = [&](const PlannedPipeline& pipeline) {
      return !limit || pipeline.plan.peak_memory_bytes <= *limit;
    };
    std::optional<PlannedPipeline> best;
    for (PlannedPipeline& pipeline : planned) {
      if (best && fits(*best) && StepTime(*best) <= StepTime(pipeline)) break;
      if (!fits(pipeline)) {
        ASSIGN_OR_RETURN(const Assignment assignment, AssignmentOf(pipeline.num_devices()));
        ASSIGN_OR_RETURN(pipeline, planner_.PlanWithin(assignment));
      }
      if (!best || IsBetter(pipeline, *best, fits)) best = std::move(pipeline);
    }
    return *std::move(best);
  }

  template <typename Fits>
  static bool IsBetter(const PlannedPipeline& one, const PlannedPipeline& other, Fits fits) {
    if (fits(one) != fits(other)) return fits(one);
    if (fits(one)) return StepTime(one) < StepTime(other);
    return one.plan.peak_memory_bytes < other.plan.peak_memory_bytes;
  }

  static double StepTime(const PlannedPipeline& planned) { return planned.plan.step_time_us; }

  absl::StatusOr<Assignment> AssignmentOf(const std::vector<int>& sizes) {
    ASSIGN_OR_RETURN(auto shapes, ShapesOf(cluster_, sizes));
    return planner_.Assign(request_.pipeline->stage_of_layer, static_cast<int>(sizes.size()),
                           std::move(shapes));
  }

  absl::StatusOr<PlannedPipeline> Plan(const std::vector<int>& sizes) {
    ASSIGN_OR_RETURN(const Assignment assignment, AssignmentOf(sizes));
    return planner_.Plan(assignment);
  }

  PipelinePlanner& planner_;
  const PlanRequest& request_;
  const Cluster& cluster_;
  std::vector<std::vector<int>> candidates_;  // devices of each mesh
};

// What the options say of the meshes; empty: nothing.
absl::StatusOr<std::vector<std::vector<Mesh>>> GivenShapes(const PlanRequest& request) {
  const PipelineOptions& options = *request.pipeline;
  std::vector<std::vector<Mesh>> shapes;
  for (const Mesh& mesh : options.meshes) shapes.push_back({mesh});
  if (shapes.empty()) {
    ASSIGN_OR_RETURN(shapes, ShapesOf(request.cluster, options.submeshes));
  }
  if (NumDevices(shapes) <= request.cluster.num_devices()) return shapes;
  return InvalidArgument("the stages' meshes have {} devices, cluster {} has {}",
                         NumDevices(shapes), request.cluster.name, request.cluster.num_devices());
}

absl::StatusOr<PlannedPipeline> SearchStages(PipelinePlanner& planner, const PlanRequest& request) {
  const PipelineOptions& options = *request.pipeline;
  int num_stages = options.num_stages;
  if (!options.stage_of_layer.empty()) num_stages = options.stage_of_layer.back() + 1;
  ASSIGN_OR_RETURN(std::vector<std::vector<Mesh>> shapes, GivenShapes(request));
  if (shapes.empty()) return SubmeshSearch(planner, request).Run(num_stages);
  if (num_stages <= 0) num_stages = static_cast<int>(shapes.size());
  RETURN_IF_ERROR(planner.CheckStages(num_stages));
  ASSIGN_OR_RETURN(const Assignment assignment,
                   planner.Assign(options.stage_of_layer, num_stages, std::move(shapes)));
  return planner.PlanWithin(assignment);
}

// How many there shall be where the step has no boundaries; 0: nothing says how many stages.
int LayersFor(const PipelineOptions& options) {
  if (!options.stage_of_layer.empty()) return static_cast<int>(options.stage_of_layer.size());
  const size_t num_meshes = std::max(options.meshes.size(), options.submeshes.size());
  return kLayersPerStage *
         (options.num_stages > 0 ? options.num_stages : static_cast<int>(num_meshes));
}

struct StepInLayers {
  Step step;           // simplified
  int num_layers = 0;  // as asked for; 0: by boundaries
};

absl::StatusOr<StepInLayers> FindLayersOf(const Step& step, const PipelineOptions& options) {
  StepInLayers found{.num_layers = options.num_layers};
  ASSIGN_OR_RETURN(found.step, Simplify(step, found.num_layers));
  if (found.step.num_layers == 0 && LayersFor(options) > 0) {
    ASSIGN_OR_RETURN(found.step, Simplify(step, LayersFor(options)));
    found.num_layers = *found.step.num_layers;
  }
  RETURN_IF_ERROR(CheckLayers(found.step, std::max(options.num_layers, found.num_layers)));
  return found;
}

}  // namespace

absl::StatusOr<PlannedPipeline> PlanPipeline(const Step& step, const PlanRequest& request) {
  const auto start = std::chrono::steady_clock::now();
  ASSIGN_OR_RETURN(StepInLayers in_layers, FindLayersOf(step, *request.pipeline));
  PipelinePlanner planner(request, std::move(in_layers.step), in_layers.num_layers);
  ASSIGN_OR_RETURN(PlannedPipeline planned, SearchStages(planner, request));
  planned.plan.search_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  RETURN_IF_ERROR(CheckMemory(planned.plan, request.search.memory_limit_bytes));
  return planned;
}

}  // namespace minka
