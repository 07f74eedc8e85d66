// Cuts a step into pipeline stages: for each a step of its own, of the operations of its layers,
// and what the stages send each other. Which operation stands in which layer says the step's
// structure (analysis/structure.h).
#pragma once

#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/ir/step.h"
#include "minka/program/task.h"

namespace minka {

// One stage's part of a step. Its parameters are those of the whole step that it reads, in their
// order, then what it receives; its results those of the whole step that it makes, in their order,
// then what it sends.
struct StageStep {
  Step step;
  std::vector<ProgramTask> tasks;  // by instruction: the program that it belongs to
  int num_own_results = 0;         // of the whole step; those behind them are sent
  // Instructions of backward programs that make what a forward program has made (saved_values.h):
  // each program that reads one makes it for itself. Ascending.
  std::vector<InstructionId> computed_again;
};

// Parameter or result `number` of the step of a stage.
struct StagePort {
  int stage = 0, number = 0;
  auto operator<=>(const StagePort&) const = default;
};

// A value that one stage makes and others read.
struct Border {
  StagePort from;             // a result
  std::vector<StagePort> to;  // parameters
  bool per_micro_batch = false;
  Shape shape;
};

struct StagedStep {
  std::vector<StageStep> stages;
  std::vector<Border> borders;
  // By parameter of the whole step, where it goes. State has one place, others one for each stage
  // that reads them.
  std::vector<std::vector<StagePort>> parameters;
  std::vector<StagePort> results;  // by result of the whole step
};

struct StageOptions {
  std::vector<int> stage_of_layer;  // never falling, from 0 on, without gaps
  // Cuts what no other stage waits for out of the backward programs.
  bool splits_backward = false;
  // Forward and backward pass are to run as one program: nothing is computed again in it
  // (saved_values.h).
  bool is_one_program = false;
};

// By instruction, the programs of the stage where its backward program is split: what is neither
// sent to other stages for each micro-batch, nor read by what is, computes gradients of weights.
std::vector<ProgramTask> SplitBackward(const StageStep& stage);

// `step` as MakeMicroBatches gives it. What stands in no layer stands with what it reads, and on
// stage 0 where several stages share that (tied weights, a global norm); sums over stages are
// rewritten for it (sum_on_stages.h). What depends on batch inputs, keys and small constants alone
// is made on every stage that reads it. InvalidArgument where the layers do not fit, or where an
// operation would wait for one behind it.
absl::StatusOr<StagedStep> CutIntoStages(const Step& step, const StageOptions& options);

}  // namespace minka
