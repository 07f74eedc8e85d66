#include "minka/driver/tried_micro_batches.h"

#include <algorithm>

#include "fmt/format.h"
#include "minka/base/status.h"
#include "minka/driver/layers_on_meshes.h"
#include "minka/report/format.h"

namespace minka {
namespace {

constexpr const char* kTooLarge = "not planned: estimated to need too much memory";

std::string WhyNot(const TriedCount& count, bool is_chosen) {
  switch (count.state) {
    case CountState::kUnknown:
      return fmt::format("not planned: takes {} at least", FormatTime(count.at_least_us));
    case CountState::kEstimated:
    case CountState::kEstimatedToFit:
      return Message(EstimatedToTake(count.at_least_us));
    case CountState::kTooLarge:
      return kTooLarge;
    case CountState::kPlanned:
      return is_chosen ? "" : count.plan->fits ? "slower" : "needs too much memory";
    case CountState::kFailed:
      return Message(count.failure);
  }
  return "";
}

}  // namespace

PipelineRow RowOf(const TriedMicroBatches& tried) {
  return {.chosen = tried.chosen,
          .what = FormatNumberOf(tried.num_micro_batches, "micro-batch", "micro-batches"),
          .figures = tried.figures,
          .remark = tried.why_not};
}

std::vector<TriedMicroBatches> DescribeCounts(const std::vector<TriedCount>& tried,
                                              const std::map<int64_t, PipelineFigures>& figures,
                                              int64_t chosen) {
  std::vector<TriedMicroBatches> out;
  for (const TriedCount& count : tried) {
    TriedMicroBatches& row =
        out.emplace_back(TriedMicroBatches{.num_micro_batches = count.num_micro_batches});
    if (const auto found = figures.find(count.num_micro_batches); found != figures.end())
      row.figures = found->second;
    row.chosen = count.state == CountState::kPlanned && count.num_micro_batches == chosen;
    row.why_not = WhyNot(count, row.chosen);
  }
  return out;
}

std::optional<std::string> NoteOnChosenCount(const MicroBatchOptions& options, int64_t chosen,
                                             int64_t num_examples) {
  if (!options.per_micro_batch || chosen == 1) return std::nullopt;
  return fmt::format(
      "the number of micro-batches was chosen for speed: where operations on slices need sums over "
      "the batch (batch normalisation), each of the {} sums its own {}; --micro-batches says how "
      "many there are",
      chosen, FormatNumberOf(num_examples / chosen, "example", "examples"));
}

absl::Status WhyNoneIsWanted(const std::vector<TriedCount>& tried, double at_most_us) {
  std::optional<double> least_us;  // of what may fit
  for (const TriedCount& count : tried) {
    if (count.state == CountState::kFailed && absl::IsAborted(count.failure)) return count.failure;
    if (count.state != CountState::kEstimated && count.state != CountState::kEstimatedToFit)
      continue;
    least_us = std::min(least_us.value_or(count.at_least_us), count.at_least_us);
  }
  if (least_us && *least_us >= (1 - kNearlyEqual) * at_most_us) return EstimatedToTake(*least_us);
  const auto is_too_large = [](const TriedCount& count) {
    return count.state == CountState::kTooLarge;
  };
  return std::ranges::any_of(tried, is_too_large) ? ResourceExhausted(kTooLarge) : absl::OkStatus();
}

}  // namespace minka
