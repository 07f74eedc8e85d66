#include "minka/driver/submesh_search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "minka/base/status.h"
#include "minka/driver/mesh_shapes.h"
#include "minka/driver/schedule_search.h"
#include "minka/planner/inter_op/stage_bound.h"
#include "minka/planner/inter_op/stage_corrections.h"
#include "minka/planner/inter_op/stage_search.h"
#include "minka/report/format.h"

namespace minka {
namespace {

// Sums of so many doubles may differ by so much of themselves.
constexpr double kRounding = 1e-9;

StageCorrector CorrectorOf(const LayerWays& found) {
  std::vector<double> memory_prices;
  for (const MeshOfWay& way : found.meshes) memory_prices.push_back(way.memory_price);
  return {found.ways, std::move(memory_prices)};
}

// Stages as a search found them: what a plan is made of.
using StagesKey = std::vector<std::array<int, 4>>;

StagesKey StagesOf(const FoundPipeline& found) {
  StagesKey out;
  for (const FoundStage& stage : found.stages)
    out.push_back({stage.begin_layer, stage.end_layer, stage.way, stage.num_recomputed});
  return out;
}

// What one schedule makes of the layers.
struct ScheduleSearched {
  std::string name;
  StageSearchInput input;
  StageCorrector corrector;          // of plans with the ways at hand
  std::vector<FoundPipeline> found;  // under the limit, fastest first
  bool is_stale = true;              // layers are estimated otherwise since
  std::set<StagesKey> planned;       // with the ways at hand
  double missed = 1;                 // the last plan's step time, of what was estimated
  // What it makes of the fastest pipeline of the first schedule, where estimates say little;
  // infinite: that is not known.
  double promised_us = 0;
  TriedSchedule row;

  // The fastest one that is not planned.
  const FoundPipeline* Next() const {
    const auto next = std::ranges::find_if(found, [&](const FoundPipeline& pipeline) {
      return !planned.contains(StagesOf(pipeline));
    });
    return next == found.end() ? nullptr : &*next;
  }
  // Others of the same schedule are likely to miss their estimates by as much as the last one did.
  double Expected(const FoundPipeline& pipeline) const {
    return std::max(missed * pipeline.step_time_us, promised_us);
  }
};

class SubmeshSearch {
 public:
  SubmeshSearch(PipelinePlanner& planner, const PlanRequest& request, LayersOnMeshes layers)
      : planner_(planner),
        request_(request),
        has_limit_(request.has_memory_limit()),
        meshes_(std::move(layers.meshes)),
        found_(std::move(layers.ways)),
        free_(std::move(layers.free)) {
    AddSchedule(std::move(layers.schedule), std::move(layers.input));
    fastest_us_ = free_.front().step_time_us;
    for (ScheduleOfLayers& other : layers.other_schedules) {
      if (other.free) fastest_us_ = std::min(fastest_us_, other.free->step_time_us);
      AddSchedule(std::move(other.name), std::move(other.input));
      if (MeshesShareCores())
        schedules_.back().promised_us = std::numeric_limits<double>::infinity();
    }
  }

  absl::StatusOr<FittedPipeline> Run() && {
    if (fastest_us_ > MostEstimatedUs(request_, planner_.simplified()))
      return EstimatedToTake(fastest_us_);
    absl::Status refusal;
    // Plans may not come to what is estimated, either.
    if (!has_limit_ || IsNearFastest(LeastEstimate())) refusal = PlanFastestThatFit();
    RETURN_IF_ERROR(CheckNotCancelled(request_));
    if (has_limit_ && !IsNearFastest(BestUs())) refusal = FindOthersThatFit();
    RETURN_IF_ERROR(CheckNotCancelled(request_));
    if (!best_) return refusal;
    return Best();
  }

 private:
  // So many pipelines are planned by each schedule, where each one planned corrects what the next
  // is searched by; so many where plans say little of others.
  static constexpr size_t kMostCorrected = 6, kMostPlanned = 3;
  // What is estimated to need so many times the limit is not planned.
  static constexpr double kHopeless = 1.1;
  // Estimates need not be nearer.
  static constexpr double kRoomiestStep = 1.02;

  ScheduleSearched& first() { return schedules_.front(); }
  const ScheduleSearched& first() const { return schedules_.front(); }

  void AddSchedule(std::string name, StageSearchInput input) {
    schedules_.push_back(
        {.name = std::move(name), .input = std::move(input), .corrector = CorrectorOf(found_)});
    schedules_.back().row.name = schedules_.back().name;
  }

  // Of what fits, by any schedule; infinite: nothing is estimated to.
  double LeastEstimate() {
    double us = std::numeric_limits<double>::infinity();
    for (ScheduleSearched& schedule : schedules_) {
      if (schedule.is_stale) Find(schedule);
      if (!schedule.found.empty()) us = std::min(us, schedule.found.front().step_time_us);
    }
    return us;
  }

  // Plans what is expected to be the fastest that fits, and searches again with what its plan says,
  // until nothing is expected to be taken instead of what was planned. A refusal where nothing
  // could be.
  absl::Status PlanFastestThatFit() {
    absl::Status refusal;
    while (ScheduleSearched* const schedule = NextSchedule()) {
      const FoundPipeline next = *schedule->Next();
      const absl::Status planned = Plan(next, *schedule, Reshaping::kNothing);
      RETURN_IF_ERROR(CheckNotCancelled(request_));
      if (!planned.ok() && refusal.ok()) refusal = planned;
      if (schedule == &first()) FindPromises();
    }
    for (const ScheduleSearched& schedule : schedules_) {
      for (const FoundPipeline& pipeline : schedule.found)
        NoteNotTried(pipeline, NotPlanned(pipeline.step_time_us));
    }
    return best_ ? absl::OkStatus() : refusal;
  }

  // The one by which the next pipeline is planned; null: none is worth it.
  ScheduleSearched* NextSchedule() {
    const size_t most_planned = MeshesShareCores() ? kMostPlanned : kMostCorrected;
    ScheduleSearched* next = nullptr;
    double next_us = std::numeric_limits<double>::infinity();
    for (ScheduleSearched& schedule : schedules_) {
      if (schedule.planned.size() >= most_planned || std::isinf(schedule.promised_us)) continue;
      if (schedule.is_stale) Find(schedule);
      const FoundPipeline* const pipeline = schedule.Next();
      if (pipeline == nullptr) continue;
      const double us = schedule.Expected(*pipeline);
      if (next != nullptr && !IsTakenInstead(schedule.name, us, next->name, next_us)) continue;
      next = &schedule;
      next_us = us;
    }
    return next != nullptr && IsTakenInsteadOfBest(next->name, next_us) ? next : nullptr;
  }

  // Where the first schedule takes as long as others, that is taken: it needs the least memory.
  bool IsTakenInstead(const std::string& schedule, double us, const std::string& instead_of,
                      double instead_of_us) const {
    if (schedule == first().name && instead_of != schedule) return !IsWorthwhile(instead_of_us, us);
    if (instead_of == first().name && instead_of != schedule)
      return IsWorthwhile(us, instead_of_us);
    return us < instead_of_us;
  }
  bool IsTakenInsteadOfBest(const std::string& schedule, double us) const {
    return !best_ || IsTakenInstead(schedule, us, best_->pipeline.schedule.name, BestUs());
  }

  absl::Status Plan(const FoundPipeline& found, ScheduleSearched& schedule, Reshaping reshaping) {
    schedule.planned.insert(StagesOf(found));
    ASSIGN_OR_RETURN(const Assignment assignment, AssignmentOf(found, schedule));
    absl::StatusOr<FittedPipeline> planned =
        planner_.PlanWithin(assignment, planner_.DemandsOf(found, found_.ways), reshaping);
    if (!planned.ok()) {
      NoteNotTried(found, Message(planned.status()));
      return planned.status();
    }
    const PipelinePlan& plan = planned->pipeline.plan;
    // Estimates know nothing of cores that meshes share: what they miss by says nothing of others.
    if (!MeshesShareCores())
      schedule.missed = std::max(1.0, plan.step_time_us / found.step_time_us);
    CorrectEstimates(found, plan);
    Note(planned->pipeline, schedule);
    if (Fits(plan) && IsTakenInsteadOfBest(schedule.name, plan.step_time_us))
      Take(*std::move(planned), schedule);
    return absl::OkStatus();
  }

  void CorrectEstimates(const FoundPipeline& found, const PipelinePlan& plan) {
    std::vector<StageFigures> planned;
    for (const PipelineStagePlan& stage : plan.stages) {
      const double micro_batch_us = stage.forward_us + stage.backward_us + stage.weight_gradient_us;
      planned.push_back(
          {.times = {micro_batch_us, stage.apply_us}, .bytes = stage.plan.peak_memory_bytes});
    }
    for (ScheduleSearched& schedule : schedules_) {
      schedule.corrector.Correct(found.stages, planned);
      schedule.is_stale = true;
    }
  }

  // Where meshes share cores, other schedules are looked at for what they make of the best pipeline
  // of the first one.
  void FindPromises() {
    if (!MeshesShareCores() || !best_ || best_->pipeline.schedule.name != first().name) return;
    const absl::StatusOr<std::vector<SchedulePromise>> promises = Promises(planner_, *best_);
    if (!promises.ok()) return;
    for (const SchedulePromise& promise : *promises) {
      const auto of =
          std::ranges::find(schedules_, promise.assignment.schedule.name, &ScheduleSearched::name);
      if (of != schedules_.end()) of->promised_us = promise.step_time_us;
    }
  }

  // Where nothing that is estimated to fit is nearly as fast as what needs more: stages of what is
  // fastest are searched under limits, then ways that save memory are looked at. Where nothing
  // fits by these either, stages of what is fastest are shaped one by one, then those of what is
  // estimated to need least, unless that is far too much. What the last says is needed is enough:
  // it is tried under every limit.
  absl::Status FindOthersThatFit() {
    ASSIGN_OR_RETURN(Assignment nearest, AssignmentOf(free_.front(), first()));
    RETURN_IF_ERROR(PlanFastestUnderLimits());
    if (IsNearFastest(BestUs())) return absl::OkStatus();
    SaveMemory();
    RETURN_IF_ERROR(CheckNotCancelled(request_));
    const absl::Status refusal = PlanFastestThatFit();
    RETURN_IF_ERROR(CheckNotCancelled(request_));
    if (best_) return absl::OkStatus();
    RETURN_IF_ERROR(refusal);
    Find(first());
    if (!first().found.empty()) {
      ASSIGN_OR_RETURN(nearest, AssignmentOf(first().found.front(), first()));
    }
    const std::optional<FoundPipeline> roomiest = Roomiest();
    if (roomiest && IsFarTooLarge(*roomiest)) return absl::OkStatus();
    std::vector<Assignment> assignments = {std::move(nearest)};
    if (roomiest) {
      ASSIGN_OR_RETURN(assignments.emplace_back(), AssignmentOf(*roomiest, first()));
    }
    for (const Assignment& assignment : assignments) {
      ASSIGN_OR_RETURN(
          FittedPipeline shaped,
          planner_.PlanWithin(assignment, planner_.FirstDemands(), Reshaping::kEverything));
      Note(shaped.pipeline, first());
      Take(std::move(shaped), first());
      if (Fits(best_plan())) break;
    }
    return absl::OkStatus();
  }

  // Takes the plan of what needs least where it is.
  bool IsFarTooLarge(const FoundPipeline& roomiest) {
    if (PartOfLimits(roomiest, found_.ways, InputOf(first())) < kFarTooLarge) return false;
    const absl::StatusOr<Assignment> assignment = AssignmentOf(roomiest, first());
    if (!assignment.ok()) return false;
    absl::StatusOr<FittedPipeline> planned = planner_.PlanWithin(
        *assignment, planner_.DemandsOf(roomiest, found_.ways), Reshaping::kNothing);
    if (!planned.ok()) return false;
    if (PartOfLimits(planned->pipeline.plan, request_) < kFarTooLargeAsPlanned) return false;
    Note(planned->pipeline, first());
    Take(*std::move(planned), first());
    return true;
  }

  absl::Status PlanFastestUnderLimits() {
    size_t num_planned = 0;
    for (const FoundPipeline& pipeline : free_) {
      if (PartOfLimits(pipeline, found_.ways, InputOf(first())) >= kHopeless ||
          num_planned++ == kMostPlanned) {
        break;
      }
      if (!IsTakenInsteadOfBest(first().name, first().Expected(pipeline))) break;
      // What cannot be planned so may be with ways that save memory.
      Plan(pipeline, first(), Reshaping::kLimits).IgnoreError();
      RETURN_IF_ERROR(CheckNotCancelled(request_));
    }
    return absl::OkStatus();
  }

  // Has the ways that save memory, too; where there are none, what there was.
  void SaveMemory() {
    LayerWays found = planner_.WaysOn(meshes_, FastestMeshes(found_, InputOf(first())));
    if (found.ways.empty()) return;
    found_ = std::move(found);
    for (ScheduleSearched& schedule : schedules_) {
      schedule.corrector = CorrectorOf(found_);
      schedule.planned.clear();
      schedule.is_stale = true;
    }
  }

  void Find(ScheduleSearched& schedule) {
    schedule.found = FindUnderLimits(found_.ways, schedule.name, InputOf(schedule), planner_);
    schedule.is_stale = false;
  }

  // Without limits.
  static StageSearchInput Corrected(const ScheduleSearched& schedule) {
    StageSearchInput input = schedule.input;
    input.corrections = schedule.corrector.corrections();
    return input;
  }

  // Under so much of the limits.
  StageSearchInput InputOf(const ScheduleSearched& schedule, double part = 1) const {
    return WithLimits(Corrected(schedule), request_, part);
  }

  // Of the ways at hand by the first schedule, whatever is allowed; within kRoomiestStep of the
  // least.
  std::optional<FoundPipeline> Roomiest() const {
    std::vector<FoundPipeline> found = FindStages(found_.ways, Corrected(first()));
    if (found.empty()) return std::nullopt;
    FoundPipeline roomiest = std::move(found.front());
    const StageSearchInput whole = InputOf(first());
    double enough = PartOfLimits(roomiest, found_.ways, whole), too_little = 0;
    while (enough > kRoomiestStep * too_little) {
      const double middle = (too_little + enough) / 2;
      found = FindStages(found_.ways, InputOf(first(), middle));
      if (found.empty()) {
        too_little = middle;
      } else {
        roomiest = std::move(found.front());
        enough = PartOfLimits(roomiest, found_.ways, whole);
      }
    }
    return roomiest;
  }

  bool MeshesShareCores() const { return first().input.meshes_share_cores; }

  // Precondition: there is one.
  const PipelinePlan& best_plan() const { return best_->pipeline.plan; }
  // Infinite: there is none.
  double BestUs() const {
    return best_ ? best_plan().step_time_us : std::numeric_limits<double>::infinity();
  }
  bool IsNearFastest(double us) const { return us <= kNearFastest * fastest_us_; }

  bool Fits(const PipelinePlan& plan) const { return CheckMemory(plan, request_).ok(); }

  void Take(FittedPipeline planned, const ScheduleSearched& schedule) {
    best_ = std::move(planned);
    input_of_best_ = schedule.input;
  }

  void Note(const PlannedPipeline& planned, ScheduleSearched& schedule) {
    tried_.push_back({.num_devices = planned.num_devices(),
                      .devices = planned.devices(),
                      .fits = Fits(planned.plan),
                      .figures = FiguresOf(planned.plan)});
    // The best one of the schedule, or that needs least.
    const auto rank = [](const TriedSchedule& tried) {
      const bool fits = tried.part_of_limits <= 1;
      return std::pair(!fits, fits ? tried.figures->step_time_us : tried.part_of_limits);
    };
    TriedSchedule row = TriedBy(planned, request_);
    if (!schedule.row.figures || rank(row) < rank(schedule.row)) schedule.row = std::move(row);
  }

  void NoteNotTried(const FoundPipeline& found, std::string why_not) {
    TriedSubmeshes& tried = tried_.emplace_back();
    tried.num_devices = SizesOf(found);
    tried.why_not = std::move(why_not);
    if (request_.num_kinds() == 1) return;
    for (const FoundStage& stage : found.stages)
      tried.devices.push_back(request_.HostsOf(found_.ways[stage.way].kind).device.name);
  }

  std::vector<int> SizesOf(const FoundPipeline& found) const {
    std::vector<int> sizes;
    for (const FoundStage& stage : found.stages)
      sizes.push_back(found_.ways[stage.way].num_devices);
    return sizes;
  }

  absl::StatusOr<FittedPipeline> Best() {
    Rank();
    PlannedPipeline& best = best_->pipeline;
    best.tried = std::move(tried_);
    best.tried_schedules = Shown(SchedulesTried(), best.schedule.name);
    SetLowerBound(best.plan);
    if (request_.num_kinds() > 1) NoteSlowHosts(best.plan);
    best.searched = {std::move(found_), std::move(input_of_best_)};
    best.searched->input = WithLimits(std::move(best.searched->input), request_);
    return *std::move(best_);
  }

  // The first one first, then the fastest.
  std::vector<TriedSchedule> SchedulesTried() const {
    std::vector<std::pair<double, TriedSchedule>> rows;
    for (const ScheduleSearched& schedule : schedules_) {
      if (std::isinf(schedule.promised_us)) continue;  // nothing is known of it
      auto& [us, row] = rows.emplace_back(0, schedule.row);
      if (row.figures) {
        us = row.figures->step_time_us;
      } else if (schedule.found.empty()) {
        us = std::numeric_limits<double>::infinity();
        row.why_not = "not planned: estimated to need too much memory";
      } else {
        us = schedule.Expected(schedule.found.front());
        row.why_not = NotPlanned(us);
      }
    }
    std::stable_sort(rows.begin() + 1, rows.end(),
                     [](const auto& one, const auto& other) { return one.first < other.first; });
    std::vector<TriedSchedule> out;
    for (auto& [us, row] : rows) out.push_back(std::move(row));
    return out;
  }

  // By the schedule that stages were first searched by: others that are tried hold no fewer
  // micro-batches.
  void SetLowerBound(PipelinePlan& plan) const {
    const StageSearchInput input = WithLimits(first().input, request_);
    const std::optional<double> least_us = LeastStepUs(found_.ways, input);
    if (!least_us || plan.step_time_us <= 0 || !Fits(plan)) return;
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
        "out{}",
        plan.num_micro_batches,
        request_.pipeline->shares.empty() ? "" : "; shares of the work are free there"));
  }

  // All hosts are used; where a pipeline on some kinds of them alone is likely to be faster, that
  // is said.
  void NoteSlowHosts(PipelinePlan& plan) {
    const auto by = std::ranges::find(schedules_, plan.schedule, &ScheduleSearched::name);
    double least_us = plan.step_time_us;
    unsigned used_by_fastest = 0;
    // `used`: a bit for each kind.
    for (unsigned used = 1; used + 1 < 1U << request_.num_kinds(); ++used) {
      if (!CheckNotCancelled(request_).ok()) return;
      StageSearchInput input = InputOf(*by);
      for (int kind = 0; kind < request_.num_kinds(); ++kind) {
        if ((used >> kind & 1U) == 0) input.hosts[kind].num_devices = 0;
      }
      const std::vector<FoundPipeline> found =
          FindUnderLimits(found_.ways, by->name, std::move(input), planner_);
      if (found.empty() || !IsWorthwhile(by->Expected(found.front()), least_us)) continue;
      least_us = by->Expected(found.front());
      used_by_fastest = used;
    }
    if (used_by_fastest == 0) return;
    std::vector<std::string> slow;
    for (int kind = 0; kind < request_.num_kinds(); ++kind) {
      if ((used_by_fastest >> kind & 1U) == 0) slow.push_back(request_.HostsOf(kind).name);
    }
    plan.notes.push_back(fmt::format("without the hosts of {} a step is estimated to take {}",
                                     fmt::join(slow, " and "), FormatTime(least_us)));
  }

  // The best first, then, one by one, those that fit, that need too much, that were not planned.
  void Rank() {
    bool is_chosen = false;
    for (TriedSubmeshes& tried : tried_) {
      if (!tried.figures) continue;
      tried.chosen = !is_chosen && tried.figures->step_time_us == best_plan().step_time_us &&
                     tried.figures->peak_memory_bytes == best_plan().peak_memory_bytes;
      is_chosen = is_chosen || tried.chosen;
      tried.why_not = tried.chosen ? "" : tried.fits ? "slower" : "needs too much memory";
    }
    std::ranges::stable_sort(tried_, {}, [&](const TriedSubmeshes& tried) {
      return std::tuple(!tried.chosen, !tried.fits, !tried.figures.has_value(),
                        tried.figures ? tried.figures->step_time_us : 0.0);
    });
    // Of what was tried with several ways the best.
    std::set<std::pair<std::vector<int>, std::vector<std::string>>> seen;
    std::erase_if(tried_, [&](const TriedSubmeshes& tried) {
      return !seen.emplace(tried.num_devices, tried.devices).second;
    });
  }

  absl::StatusOr<Assignment> AssignmentOf(const FoundPipeline& found,
                                          const ScheduleSearched& schedule) {
    std::vector<int> stage_of_layer;
    StageMeshes meshes;
    std::vector<double> memory_prices;
    for (const FoundStage& stage : found.stages) {
      const StageWay& way = found_.ways[stage.way];
      stage_of_layer.resize(stage.end_layer, static_cast<int>(meshes.kinds.size()));
      meshes.kinds.push_back(way.kind);
      if (found_.meshes.empty()) {
        ASSIGN_OR_RETURN(meshes.shapes.emplace_back(),
                         SubmeshShapes(request_.HostsOf(way.kind), way.num_devices));
      } else {
        meshes.shapes.push_back({found_.meshes[stage.way].mesh()});
        memory_prices.push_back(found_.meshes[stage.way].memory_price);
      }
    }
    const auto num_stages = static_cast<int>(meshes.kinds.size());
    ASSIGN_OR_RETURN(Assignment out,
                     planner_.Assign(std::move(stage_of_layer), num_stages, std::move(meshes)));
    out.memory_prices = std::move(memory_prices);
    if (out.schedule.name != schedule.name) {
      ASSIGN_OR_RETURN(out, planner_.BySchedule(out, schedule.name));
    }
    return out;
  }

  PipelinePlanner& planner_;
  const PlanRequest& request_;
  const bool has_limit_;  // of memory
  const std::vector<MeshOfKind> meshes_;
  LayerWays found_;                          // see SearchedLayers
  const std::vector<FoundPipeline> free_;    // of the first schedule, see LayersOnMeshes
  std::vector<ScheduleSearched> schedules_;  // the first one first
  std::vector<TriedSubmeshes> tried_;
  std::optional<FittedPipeline> best_;
  StageSearchInput input_of_best_;
  double fastest_us_ = 0;  // a step of the fastest pipeline without a limit, as far as is known
};

}  // namespace

absl::StatusOr<FittedPipeline> SearchSubmeshes(PipelinePlanner& planner, const PlanRequest& request,
                                               LayersOnMeshes layers) {
  return SubmeshSearch(planner, request, std::move(layers)).Run();
}

}  // namespace minka
