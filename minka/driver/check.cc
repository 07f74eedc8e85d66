#include "minka/driver/check.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "minka/base/status.h"
#include "minka/driver/plan_step.h"
#include "minka/driver/prepare.h"
#include "minka/lowering/spmd.h"
#include "minka/oracle/first_difference.h"
#include "minka/oracle/slices.h"
#include "minka/report/table.h"

namespace minka {
namespace {

constexpr size_t kShownOutputs = 10;
constexpr double kFarOff = 1e300;

// How much of what is allowed is used up; what is wrong by another rule comes first.
double Ratio(const OutputComparison& output) {
  const Norms& norms = output.norms;
  const bool by_error = output.rule == ComparisonRule::kNorm && norms.allowed_error > 0;
  if (output.ok()) return by_error ? norms.error / norms.allowed_error : 0;
  return by_error && output.fault == Fault::kValue ? norms.error / norms.allowed_error : kFarOff;
}

std::string Verdict(const OutputComparison& output) {
  if (!output.ok()) return "WRONG";
  return output.num_not_finite == 0
             ? "ok"
             : fmt::format("ok, {} not finite as on one device", output.num_not_finite);
}

Preparation PreparationOfRun(const Parallelized& run) {
  if (run.pipeline() == nullptr) return PreparationOf(run.plan());
  const PipelinePlan& plan = run.pipeline()->plan;
  return {.micro_batches = MicroBatchesOf(plan),
          .remat = plan.remat,
          .layers = plan.layers,
          .unrolls_loops = true};
}

// The step rewritten into micro-batches that stand for the whole batch, loop and all.
absl::StatusOr<Step> StepInMicroBatches(const Step& step, const MicroBatchOptions& micro_batches,
                                        Platform platform) {
  ASSIGN_OR_RETURN(const PlanResult planned, PlanStep(step, {.cluster = Cluster::Local(1),
                                                             .micro_batches = micro_batches,
                                                             .remat = RematChoice{},
                                                             .methods = {Method::kData}}));
  ASSIGN_OR_RETURN(
      SpmdProgram program,
      LowerSpmd(planned.prepared.module, planned.candidates[planned.best].plan.stage, platform));
  return Step{.module = std::move(program.module),
              .parameters = planned.prepared.parameters,
              .results = planned.prepared.results};
}

}  // namespace

SearchedPlan SearchedPlanOf(const PlannedPipeline& pipeline) {
  SearchedPlan searched{.micro_batches = MicroBatchesOf(pipeline.plan),
                        .lower =
                            [&pipeline](Platform platform, const SearchedPlan::Kept& kept) {
                              return LowerPipeline(pipeline, platform, kept);
                            },
                        .has_slices = true};
  for (size_t i = 0; i < pipeline.staged.stages.size(); ++i) {
    searched.stages.push_back(
        {pipeline.staged.stages[i].step.module, pipeline.plan.stages[i].plan.stage});
  }
  return searched;
}

absl::StatusOr<OneDeviceResults> RunOnOneDevice(const Step& step,
                                                const MicroBatchOptions& micro_batches,
                                                const pjrt::Client& client,
                                                const StepInputs& inputs, int num_steps) {
  if (!micro_batches.per_micro_batch) return RunOnOneDevice(step, client, inputs, num_steps);
  ASSIGN_OR_RETURN(const Step rewritten, StepInMicroBatches(step, micro_batches, client.kind()));
  ASSIGN_OR_RETURN(OneDeviceResults results, RunOnOneDevice(rewritten, client, inputs, num_steps));
  ASSIGN_OR_RETURN(const Step simplified, Simplify(step));
  ASSIGN_OR_RETURN(const bool has_slices, SlicesDifferByBatchAlone(simplified, micro_batches));
  if (!has_slices) return results;
  ASSIGN_OR_RETURN(
      OneDeviceResults of_slices,
      RunSlices(simplified, micro_batches.num_micro_batches, client, inputs, num_steps));
  for (size_t i = 0; i < results.single.size(); ++i) {
    if (!of_slices.single[i].bytes) continue;
    results.single[i] = of_slices.single[i];
    results.reference[i] = of_slices.reference[i];
    for (size_t draw = 0; draw < results.nudged.size(); ++draw) {
      results.nudged[draw][i] = of_slices.nudged[draw][i];
    }
  }
  return results;
}

namespace {

OneDeviceResults InRows(OneDeviceResults results, const StepRows& rows) {
  for (auto* const values : {&results.single, &results.reference, &results.before}) {
    *values = InRows(*values, rows.results);
  }
  for (auto* const draws : {&results.nudged, &results.nudged_before}) {
    for (std::vector<Literal>& values : *draws) values = InRows(values, rows.results);
  }
  return results;
}

}  // namespace

absl::StatusOr<OracleReport> CheckAgainstOneDevice(Parallelized& run, const StepInputs& inputs,
                                                   int num_steps) {
  ASSIGN_OR_RETURN(const pjrt::Client client, run.LocalClient());
  const Preparation preparation = PreparationOfRun(run);
  ASSIGN_OR_RETURN(
      OneDeviceResults one_device,
      RunOnOneDevice(run.given(), preparation.micro_batches, client, inputs, num_steps));
  one_device = InRows(std::move(one_device), run.rows());
  const StepInputs row_inputs = [&](int step) -> absl::StatusOr<ParameterValues> {
    ASSIGN_OR_RETURN(const ParameterValues values, inputs(step));
    return InRows(values, run.rows().parameters);
  };
  ASSIGN_OR_RETURN(const MeshResults results, RunOnMesh(run.runner(), row_inputs, num_steps));
  OracleReport report = CompareResults(run.step(), results, one_device);
  report.num_steps = num_steps;
  if (report.ok()) return report;
  ASSIGN_OR_RETURN(const Step prepared,
                   Prepare(run.step(), {.remat = preparation.remat,
                                        .layers = preparation.layers,
                                        .unrolls_loops = preparation.unrolls_loops}));
  absl::StatusOr<FirstDifference> found = FindFirstDifference(
      {.prepared = prepared,
       .plan = run.pipeline() != nullptr ? SearchedPlanOf(*run.pipeline())
                                         : SearchedPlanOf(run.prepared().module, run.plan()),
       .client = client,
       .session = run.session(),
       .inputs = row_inputs,
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

std::string DescribeCheck(const OracleReport& report) {
  std::vector<const OutputComparison*> outputs;
  for (const OutputComparison& output : report.outputs) outputs.push_back(&output);
  std::ranges::stable_sort(outputs,
                           [](const auto* a, const auto* b) { return Ratio(*a) > Ratio(*b); });
  Table table({{"result"},
               {"shape"},
               {"largest difference", Align::kRight},
               {"error", Align::kRight},
               {"allowed", Align::kRight},
               {""}});
  for (size_t i = 0; i < std::min(outputs.size(), kShownOutputs); ++i) {
    const OutputComparison& output = *outputs[i];
    const bool by_norm = output.rule == ComparisonRule::kNorm;
    table.Add({output.name.empty() ? fmt::format("{}", output.result) : output.name,
               ToString(output.shape), fmt::format("{:.3g}", output.largest_difference),
               by_norm ? fmt::format("{:.3g}", output.norms.error) : "",
               by_norm ? fmt::format("{:.3g}", output.norms.allowed_error)
               : output.rule == ComparisonRule::kExact ? "exact"
                                                       : "range",
               Verdict(output)});
  }
  std::string text =
      fmt::format("compared with one device after {} step{}, {} results:\n", report.num_steps,
                  report.num_steps == 1 ? "" : "s", report.outputs.size());
  text += table.ToString();
  if (outputs.size() > kShownOutputs) {
    text += fmt::format("and {} more, nearer to one device's\n", outputs.size() - kShownOutputs);
  }
  for (const std::string& decision : report.turned) {
    text += fmt::format("within rounding, turned over on one device, too: {}\n", decision);
  }
  return text;
}

}  // namespace minka
