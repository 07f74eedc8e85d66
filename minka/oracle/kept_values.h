// Runs of a plan's programs with intermediate values as more results.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/ir/step.h"
#include "minka/lowering/micro_batches.h"
#include "minka/lowering/planned_stage.h"
#include "minka/oracle/oracle.h"
#include "minka/plan/plan.h"
#include "minka/program/pipeline_program.h"
#include "minka/runtime/mesh/step_runner.h"
#include "minka/runtime/pipeline/session.h"

namespace minka {

// One stage, or those of a pipeline, with their modules as they were planned.
struct SearchedPlan {
  struct Stage {
    const Module& module;
    const StagePlan& plan;
  };
  std::vector<Stage> stages;
  MicroBatchOptions micro_batches;
  // The program with what is kept of each stage as results behind those of the step, stage by
  // stage. What exists during one micro-batch only is there once for each (`has_slices`), or once
  // for all, [m, ..].
  using Kept = std::vector<std::vector<ValueVersion>>;
  std::function<absl::StatusOr<PipelineProgram>(Platform platform, const Kept& kept)> lower;
  bool has_slices = false;
};

// The module in micro-batches. Both must live as long.
SearchedPlan SearchedPlanOf(const Module& module, const Plan& plan);

// Where a plan first has a value complete.
struct ValuePlace {
  int stage = 0;
  ValueVersion made;
  int dim = -1;  // of which micro-batches have slices
  Sharding sharding;
};

class KeptValues {
 public:
  // `prepared` is the step before it was cut into micro-batches.
  static absl::StatusOr<KeptValues> Create(const Step& prepared, SearchedPlan plan);

  // nullopt: never.
  std::optional<ValuePlace> Find(Value value) const;
  // "[x,-]", "[x,-] on stage 1".
  std::string Describe(const ValuePlace& place) const;

  absl::StatusOr<StepRunner> Compile(const std::vector<ValuePlace>& places, Session& session) const;
  // What such a run gave, behind the results of the step, with micro-batches put together.
  MeshResults Whole(const std::vector<ValuePlace>& places, MeshResults run) const;

 private:
  KeptValues(MicroBatchedStep micro_batched, size_t num_results, SearchedPlan plan);
  bool IsTransient(const ValuePlace& place) const;
  // As the run has them.
  std::vector<size_t> Order(const std::vector<ValuePlace>& places) const;

  MicroBatchedStep micro_batched_;
  size_t num_results_;
  SearchedPlan plan_;
  std::vector<MicroLoop> loops_;                                    // by stage
  std::vector<std::map<std::string_view, InstructionId>> by_name_;  // by stage
};

}  // namespace minka
