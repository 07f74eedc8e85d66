#include "minka/driver/submesh_search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "minka/base/status.h"
#include "minka/driver/mesh_shapes.h"
#include "minka/driver/predict_pipeline.h"
#include "minka/driver/schedule_search.h"
#include "minka/planner/inter_op/stage_bound.h"
#include "minka/planner/inter_op/stage_search.h"
#include "minka/report/format.h"
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

// Sums of so many doubles may differ by so much of themselves.
constexpr double kRounding = 1e-9;
// What fits and is slower than the fastest without a limit by no more than this will do.
constexpr double kNear = 1.02;
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

// Those on which all layers together are fastest, see kLeastSavingShapes.
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
      if (rank < kLeastSavingShapes || meshes[rank].first <= kNear * meshes.front().first)
        fastest.push_back(std::move(meshes[rank].second));
    }
  }
  return fastest;
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
  ASSIGN_OR_RETURN(out.input.in_flight,
                   planner.InFlight(std::min(planner.num_layers(), num_devices)));
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

StageCorrector CorrectorOf(const LayerWays& found) {
  std::vector<double> memory_prices;
  for (const MeshOfWay& way : found.meshes) memory_prices.push_back(way.memory_price);
  return {found.ways, std::move(memory_prices)};
}

class SubmeshSearch {
 public:
  SubmeshSearch(PipelinePlanner& planner, const PlanRequest& request, LayersOnMeshes layers)
      : planner_(planner),
        request_(request),
        cluster_(request.cluster),
        meshes_(std::move(layers.meshes)),
        found_(std::move(layers.ways)),
        first_schedule_(std::move(layers.schedule)),
        first_input_(std::move(layers.input)),
        input_(first_input_),
        free_(std::move(layers.free)),
        corrector_(CorrectorOf(found_)),
        corrector_of_first_schedule_(corrector_) {}

  absl::StatusOr<FittedPipeline> Run() && {
    fastest_us_ = free_.front().step_time_us;
    const std::optional<int64_t> limit = request_.search.memory_limit_bytes;
    const bool may_fit =
        !limit || free_.front().peak_bytes() < kHopeless * static_cast<double>(*limit);
    if (may_fit) {
      RETURN_IF_ERROR(PlanFastest(free_));
      if (!std::isinf(unlimited_us_)) fastest_us_ = std::max(fastest_us_, unlimited_us_);
    }
    if (limit && !is_left_to_others_ && !IsNearFastest()) RETURN_IF_ERROR(FindFastestThatFits());
    if (request_.pipeline->schedule == kChooseSchedule) RETURN_IF_ERROR(TryOtherSchedules());
    if (is_left_to_others_ && !(best_ && IsWorthwhile(best_plan().step_time_us, by_first_us_)))
      RETURN_IF_ERROR(ReturnToFirstSchedule());
    return Best();
  }

 private:
  // So many of what the search finds are planned, one of a number of stages.
  static constexpr int kMostPlanned = 3;
  // Under a limit, where each one planned corrects what the next is searched by.
  static constexpr int kMostCorrected = 6;
  // What is estimated to need so many times the limit is not planned.
  static constexpr double kHopeless = 1.1;
  // So many numbers of stages are assumed.
  static constexpr int kMostStageCounts = 4;
  // Estimates need not be nearer.
  static constexpr double kRoomiestStep = 1.02;
  // What another schedule is estimated to take, of what the first one's best takes or is estimated
  // to, so that this one is left: planning more by the first made its best up to 1 % faster, and
  // takes up to 2 % more than estimated.
  static constexpr double kClearlyFaster = 0.97;

  struct OtherSchedule {
    std::string name;
    StageSearchInput input;
    // Of the fastest pipeline that is estimated to fit; infinite: none is.
    double step_time_us = std::numeric_limits<double>::infinity();
    double promised_us = 0;  // of the best pipeline of the first schedule, simulated
  };

  absl::Status PlanFastest(const std::vector<FoundPipeline>& found) {
    int num_planned = 0;
    absl::Status refusal;
    for (const FoundPipeline& pipeline : found) {
      if (IsSlower(pipeline) || num_planned == kMostPlanned) {
        NoteNotPlanned(pipeline);
        continue;
      }
      if (IsLeftToOtherSchedules(pipeline)) return absl::OkStatus();
      const absl::Status planned = Plan(pipeline, Reshaping::kLimits);
      RETURN_IF_ERROR(CheckNotCancelled(request_));
      if (!planned.ok()) {
        if (refusal.ok()) refusal = planned;
        continue;
      }
      ++num_planned;
    }
    return num_planned > 0 || best_ ? absl::OkStatus() : refusal;
  }

  // Plans what is estimated to be the fastest that fits, and searches again with what its plan
  // says, until nothing is estimated to be faster than what was planned. A refusal where nothing
  // could be.
  absl::Status PlanFastestThatFit() {
    absl::Status refusal;
    std::vector<FoundPipeline> found;
    for (int i = 0; i < kMostCorrected; ++i) {
      found = Find();
      const auto next = std::ranges::find_if(found, [&](const FoundPipeline& pipeline) {
        return !planned_.contains(StagesOf(pipeline));
      });
      if (next == found.end() || IsSlower(*next) || IsLeftToOtherSchedules(*next)) break;
      const absl::Status planned = Plan(*next, Reshaping::kNothing);
      RETURN_IF_ERROR(CheckNotCancelled(request_));
      if (!planned.ok() && refusal.ok()) refusal = planned;
    }
    for (const FoundPipeline& pipeline : found) NoteNotPlanned(pipeline);
    return best_ ? absl::OkStatus() : refusal;
  }

  absl::Status Plan(const FoundPipeline& found, Reshaping reshaping) {
    planned_.insert(StagesOf(found));
    ASSIGN_OR_RETURN(const Assignment assignment, AssignmentOf(found));
    absl::StatusOr<FittedPipeline> planned =
        planner_.PlanWithin(assignment, planner_.DemandsOf(found), reshaping);
    if (!planned.ok()) {
      tried_.push_back({.num_devices = SizesOf(found), .why_not = Message(planned.status())});
      return planned.status();
    }
    unlimited_us_ = std::min(unlimited_us_, planned->unlimited_us);
    // Estimates know nothing of cores that meshes share: what they miss by says nothing of others.
    if (!first_input_.meshes_share_cores)
      missed_ = std::max(1.0, planned->pipeline.plan.step_time_us / found.step_time_us);
    CorrectEstimates(found, planned->pipeline.plan);
    Take(*std::move(planned));
    return absl::OkStatus();
  }

  static std::vector<std::array<int, 4>> StagesOf(const FoundPipeline& found) {
    std::vector<std::array<int, 4>> out;
    for (const FoundStage& stage : found.stages)
      out.push_back({stage.begin_layer, stage.end_layer, stage.way, stage.num_recomputed});
    return out;
  }

  std::vector<int> SizesOf(const FoundPipeline& found) const {
    std::vector<int> sizes;
    for (const FoundStage& stage : found.stages)
      sizes.push_back(found_.ways[stage.way].num_devices);
    return sizes;
  }

  void NoteNotPlanned(const FoundPipeline& found) {
    tried_.push_back({.num_devices = SizesOf(found), .why_not = NotPlanned(found.step_time_us)});
  }

  void CorrectEstimates(const FoundPipeline& found, const PipelinePlan& plan) {
    std::vector<StageFigures> planned;
    for (const PipelineStagePlan& stage : plan.stages) {
      const double micro_batch_us = stage.forward_us + stage.backward_us + stage.weight_gradient_us;
      planned.push_back(
          {.times = {micro_batch_us, stage.apply_us}, .bytes = stage.plan.peak_memory_bytes});
    }
    corrector_.Correct(found.stages, planned);
  }

  void Take(FittedPipeline planned) {
    Note(planned.pipeline);
    NoteSchedule(planned.pipeline);
    const PipelinePlan& plan = planned.pipeline.plan;
    if (!FitsIn(plan.peak_memory_bytes)) return;
    if (best_ && !IsTakenInstead(planned.pipeline)) return;
    best_ = std::move(planned);
    input_of_best_ = input_;
  }

  // Of the best pipeline so far: where the first schedule takes as long as others, that is taken.
  bool IsTakenInstead(const PlannedPipeline& planned) const {
    const double us = planned.plan.step_time_us, best_us = best_plan().step_time_us;
    if (planned.schedule.name == best_->pipeline.schedule.name) return us < best_us;
    return schedule_.empty() ? !IsWorthwhile(best_us, us) : IsWorthwhile(us, best_us);
  }

  // Is another schedule estimated to be so much faster than the best of the first one, or than the
  // next that would be planned, that this is not looked for any longer?
  bool IsLeftToOtherSchedules(const FoundPipeline& next) {
    if (request_.pipeline->schedule != kChooseSchedule || !schedule_.empty()) return false;
    if (is_left_to_others_ || has_returned_) return is_left_to_others_;
    if (!best_ && first_input_.meshes_share_cores) return false;
    by_first_us_ = best_ ? best_plan().step_time_us : next.step_time_us;
    absl::StatusOr<std::vector<OtherSchedule>> others = EstimateOtherSchedules(next);
    if (!others.ok()) return false;
    is_left_to_others_ = std::ranges::any_of(*others, [&](const OtherSchedule& other) {
      return std::max(other.step_time_us, other.promised_us) < kClearlyFaster * by_first_us_;
    });
    others_ = *std::move(others);
    return is_left_to_others_;
  }

  // Where none of them came to that.
  absl::Status ReturnToFirstSchedule() {
    is_left_to_others_ = false;
    has_returned_ = true;
    schedule_.clear();
    row_ = 0;
    missed_ = 1;
    input_ = first_input_;
    corrector_ = corrector_of_first_schedule_;
    planned_ = planned_by_first_schedule_;
    return best_ || !request_.search.memory_limit_bytes ? PlanFastestThatFit()
                                                        : FindFastestThatFits();
  }

  // Searches under the limit, first with the ways at hand: often others than the fastest ones fit
  // and are hardly slower. Where nothing that is estimated to fit does, stages of what is fastest
  // are shaped one by one, then those of what is estimated to need least. What the last says is
  // needed is enough: it is tried under every limit.
  absl::Status FindFastestThatFits() {
    ASSIGN_OR_RETURN(Assignment nearest, AssignmentOf(free_.front()));
    std::vector<FoundPipeline> found = Find();
    if (!found.empty() && found.front().step_time_us <= kNear * fastest_us_) {
      // What cannot be planned so may be with ways that save memory.
      const absl::Status planned = PlanFastestThatFit();
      RETURN_IF_ERROR(CheckNotCancelled(request_));
      if (is_left_to_others_ || (planned.ok() && IsNearFastest())) return absl::OkStatus();
    }
    SaveMemory();
    RETURN_IF_ERROR(CheckNotCancelled(request_));
    RETURN_IF_ERROR(PlanFastestThatFit());
    if (best_ || is_left_to_others_) return absl::OkStatus();
    found = Find();
    if (!found.empty()) {
      ASSIGN_OR_RETURN(nearest, AssignmentOf(found.front()));
    }
    std::vector<Assignment> assignments = {std::move(nearest)};
    if (const std::optional<FoundPipeline> roomiest = Roomiest()) {
      ASSIGN_OR_RETURN(assignments.emplace_back(), AssignmentOf(*roomiest));
    }
    for (const Assignment& assignment : assignments) {
      ASSIGN_OR_RETURN(
          FittedPipeline shaped,
          planner_.PlanWithin(assignment, planner_.FirstDemands(), Reshaping::kEverything));
      Note(shaped.pipeline);
      best_ = std::move(shaped);
      input_of_best_ = input_;
      if (FitsIn(best_plan().peak_memory_bytes)) break;
    }
    return absl::OkStatus();
  }

  // By the ways at hand, and by what they would make of the best pipeline, if there is one; the
  // fastest first. None for a pipeline of one stage, or that trains nothing. `like`: one of the
  // first schedule, where there is no best.
  absl::StatusOr<std::vector<OtherSchedule>> EstimateOtherSchedules(const FoundPipeline& like) {
    std::vector<SchedulePromise> promises;
    if (best_) {
      ASSIGN_OR_RETURN(promises, OtherSchedules(planner_, *best_));
    } else {
      ASSIGN_OR_RETURN(const Assignment assignment, AssignmentOf(like));
      best_by_schedule_[0].name = assignment.schedule.name;
      for (Assignment& other : ByOtherSchedules(planner_, assignment))
        promises.push_back({.assignment = std::move(other)});
    }
    std::vector<OtherSchedule> out;
    for (const auto& [by_other, promised_us] : promises) {
      OtherSchedule& other =
          out.emplace_back(OtherSchedule{.name = by_other.schedule.name, .input = first_input_});
      ASSIGN_OR_RETURN(other.input.in_flight, InFlight(other.name, by_other.schedule.num_stages()));
      other.input.splits_backward = by_other.schedule.splits_backward;
      const std::vector<FoundPipeline> found = FindBy(other.name, other.input);
      if (!found.empty()) other.step_time_us = found.front().step_time_us;
      other.promised_us = promised_us;
    }
    std::ranges::stable_sort(out, {}, &OtherSchedule::step_time_us);
    return out;
  }

  // Stages are searched anew by every schedule that is estimated to be faster, the fastest first:
  // it may hold more micro-batches, and so wait less.
  absl::Status TryOtherSchedules() {
    if (best_ && !FitsIn(best_plan().peak_memory_bytes))
      return absl::OkStatus();  // others need no less
    if (!best_) best_by_schedule_[0].why_not = NotPlanned(by_first_us_);
    corrector_of_first_schedule_ = corrector_;
    planned_by_first_schedule_ = planned_;
    if (!is_left_to_others_) {
      ASSIGN_OR_RETURN(others_, EstimateOtherSchedules(/*like=*/{}));
    }
    for (OtherSchedule& other : others_) {
      const double us = std::max(other.step_time_us, other.promised_us);
      schedule_ = other.name;
      corrector_ = corrector_of_first_schedule_;
      row_ = static_cast<int>(best_by_schedule_.size());
      best_by_schedule_.push_back({.name = schedule_,
                                   .why_not = std::isinf(other.step_time_us)
                                                  ? "not planned: estimated to need too much memory"
                                                  : NotPlanned(us)});
      if (!IsWorthwhile(us, best_ ? best_plan().step_time_us : by_first_us_)) continue;
      input_ = std::move(other.input);
      planned_.clear();
      missed_ = 1;
      const absl::Status planned = PlanFastestThatFit();
      RETURN_IF_ERROR(CheckNotCancelled(request_));
      if (!is_left_to_others_) RETURN_IF_ERROR(planned);
    }
    return absl::OkStatus();
  }

  // The best one of the schedule at hand, or that needs least.
  void NoteSchedule(const PlannedPipeline& planned) {
    TriedSchedule& row = best_by_schedule_[row_];
    const auto rank = [&](const PipelineFigures& figures) {
      const bool fits = FitsIn(figures.peak_memory_bytes);
      return std::pair(
          !fits, fits ? figures.step_time_us : static_cast<double>(figures.peak_memory_bytes));
    };
    if (row.figures && rank(*row.figures) <= rank(FiguresOf(planned.plan))) return;
    row = TriedBy(planned, request_.search.memory_limit_bytes);
  }

  // Has the ways that save memory, too; where there are none, what there was.
  void SaveMemory() {
    LayerWays found = planner_.WaysOn(meshes_, FastestMeshes(found_, input_));
    if (found.ways.empty()) return;
    found_ = std::move(found);
    corrector_ = CorrectorOf(found_);
    planned_.clear();
  }

  std::vector<FoundPipeline> Find() {
    return FindBy(schedule_.empty() ? first_schedule_ : schedule_, input_);
  }

  absl::StatusOr<std::vector<int>> InFlight(const std::string& schedule, int num_stages) {
    return planner_.InFlight(static_cast<int>(first_input_.in_flight.size()) - 1, schedule,
                             num_stages);
  }

  // By the schedule under the limit. Where gradients of weights are put off every stage may
  // hold as many micro-batches as the first one, which is known once stages are found: they are
  // searched again until they are as many as was assumed.
  std::vector<FoundPipeline> FindBy(const std::string& schedule, StageSearchInput search) {
    std::vector<FoundPipeline> found = FindUnder(request_.search.memory_limit_bytes, search);
    if (!search.splits_backward) return found;
    for (int i = 0; i < kMostStageCounts && !found.empty(); ++i) {
      const auto in_flight = InFlight(schedule, static_cast<int>(found.front().stages.size()));
      if (!in_flight.ok() || *in_flight == search.in_flight) break;
      search.in_flight = *in_flight;
      found = FindUnder(request_.search.memory_limit_bytes, search);
    }
    // More stages hold more than was assumed.
    const int held = search.InFlight(1);
    if (held < search.num_micro_batches) {
      std::erase_if(found, [held](const FoundPipeline& pipeline) {
        return static_cast<int>(pipeline.stages.size()) > held;
      });
    }
    return found;
  }

  std::vector<FoundPipeline> FindUnder(std::optional<int64_t> limit_bytes) const {
    return FindUnder(limit_bytes, input_);
  }
  std::vector<FoundPipeline> FindUnder(std::optional<int64_t> limit_bytes,
                                       StageSearchInput search) const {
    search.limit_bytes = limit_bytes;
    search.corrections = corrector_.corrections();
    return FindStages(found_.ways, search);
  }

  // Of the ways at hand, whatever is allowed; within kRoomiestStep of the least.
  std::optional<FoundPipeline> Roomiest() const {
    std::vector<FoundPipeline> found = FindUnder(std::nullopt);
    if (found.empty()) return std::nullopt;
    FoundPipeline roomiest = std::move(found.front());
    int64_t too_little = 0;
    while (static_cast<double>(roomiest.peak_bytes()) >
           kRoomiestStep * static_cast<double>(too_little)) {
      const int64_t middle = (too_little + roomiest.peak_bytes()) / 2;
      found = FindUnder(middle);
      if (found.empty()) {
        too_little = middle;
      } else {
        roomiest = std::move(found.front());
      }
    }
    return roomiest;
  }

  // Others of the same schedule are likely to miss their estimates by as much as the last one did.
  bool IsSlower(const FoundPipeline& found) const {
    if (!best_) return false;
    const double us = missed_ * found.step_time_us;
    return schedule_.empty() ? best_plan().step_time_us <= us
                             : !IsWorthwhile(us, best_plan().step_time_us);
  }

  // Precondition: there is one.
  const PipelinePlan& best_plan() const { return best_->pipeline.plan; }
  bool IsNearFastest() const { return best_ && best_plan().step_time_us <= kNear * fastest_us_; }

  absl::StatusOr<FittedPipeline> Best() {
    Rank();
    PlannedPipeline& best = best_->pipeline;
    best.tried = std::move(tried_);
    best.tried_schedules = Shown(std::move(best_by_schedule_), best.schedule.name);
    SetLowerBound(best.plan);
    best.searched = {std::move(found_), std::move(input_of_best_)};
    best.searched->input.limit_bytes = request_.search.memory_limit_bytes;
    return *std::move(best_);
  }

  // By the schedule that stages were first searched by: others that are tried hold no fewer
  // micro-batches.
  void SetLowerBound(PipelinePlan& plan) const {
    StageSearchInput input = first_input_;
    input.limit_bytes = request_.search.memory_limit_bytes;
    const std::optional<double> least_us = LeastStepUs(found_.ways, input);
    if (!least_us || plan.step_time_us <= 0 || !FitsIn(plan.peak_memory_bytes)) return;
    if (*least_us > plan.step_time_us * (1 + kRounding)) {
      plan.notes.push_back(fmt::format(
          "no lower bound is known: by themselves layers are bounded by {}, more than this takes",
          FormatTime(*least_us)));
      return;
    }
    plan.lower_bound_us = std::min(*least_us, plan.step_time_us);
    plan.gap = 1 - *plan.lower_bound_us / plan.step_time_us;
    plan.notes.push_back(fmt::format(
        "lower bound and gap are of pipelines in {} micro-batches of these layers, on the meshes "
        "searched, one stage on each, by what layers are proved to take by themselves: choices "
        "that were not tried, interleaved schedules and what layers of one stage share are left "
        "out",
        plan.num_micro_batches));
  }

  void Note(const PlannedPipeline& planned) {
    tried_.push_back({.num_devices = planned.num_devices(), .figures = FiguresOf(planned.plan)});
  }

  bool FitsIn(int64_t bytes) const {
    const std::optional<int64_t> limit = request_.search.memory_limit_bytes;
    return !limit || bytes <= *limit;
  }

  // The best first, then, one by one, those that fit, that need too much, that were not planned.
  void Rank() {
    bool is_chosen = false;
    for (TriedSubmeshes& tried : tried_) {
      if (!tried.figures) continue;
      const bool fits = FitsIn(tried.figures->peak_memory_bytes);
      tried.chosen = !is_chosen && tried.figures->step_time_us == best_plan().step_time_us &&
                     tried.figures->peak_memory_bytes == best_plan().peak_memory_bytes;
      is_chosen = is_chosen || tried.chosen;
      tried.why_not = tried.chosen ? "" : fits ? "slower" : "needs too much memory";
    }
    std::ranges::stable_sort(tried_, {}, [&](const TriedSubmeshes& tried) {
      const bool fits = tried.figures && FitsIn(tried.figures->peak_memory_bytes);
      return std::tuple(!tried.chosen, !fits, !tried.figures.has_value(),
                        tried.figures ? tried.figures->step_time_us : 0.0);
    });
    // Of what was tried with several ways the best.
    std::set<std::vector<int>> seen;
    std::erase_if(tried_, [&](const TriedSubmeshes& tried) {
      return !seen.insert(tried.num_devices).second;
    });
  }

  absl::StatusOr<Assignment> AssignmentOf(const FoundPipeline& found) {
    std::vector<int> stage_of_layer;
    std::vector<std::vector<Mesh>> shapes;
    std::vector<double> memory_prices;
    for (const FoundStage& stage : found.stages) {
      stage_of_layer.resize(stage.end_layer, static_cast<int>(shapes.size()));
      if (found_.meshes.empty()) {
        ASSIGN_OR_RETURN(shapes.emplace_back(),
                         SubmeshShapes(cluster_, found_.ways[stage.way].num_devices));
      } else {
        shapes.push_back({found_.meshes[stage.way].mesh});
        memory_prices.push_back(found_.meshes[stage.way].memory_price);
      }
    }
    const auto num_stages = static_cast<int>(shapes.size());
    ASSIGN_OR_RETURN(Assignment out,
                     planner_.Assign(std::move(stage_of_layer), num_stages, std::move(shapes)));
    out.memory_prices = std::move(memory_prices);
    if (!schedule_.empty()) {
      ASSIGN_OR_RETURN(out, planner_.BySchedule(out, schedule_));
    }
    return out;
  }

  PipelinePlanner& planner_;
  const PlanRequest& request_;
  const Cluster& cluster_;
  const std::vector<Mesh> meshes_;
  LayerWays found_;  // see SearchedLayers
  const std::string first_schedule_;
  const StageSearchInput first_input_;  // by the first schedule
  StageSearchInput input_;
  std::string schedule_;  // another than the first one; or empty
  std::vector<TriedSchedule> best_by_schedule_ = std::vector<TriedSchedule>(1);  // the first first
  int row_ = 0;  // of the schedule at hand
  const std::vector<FoundPipeline> free_;
  // Of plans with the ways at hand:
  StageCorrector corrector_;
  std::set<std::vector<std::array<int, 4>>> planned_;
  // As they were left for other schedules:
  bool is_left_to_others_ = false, has_returned_ = false;
  double by_first_us_ = 0;  // the best by the first one, planned or estimated
  std::vector<OtherSchedule> others_;
  StageCorrector corrector_of_first_schedule_;
  std::set<std::vector<std::array<int, 4>>> planned_by_first_schedule_;
  std::vector<TriedSubmeshes> tried_;
  std::optional<FittedPipeline> best_;
  StageSearchInput input_of_best_;
  double missed_ = 1;      // the last plan's step time, of what was estimated
  double fastest_us_ = 0;  // a step of the fastest pipeline without a limit, as estimated
  // The least that a planned one takes before its stages are given limits.
  double unlimited_us_ = std::numeric_limits<double>::infinity();
};

}  // namespace

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
  endless.in_flight = {};
  endless.send_us = {};
  const double micro_batch_us =
      FindStages(layers.ways.ways, endless).front().step_time_us / kEndless;
  const FoundPipeline& fastest = layers.free.front();
  const int num_micro_batches = layers.input.num_micro_batches;
  const double work_us = micro_batch_us * num_micro_batches;
  const bool may_hold_all =
      2 * layers.input.InFlight(static_cast<int>(fastest.stages.size())) > num_micro_batches;
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
  if (found.empty() || found.front().step_time_us > kNear * fastest.step_time_us) {
    const LayerWays saving =
        planner.WaysOn(layers.meshes, FastestMeshes(layers.ways, layers.input));
    if (!saving.ways.empty()) found = FindStages(saving.ways, search);
  }
  if (found.empty()) return std::nullopt;
  return found.front().step_time_us;
}

absl::StatusOr<FittedPipeline> SearchSubmeshes(PipelinePlanner& planner, const PlanRequest& request,
                                               LayersOnMeshes layers) {
  return SubmeshSearch(planner, request, std::move(layers)).Run();
}

}  // namespace minka
