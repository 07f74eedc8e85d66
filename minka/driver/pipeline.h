// Plans and compiles a step for several meshes: layers become stages, each on a mesh of its own,
// and micro-batches flow through them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/driver/layer_ways.h"
#include "minka/driver/plan_step.h"
#include "minka/driver/tried_micro_batches.h"
#include "minka/ir/step.h"
#include "minka/lowering/planned_stage.h"
#include "minka/lowering/split_stacks.h"
#include "minka/lowering/stages.h"
#include "minka/plan/pipeline_plan.h"
#include "minka/program/pipeline_program.h"
#include "minka/report/chrome_trace.h"
#include "minka/report/pipeline_comparison.h"
#include "minka/report/pipeline_table.h"
#include "minka/runtime/pipeline/pipeline_executor.h"
#include "minka/runtime/pipeline/session.h"
#include "minka/schedule/schedule.h"
#include "minka/simulator/timeline.h"

namespace minka {

class StagePlanner;

// A parting of the devices into meshes that was looked at.
struct TriedSubmeshes {
  std::vector<int> num_devices;            // of each mesh
  std::vector<std::string> devices;        // what those of each mesh are called; empty: all alike
  bool fits = false;                       // into the memory limit, where it was planned
  std::optional<PipelineFigures> figures;  // nullopt: it was not planned, or there is no plan
  bool chosen = false;
  std::string why_not;
};

PipelineRow RowOf(const TriedSubmeshes& tried);

// A schedule that was looked at.
struct TriedSchedule {
  std::string name;
  double part_of_limits = 0;               // see PartOfLimits, where it was planned
  std::optional<PipelineFigures> figures;  // nullopt: it was not planned, or there is no plan
  bool chosen = false;
  std::string why_not;
};

PipelineRow RowOf(const TriedSchedule& tried);

// A plan with what it says of the step, taken apart.
struct PlannedPipeline {
  SplitStep split;  // the step, in which each layer has its row of what is stacked for them
  Step prepared;    // that in micro-batches, before it is cut
  StagedStep staged;
  Schedule schedule;
  PipelinePlan plan;
  // Where the submeshes were searched for: all that were, once each, the best ones first.
  std::vector<TriedSubmeshes> tried;
  std::optional<SearchedLayers> searched;  // then, too: what they were chosen from
  // Where the schedule was searched for: all that were looked at, first the one by which stages and
  // meshes were found.
  std::vector<TriedSchedule> tried_schedules;
  // Where their number was searched for: all that divide the batch, ascending.
  std::vector<TriedMicroBatches> tried_micro_batches;

  std::vector<const Module*> modules() const;
  std::vector<Mesh> meshes() const;      // by mesh number
  std::vector<int> num_devices() const;  // by mesh number
  std::vector<int> kinds() const;        // of hosts, by mesh number
  // What those of each mesh are called; empty: all are alike.
  std::vector<std::string> devices() const;
};

// By request.pipeline; request.meshes is not read, the first method plans each stage. Stacks are
// split (split_stacks.h); what the request says of them it says of their rows (request_in_rows.h).
// Every stage is one search over its forward and backward pass and its update. Under a memory limit
// what does not fit is shaped (fit_stages.h); ResourceExhausted where that is not enough.
absl::StatusOr<PlannedPipeline> PlanPipeline(const Step& step, const PlanRequest& request);
// The same of a step that is split already; the request is one on split.step.
absl::StatusOr<PlannedPipeline> PlanPipeline(const SplitStep& split, const PlanRequest& request);
// For who plans one step in several ways: `stages` remembers what they have in common, and has the
// same cluster, cost model and method.
absl::StatusOr<PlannedPipeline> PlanPipeline(const SplitStep& split, const PlanRequest& request,
                                             StagePlanner& stages);

// A plan.json of a pipeline, checked against the step, whose stacks are split as PlanPipeline does.
absl::StatusOr<PlannedPipeline> LoadPipeline(const Step& step, std::string_view plan_json);

bool HasBackwardPass(const Step& prepared);

// A schedule of the shape for the step; InvalidArgument where it leaves out what the step does.
absl::StatusOr<Schedule> ScheduleFor(const Step& prepared, std::string_view name,
                                     const PipelineShape& shape);

// When every task runs, as far as the stages' plans say.
absl::StatusOr<Timeline> PredictTimeline(const PlannedPipeline& planned);
// The same of a schedule of as many stages.
absl::StatusOr<Timeline> PredictTimeline(const Schedule& schedule, const PipelinePlan& plan);

MicroBatchOptions MicroBatchesOf(const PipelinePlan& plan);

// What is `kept` of each stage are results behind those of the step, see Emit.
absl::StatusOr<PipelineProgram> LowerPipeline(
    const PlannedPipeline& planned, Platform platform,
    const std::vector<std::vector<ValueVersion>>& kept = {});

// As LowerPipeline, of as few micro-batches as need the same memory: what many of them make of the
// lists takes long.
absl::StatusOr<PipelineProgram> LowerForMemory(const PlannedPipeline& planned, Platform platform);

// InvalidArgument where stages lie on hosts of other kinds than so many.
absl::Status CheckKinds(const PipelinePlan& plan, int num_kinds);

// What the stage that is nearest to its memory limit, or furthest beyond, needs of it; 0: there is
// none.
double PartOfLimits(const PipelinePlan& plan, const PlanRequest& request);

// ResourceExhausted where a device needs more than its limit.
absl::Status CheckMemory(const PipelinePlan& plan, const PlanRequest& request);

// Lowers and compiles every program; the plan says then what memory they need together.
absl::StatusOr<std::unique_ptr<PipelineExecutor>> CompilePipeline(PlannedPipeline& planned,
                                                                  Session& session);

// What each mesh did in the last traced step; freeing left out.
std::vector<std::vector<TracedEvent>> TraceOf(const PipelineExecutor& executor);

}  // namespace minka
