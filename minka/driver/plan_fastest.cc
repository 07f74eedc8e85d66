#include "minka/driver/plan_fastest.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

namespace minka {
namespace {

absl::StatusOr<Planned> PlanBy(const Step& step, const PlanRequest& request) {
  if (request.pipeline) return PlanPipeline(step, request);
  SearchResult<PlanResult> result = PlanStep(step, request);
  if (!result.ok()) return result.status().why;
  return *std::move(result);
}

}  // namespace

double StepTimeUs(const Planned& planned) {
  if (const auto* const result = std::get_if<PlanResult>(&planned))
    return result->plan().stage.step_time_us;
  return std::get<PlannedPipeline>(planned).plan.step_time_us;
}

int64_t PeakMemoryBytes(const Planned& planned) {
  if (const auto* const result = std::get_if<PlanResult>(&planned))
    return result->plan().stage.peak_memory_bytes;
  return std::get<PlannedPipeline>(planned).plan.peak_memory_bytes;
}

void PlanAll(const Step& step, std::span<Attempt> attempts) {
  std::vector<Attempt*> in_order;
  for (Attempt& attempt : attempts) in_order.push_back(&attempt);
  std::ranges::stable_partition(in_order, [](const Attempt* attempt) {
    return attempt->request.pipeline.has_value() == (attempt->request.cluster.num_hosts > 1);
  });
  const auto plan = [&](Attempt& attempt, std::optional<double> faster_than_us) {
    PlanRequest request = attempt.request;
    request.faster_than_us = faster_than_us;
    attempt.planned = PlanBy(step, request);
  };
  const bool is_alone = attempts.size() == 1;
  for (Attempt* const attempt : in_order) {
    const Attempt* const fastest = FastestOf(attempts);
    const double at_hand_us =
        fastest ? StepTimeUs(*fastest->planned) : std::numeric_limits<double>::infinity();
    plan(*attempt, is_alone ? std::nullopt : std::optional(at_hand_us));
    if (!attempt->request.pipeline && absl::IsInvalidArgument(attempt->planned.status())) return;
  }
  if (FastestOf(attempts) != nullptr) return;
  // What was estimated to be too large may not be.
  for (Attempt* const attempt : in_order) {
    if (absl::IsAborted(attempt->planned.status())) plan(*attempt, std::nullopt);
  }
}

Attempt* FastestOf(std::span<Attempt> attempts) {
  Attempt* fastest = nullptr;
  for (Attempt& attempt : attempts) {
    if (!attempt.planned.ok()) continue;
    if (fastest == nullptr || StepTimeUs(*attempt.planned) < StepTimeUs(*fastest->planned))
      fastest = &attempt;
  }
  return fastest;
}

}  // namespace minka
