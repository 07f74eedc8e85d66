// What a step takes by a schedule, by what its stages take: as simulated, nearly, but in closed
// form and from the last stage on, for searches.
//
// A stage begins once the first micro-batch has passed those in front of it, works all off, and
// once the last one has passed them on its way back the step ends. In between it waits where it may
// not hold as many micro-batches as would hide how long one is away behind it. So a step takes what
// a micro-batch takes there and back, and the most by which the work and the waiting of a stage is
// more than what a micro-batch takes from that stage on.
#pragma once

#include <span>
#include <vector>

namespace minka {

struct StageTimes {
  double forward_us = 0;      // of micro_batch_us
  double micro_batch_us = 0;  // both passes
  double step_us = 0;         // once per step: its update
};

// Of a stage and those behind it.
struct TailTimes {
  // What a step is the longer for its first and last micro-batch, for which those in front wait.
  double passing_us = 0;
  double away_us = 0;     // from when a micro-batch is there until its gradient leaves
  double chain_us = 0;    // see ScheduleTimes::Before
  double updates_us = 0;  // from its last backward pass until all are updated

  double all_us() const { return passing_us + updates_us; }
};

// Stages count from the end, from 1 on. Thread-safe.
class ScheduleTimes {
 public:
  // `held`: how many micro-batches the n-th stage from the end holds at once between their passes,
  // for all n that there are; held[0] is not read. `splits_backward`: stages compute gradients of
  // weights while they would wait, as by zero-bubble-h1, and all end at once.
  ScheduleTimes(int num_micro_batches, std::vector<int> held, bool splits_backward);

  // Of the stage and those behind it; `send_us` to the next one and back.
  //
  // A stage may be as many micro-batches ahead of one behind it as it holds more: then it waits for
  // a gradient, for which that one needs a micro-batch of its. So a micro-batch takes no longer
  // there and back on any stages in a row than so many rounds and one. chain_us is the most of that
  // on this stage and some behind it beyond so many rounds of `round_us`: no more than one of them
  // where a round takes no longer.
  TailTimes Before(const StageTimes& stage, int from_end, double send_us, const TailTimes& behind,
                   double round_us) const;

  // By how much the stage's work and waiting are more than passing_us of the tail that begins with
  // it, where a round takes so long at least.
  double ExcessUs(const StageTimes& stage, int from_end, const TailTimes& tail,
                  double round_us) const;

  struct StageOfStep {
    StageTimes times;
    double send_us = 0;  // to the next stage and back
  };
  // A step of the stages, from the first one on.
  double StepUs(std::span<const StageOfStep> stages) const;

 private:
  double PassingUs(const StageTimes& stage) const;
  double RoundUs(const StageTimes& stage) const;
  double LeastRoundUs(std::span<const StageOfStep> from_stage) const;

  int num_micro_batches_;
  std::vector<int> held_;
  bool splits_backward_;
};

}  // namespace minka
