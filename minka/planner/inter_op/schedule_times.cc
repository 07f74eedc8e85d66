#include "minka/planner/inter_op/schedule_times.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace minka {

ScheduleTimes::ScheduleTimes(int num_micro_batches, std::vector<int> held, bool splits_backward)
    : num_micro_batches_(num_micro_batches),
      held_(std::move(held)),
      splits_backward_(splits_backward) {
  for (int& number : held_) number = std::min(number, num_micro_batches_);
}

// All stages end at once where gradients of weights are put off: only the way there counts.
double ScheduleTimes::PassingUs(const StageTimes& stage) const {
  return splits_backward_ ? stage.forward_us : stage.micro_batch_us;
}

// Until its gradient is passed on. About half of a backward pass are gradients of weights, as of
// products of matrices.
double ScheduleTimes::RoundUs(const StageTimes& stage) const {
  if (!splits_backward_) return stage.micro_batch_us;
  return (stage.forward_us + stage.micro_batch_us) / 2;
}

TailTimes ScheduleTimes::Before(const StageTimes& stage, int from_end, double send_us,
                                const TailTimes& behind, double round_us) const {
  TailTimes tail = {.passing_us = behind.passing_us + PassingUs(stage) +
                                  (splits_backward_ ? send_us / 2 : send_us),
                    .away_us = behind.away_us + send_us + RoundUs(stage),
                    .chain_us = RoundUs(stage)};
  // The stages behind have done their last backward passes so much earlier.
  const double ahead_us =
      splits_backward_ ? 0 : stage.micro_batch_us - stage.forward_us + send_us / 2;
  tail.updates_us = std::max(stage.step_us, behind.updates_us - ahead_us);
  if (from_end > 1) {
    const double rounds_us = (held_[from_end] - held_[from_end - 1]) * round_us;
    tail.chain_us += std::max(0.0, send_us + behind.chain_us - rounds_us);
  }
  return tail;
}

double ScheduleTimes::ExcessUs(const StageTimes& stage, int from_end, const TailTimes& tail,
                               double round_us) const {
  const int held = held_[from_end];
  // For a micro-batch that is away behind the stage, which works for others meanwhile.
  const auto waits = [&](double busy_us) {
    return std::max(0.0, tail.away_us - RoundUs(stage) - (held - 1) * busy_us);
  };
  // Forward passes hide the first way, backward passes the last, both the ways in between.
  const double first_us = waits(stage.forward_us);
  const double last_us = splits_backward_ ? 0 : waits(stage.micro_batch_us - stage.forward_us);
  double waits_us = first_us + last_us;
  if (held == num_micro_batches_) {
    waits_us = std::max(first_us, last_us);
  } else if (num_micro_batches_ > 2 * held) {
    waits_us += (num_micro_batches_ - 2 * held) * std::max(0.0, round_us - stage.micro_batch_us);
  }
  return num_micro_batches_ * stage.micro_batch_us + waits_us - tail.passing_us;
}

// Of the first stage, by all chains that begin with it.
double ScheduleTimes::LeastRoundUs(std::span<const StageOfStep> from_stage) const {
  const auto num_stages = static_cast<int>(from_stage.size());
  double chain_us = 0, least_us = 0;
  for (int last = 0; last < num_stages; ++last) {
    chain_us += RoundUs(from_stage[last].times);
    const int ahead = held_[num_stages] - held_[num_stages - last];
    least_us = std::max(least_us, chain_us / (ahead + 1));
    chain_us += from_stage[last].send_us;
  }
  return least_us;
}

double ScheduleTimes::StepUs(std::span<const StageOfStep> stages) const {
  const auto num_stages = static_cast<int>(stages.size());
  TailTimes tail;
  double most_us = -std::numeric_limits<double>::infinity();
  for (int from_end = 1; from_end <= num_stages; ++from_end) {
    const std::span<const StageOfStep> from_stage = stages.last(from_end);
    const auto& [times, send_us] = from_stage.front();
    const double round_us = LeastRoundUs(from_stage);
    tail = Before(times, from_end, send_us, tail, round_us);
    most_us = std::max(most_us, ExcessUs(times, from_end, tail, round_us));
  }
  return most_us + tail.all_us();
}

}  // namespace minka
