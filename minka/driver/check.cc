#include "minka/driver/check.h"

#include <utility>

#include "minka/base/status.h"
#include "minka/driver/plan_step.h"
#include "minka/driver/prepare.h"
#include "minka/lowering/spmd.h"
#include "minka/oracle/first_difference.h"

namespace minka {

absl::StatusOr<Step> OneDeviceStep(const Step& step, const MicroBatchOptions& micro_batches) {
  if (!micro_batches.per_micro_batch) return step;
  ASSIGN_OR_RETURN(const PlanResult planned, PlanStep(step, {.cluster = Cluster::Local(1),
                                                             .micro_batches = micro_batches,
                                                             .remat = RematChoice{},
                                                             .methods = {Method::kData}}));
  ASSIGN_OR_RETURN(SpmdProgram program,
                   LowerSpmd(planned.prepared.module, planned.candidates[planned.best].plan.stage));
  return Step{.module = std::move(program.module),
              .parameters = planned.prepared.parameters,
              .results = planned.prepared.results};
}

absl::StatusOr<OracleReport> CheckAgainstOneDevice(Parallelized& run, const StepInputs& inputs,
                                                   int num_steps) {
  ASSIGN_OR_RETURN(const pjrt::Client client, run.LocalClient());
  const PlannedPipeline* const pipeline = run.pipeline();
  const MicroBatchOptions micro_batches = pipeline != nullptr
                                              ? MicroBatchesOf(pipeline->plan)
                                              : PreparationOf(run.plan()).micro_batches;
  ASSIGN_OR_RETURN(const Step step, OneDeviceStep(run.step(), micro_batches));
  ASSIGN_OR_RETURN(const OneDeviceResults one_device,
                   RunOnOneDevice(step, client, inputs, num_steps));
  ASSIGN_OR_RETURN(const MeshResults results, RunOnMesh(run.runner(), inputs, num_steps));
  OracleReport report = CompareResults(run.step(), results, one_device);
  report.num_steps = num_steps;
  if (report.ok()) return report;
  if (pipeline != nullptr) {
    report.first_difference =
        "where a pipeline begins to differ is not searched for; check --method shard with as many "
        "micro-batches";
    return report;
  }
  ASSIGN_OR_RETURN(const Step prepared, Prepare(run.step(), {.remat = run.plan().remat}));
  absl::StatusOr<FirstDifference> found = FindFirstDifference({.prepared = prepared,
                                                               .plan = run.plan(),
                                                               .client = client,
                                                               .session = run.session(),
                                                               .inputs = inputs,
                                                               .num_steps = num_steps,
                                                               .runner = run.runner(),
                                                               .results = results});
  if (!found.ok()) {
    report.first_difference = Message(found.status());
    return report;
  }
  found->report.turned = std::move(found->turned);
  found->report.first_difference = std::move(found->text);
  return std::move(found->report);
}

}  // namespace minka
