// A program that includes minka.h and nothing else of minka: plans data parallelism for a
// convolution network, keeps the plan as JSON, runs by it on four devices and compares with one,
// and saves and restores its state.
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "minka/minka.h"

namespace {

using namespace minka;

Model SmallNetwork() {
  return {.name = "network",
          .inputs = {{"images", {ElementType::kF32, {8, 6, 6, 4}}},
                     {"labels", {ElementType::kS32, {8}}, /*num_values=*/10}},
          .forward = [](const Scope& scope, std::span<const Tensor> inputs) {
            const Tensor x = Conv(scope / "conv", inputs[0], {.features = 8, .kernel = {3, 3}});
            const Tensor logits = Dense(scope / "head", Mean(Relu(x), {1, 2}), {.features = {10}});
            return ModelOutput{.loss = MeanCrossEntropy(logits, inputs[1])};
          }};
}

absl::StatusOr<std::string> PlanAsJson(const Step& step, const Cluster& cluster) {
  ASSIGN_OR_RETURN(const PlanResult result,
                   PlanStep(step, {.cluster = cluster, .methods = {Method::kData}}));
  const Plan& plan = result.candidates[result.best].plan;
  std::printf("%s", PlanTable(result.prepared, plan).c_str());
  return PlanToJson(plan, result.prepared.module);
}

// The parameter's bytes are the same after a save and a restore.
absl::Status CheckCheckpoint(Parallelized& run, const State& state) {
  ASSIGN_OR_RETURN(
      const std::string path,
      SaveCheckpoint({.folder = "checkpoints"}, {.model = "network"}, run.runner(), state));
  ASSIGN_OR_RETURN(CheckpointReader checkpoint, CheckpointReader::Open(path));
  RETURN_IF_ERROR(CheckFits(checkpoint, run.step()));
  ASSIGN_OR_RETURN(const State restored, RestoreCheckpoint(checkpoint, run.runner()));
  ASSIGN_OR_RETURN(const Literal before, state.arrays[0].ToHost());
  ASSIGN_OR_RETURN(const Literal after, restored.arrays[0].ToHost());
  if (*before.bytes == *after.bytes) return absl::OkStatus();
  return FailedPrecondition("{} holds something else than was saved", path);
}

absl::Status PlanAndRun() {
  const LearningRate rate = [] {
    LearningRate schedule = 1e-3;
    schedule.warmup_updates = 2;
    return schedule;
  }();
  ASSIGN_OR_RETURN(const TracedStep traced, Trace(SmallNetwork(), Lion({.learning_rate = rate})));
  const Cluster cluster = Cluster::Local(4);
  ASSIGN_OR_RETURN(const std::string json, PlanAsJson(traced.step, cluster));
  RETURN_IF_ERROR(WriteFile("network_plan.json", json));
  ASSIGN_OR_RETURN(Parallelized run,
                   Parallelize(traced, cluster, Shard{}, {.plan_path = "network_plan.json"}));

  ASSIGN_OR_RETURN(const std::vector<Literal> values, RandomInputs(traced.step, /*seed=*/1));
  const StepInputs inputs = [&](int) -> absl::StatusOr<ParameterValues> { return values; };
  ASSIGN_OR_RETURN(const pjrt::Client client, run.LocalClient());
  ASSIGN_OR_RETURN(const OneDeviceResults one_device,
                   RunOnOneDevice(traced.step, client, inputs, /*num_steps=*/2));
  ASSIGN_OR_RETURN(
      const OracleReport report,
      CompareWithOneDevice(traced.step, run.runner(), inputs, /*num_steps=*/2, one_device));
  if (!report.ok()) return FailedPrecondition("{}", report.Failures());

  ASSIGN_OR_RETURN(State state, run.Initialize(/*seed=*/0));
  ASSIGN_OR_RETURN(const StepResult result,
                   run(std::move(state), {values[values.size() - 2], values.back()}));
  ASSIGN_OR_RETURN(const double loss, result.Loss());
  std::printf("loss %.3f\n", loss);
  return CheckCheckpoint(run, result.state);
}

}  // namespace

int main() {
  const absl::Status status = PlanAndRun();
  std::filesystem::remove_all("checkpoints");
  if (!status.ok()) std::fprintf(stderr, "%s\n", Message(status).c_str());
  return status.ok() ? EXIT_SUCCESS : EXIT_FAILURE;
}
