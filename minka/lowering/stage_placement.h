// Where the operations of a step run when it is cut into stages.
#pragma once

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "minka/ir/micro_loop.h"
#include "minka/ir/step.h"
#include "minka/lowering/stages.h"
#include "minka/program/task.h"

namespace minka {

// Of a value that every stage makes where it reads it.
inline constexpr int kEverywhere = -1;

// On which stage every operation stands, and in which program there. Step and options must live as
// long.
class StagePlacement {
 public:
  StagePlacement(const Step& step, const StageOptions& options);

  const MicroLoop& loop() const { return loop_; }
  // kEverywhere, or the one that makes it.
  int stage(InstructionId id) const { return stage_[id]; }
  const std::vector<int>& stages() const { return stage_; }
  // Where `result` of the step is made.
  int StageOfResult(int result) const;
  // On the stage that makes it. Precondition: one does (stage).
  const ProgramTask& task(InstructionId id) const { return tasks_[id]; }
  // The stage's own and what it makes for itself, ascending.
  const std::vector<InstructionId>& InstructionsOf(int stage) const {
    return instructions_of_[stage];
  }
  // Parallel to these. What every stage makes for itself runs where it is first read.
  std::vector<ProgramTask> TasksOf(int stage) const;

  // OK, or who would wait for ever: forward programs go up the stages, backward ones down. `read`:
  // what the reader is part of on the stage.
  absl::Status CheckRead(Value value, InstructionId reader, int stage, ProgramKind read) const;

 private:
  // What runs once, or for each micro-batch, does so wherever it is read.
  ProgramTask WithinReach(InstructionId id, const ProgramTask& wanted) const;

  bool MayBeMadeEverywhere(InstructionId id) const;

  ParameterRole RoleOf(InstructionId parameter) const;
  bool IsWeight(InstructionId id) const;

  // An operation of no layer stands with what it reads, or with the large part of that: a gradient
  // is squared and summed where it is. What several stages share stands on stage 0, and their
  // slices of it are cut there.
  int StageOf(InstructionId id) const;

  // Of weights that several layers share: one layer's of stacked ones.
  bool IsSliceOfSharedWeights(InstructionId id) const;

  // Of those with more than so many elements, if it is one.
  std::optional<int> StageOfOperands(InstructionId id, int64_t num_elements) const;

  void FindStages();
  void FindInstructions();

  ProgramKind KindByPlace(InstructionId id) const;

  // What is made of weights for backward passes of stages behind, where there is no loop to make it
  // in front of: their backward programs run first.
  void FindSentWeights();

  void FindTasks();

  // On a stage, of what `source` gives, by `reader`.
  ProgramTask EarliestRead(InstructionId source, int stage, InstructionId reader) const;

  // What is made once per step waits for the phase that first reads it, unless it is less than what
  // it is made of: the parts of an update are not kept while stages agree on a norm.
  void DelayUpdates();
  bool MakesLess(InstructionId id) const;

  // What is made on several stages: everywhere, or the number of a micro-batch.
  struct OnStage {
    int stage = 0;
    ProgramTask earliest;  // not before
  };
  // Precondition: it is made there.
  const OnStage& Made(InstructionId everywhere, int stage) const;
  ProgramTask Earliest(InstructionId id, int stage, ProgramTask least) const;

  const Step& step_;
  const Computation& entry_;
  const StageOptions& options_;
  const MicroLoop loop_;
  std::vector<int> stage_;  // by instruction
  std::vector<bool> is_sent_weight_;
  const int num_stages_;
  std::vector<ProgramTask> tasks_;                           // by instruction; of those of a stage
  std::vector<std::vector<InstructionId>> instructions_of_;  // by stage
  std::vector<std::vector<OnStage>> everywhere_;  // by instruction made on several: ascending
};

}  // namespace minka
