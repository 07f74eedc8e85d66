#include "minka/driver/schedule_search.h"

#include <algorithm>
#include <ranges>
#include <utility>

#include "fmt/format.h"
#include "minka/base/status.h"
#include "minka/report/format.h"
#include "minka/schedule/generate.h"

namespace minka {
namespace {

// Another schedule is taken where a step takes less than this part of what it took: less is within
// what predictions miss, and 1f1b needs the least memory.
constexpr double kWorthwhile = 0.99;

// Gpipe takes as long as 1f1b and needs more memory; interleaved schedules need other stages.
constexpr std::string_view kTried[] = {"eager-1f1b", "zero-bubble-h1"};

// As if half of a backward pass were gradients of weights, as it is of products of matrices.
void SplitBackward(PipelinePlan& plan) {
  for (PipelineStagePlan& stage : plan.stages) {
    stage.weight_gradient_us = stage.backward_us / 2;
    stage.backward_us -= stage.weight_gradient_us;
  }
}

class ScheduleSearch {
 public:
  ScheduleSearch(PipelinePlanner& planner, const PlanRequest& request, FittedPipeline found)
      : planner_(planner), request_(request), best_(std::move(found)) {}

  absl::StatusOr<PlannedPipeline> Run() && {
    Note(best_.pipeline);
    ASSIGN_OR_RETURN(const std::vector<SchedulePromise> promises, Promises(planner_, best_));
    for (const SchedulePromise& promise : promises) {
      if (IsWorthwhile(promise.step_time_us, best_.pipeline.plan.step_time_us)) {
        RETURN_IF_ERROR(Plan(promise.assignment));
      } else {
        rows_.push_back({.name = promise.assignment.schedule.name,
                         .why_not = NotPlanned(promise.step_time_us)});
      }
    }
    PlannedPipeline& best = best_.pipeline;
    best.tried_schedules = Shown(std::move(rows_), best.schedule.name);
    return std::move(best);
  }

 private:
  absl::Status Plan(const Assignment& assignment) {
    absl::StatusOr<FittedPipeline> planned = planner_.PlanWithin(
        assignment, {.remat = best_.pipeline.plan.remat}, Reshaping::kEverything);
    RETURN_IF_ERROR(CheckNotCancelled(request_));
    if (!planned.ok()) {
      rows_.push_back({.name = assignment.schedule.name, .why_not = Message(planned.status())});
      return absl::OkStatus();
    }
    Note(planned->pipeline);
    const PipelinePlan& plan = planned->pipeline.plan;
    if (Fits(plan) && IsWorthwhile(plan.step_time_us, best_.pipeline.plan.step_time_us))
      best_ = *std::move(planned);
    return absl::OkStatus();
  }

  bool Fits(const PipelinePlan& plan) const { return CheckMemory(plan, request_).ok(); }

  void Note(const PlannedPipeline& planned) { rows_.push_back(TriedBy(planned, request_)); }

  PipelinePlanner& planner_;
  const PlanRequest& request_;
  FittedPipeline best_;
  std::vector<TriedSchedule> rows_;
};

}  // namespace

bool IsWorthwhile(double step_time_us, double instead_of_us) {
  return step_time_us < kWorthwhile * instead_of_us;
}

TriedSchedule TriedBy(const PlannedPipeline& planned, const PlanRequest& request) {
  const double part = PartOfLimits(planned.plan, request);
  return {.name = planned.schedule.name,
          .part_of_limits = part,
          .figures = FiguresOf(planned.plan),
          .why_not = part <= 1 ? "slower" : "needs too much memory"};
}

std::vector<TriedSchedule> Shown(std::vector<TriedSchedule> tried, const std::string& chosen) {
  const auto is_planned = [](const TriedSchedule& one) { return one.figures.has_value(); };
  if (std::ranges::none_of(tried | std::views::drop(1), is_planned)) return {};
  for (TriedSchedule& one : tried) {
    one.chosen = one.name == chosen;
    if (one.chosen) one.why_not.clear();
  }
  return tried;
}

std::string NotPlanned(double step_time_us) {
  return fmt::format("not planned: estimated to take {}", FormatTime(step_time_us));
}

std::span<const std::string_view> SchedulesBeside(std::string_view first, int num_meshes) {
  if (!Trains(first) || num_meshes < 2) return {};
  return kTried;
}

absl::StatusOr<std::vector<SchedulePromise>> Promises(PipelinePlanner& planner,
                                                      const FittedPipeline& found) {
  std::vector<SchedulePromise> promises;
  const Schedule& schedule = found.assignment.schedule;
  for (const std::string_view name : SchedulesBeside(schedule.name, schedule.shape.num_meshes)) {
    absl::StatusOr<Assignment> other = planner.BySchedule(found.assignment, name);
    if (!other.ok()) continue;  // it cannot be of that shape
    PipelinePlan plan = found.pipeline.plan;
    if (other->schedule.splits_backward) SplitBackward(plan);
    ASSIGN_OR_RETURN(const Timeline timeline, PredictTimeline(other->schedule, plan));
    promises.push_back({.assignment = *std::move(other), .step_time_us = timeline.step_time});
  }
  std::ranges::stable_sort(promises, {}, &SchedulePromise::step_time_us);
  return promises;
}

absl::StatusOr<PlannedPipeline> SearchSchedules(PipelinePlanner& planner,
                                                const PlanRequest& request, FittedPipeline found) {
  const bool fits = CheckMemory(found.pipeline.plan, request).ok();
  // Others need no less memory.
  if (request.pipeline->schedule != kChooseSchedule || !fits) return std::move(found.pipeline);
  return ScheduleSearch(planner, request, std::move(found)).Run();
}

}  // namespace minka
