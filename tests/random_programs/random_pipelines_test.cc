// Whatever the layers and the stages, a pipeline computes what one device computes: random programs
// in two stages, of one to three micro-batches where the program can be cut along a batch, with
// some of their state and constants split by row. Plans of stages are random ones too where they
// can be. MINKA_RANDOM_PROGRAMS says how many (default 50), MINKA_RANDOM_SEED the first seed,
// MINKA_RANDOM_PARTS of how many parts one runs (see results.h); into the folder MINKA_RANDOM_DUMP,
// if given, goes what the last of them was cut into.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "gtest/gtest.h"
#include "minka/base/status.h"
#include "minka/driver/describe_pipeline.h"
#include "minka/driver/pipeline.h"
#include "minka/driver/prepare.h"
#include "minka/ir/hlo_proto.h"
#include "minka/ir/micro_loop.h"
#include "minka/lowering/spmd.h"
#include "minka/runtime/mesh/local_devices.h"
#include "minka/runtime/mesh/step_runner.h"
#include "minka/runtime/pipeline/session.h"
#include "tests/random_programs/results.h"
#include "tests/support/random_modules.h"
#include "tests/support/random_plan.h"

namespace minka {
namespace {

// A program as a step: all parameters but state and one batch input are constant.
struct RandomStep {
  Step step;
  int num_micro_batches = 1;
};

bool CanRunInMicroBatches(const Step& step, int num_micro_batches) {
  const auto prepared = Prepare(step, {.micro_batches = {.num_micro_batches = num_micro_batches}});
  return prepared.ok() && FindMicroLoop(prepared->module).exists();
}

// The last scalar that can be one.
std::optional<int64_t> LossOf(const Module& module) {
  const Computation& entry = module.entry_computation();
  for (auto i = static_cast<int64_t>(entry.results.size()) - 1; i >= 0; --i) {
    const Shape& shape = entry.shape(entry.results[i]);
    const bool is_state =
        std::ranges::find(module.aliases, i, &Alias::result) != module.aliases.end();
    if (IsFloat(shape.type) && shape.rank() == 0 && !is_state) return i;
  }
  return std::nullopt;
}

// With state, and so an update: what does not lead to the loss is no forward pass. Without: all of
// it is.
RandomStep StepOf(const RandomProgram& program, int num_micro_batches, bool trains) {
  Module module = program.module;
  if (!trains) module.aliases.clear();
  const std::optional<int64_t> loss = trains ? LossOf(module) : std::nullopt;
  Step step = MakeStep(std::move(module), {.loss = loss}).value();
  if (num_micro_batches == 1) return {std::move(step)};
  for (size_t i = 0; i < step.parameters.size(); ++i) {
    if (step.parameters[i].role == ParameterRole::kState) continue;
    const std::vector<int64_t>& dims = program.inputs[i].shape.dims;
    for (int dim = 0; dim < static_cast<int>(dims.size()); ++dim) {
      if (dims[dim] % num_micro_batches != 0) continue;
      Step with_batch = step;
      with_batch.parameters[i].role = ParameterRole::kBatch;
      with_batch.parameters[i].batch_dim = dim;
      if (!CanRunInMicroBatches(with_batch, num_micro_batches)) continue;
      return {std::move(with_batch), num_micro_batches};
    }
  }
  return {std::move(step)};
}

PlanRequest RequestFor(const RandomStep& step, int seed) {
  static const std::vector<std::vector<std::string>> kMeshes = {
      {"1", "1"}, {"2", "1"}, {"2", "2x2"}, {"2x2", "2"}, {"4", "4"}};
  static constexpr const char* kSchedules[] = {"1f1b", "inference", "zero-bubble-h1"};
  PlanRequest request{.cluster = Cluster::Local(8),
                      .micro_batches = {.num_micro_batches = step.num_micro_batches},
                      .search = {.gap = 0.1, .num_threads = 1}};
  request.pipeline = PipelineOptions{.layers = AutoLayers{2 + (seed / 2) % 4},
                                     .num_stages = 2,
                                     .schedule = kSchedules[(seed / 5) % 3]};
  for (const std::string& mesh : kMeshes[seed % 5]) {
    request.pipeline->meshes.push_back(Mesh::Parse(mesh).value());
  }
  return request;
}

// Some of what stays on the devices, to be split by row.
std::set<std::string> StacksOf(const Step& step, int seed) {
  constexpr int64_t kMostRows = 8;
  std::set<std::string> names;
  const Computation& entry = step.module.entry_computation();
  for (size_t i = 0; i < step.parameters.size(); ++i) {
    const Shape& shape = entry.instructions[entry.parameters[i]].shape();
    const bool has_rows = shape.rank() > 0 && shape.dims[0] > 1 && shape.dims[0] <= kMostRows;
    if (!IsResident(step.parameters[i]) || !has_rows || (seed / 2 + i) % 3 != 0) continue;
    names.insert(step.parameters[i].name);
  }
  return names;
}

absl::StatusOr<PlannedPipeline> PlanWithRows(const RandomStep& step, int seed) {
  ASSIGN_OR_RETURN(const SplitStep split, SplitStacks(step.step, StacksOf(step.step, seed)));
  return PlanPipeline(split, RequestFor(step, seed));
}

// How each stage runs does not matter. (Of what a loop over micro-batches asks of a plan, random
// ones know nothing.)
void TakeRandomPlans(int seed, PlannedPipeline& planned) {
  for (size_t stage = 0; stage < planned.plan.stages.size(); ++stage) {
    Plan& plan = planned.plan.stages[stage].plan;
    const Module& module = planned.staged.stages[stage].step.module;
    Plan random = plan;
    random.stage = RandomPlan(module, plan.stage.mesh, seed).stage;
    if (CheckPlan(random, module).ok()) plan = std::move(random);
  }
}

class RandomPipelines : public ::testing::Test {
 protected:
  // Of one run of the step, which has these rows of the program's; by result of the program.
  static absl::StatusOr<std::vector<std::string>> Results(const Step& step, const StepRows& rows,
                                                          std::unique_ptr<StepExecutor> executor,
                                                          const RandomProgram& program) {
    StepRunner runner(step, std::move(executor));
    const ParameterValues inputs = InRows(program.inputs, rows.parameters);
    ASSIGN_OR_RETURN(State state, runner.CreateState(inputs));
    ASSIGN_OR_RETURN(const std::vector<DistributedArray> arrays, runner.Launch(state, inputs));
    std::vector<Literal> values;
    for (const DistributedArray& array : arrays) {
      ASSIGN_OR_RETURN(values.emplace_back(), array.ToHost());
    }
    std::vector<std::string> results;
    for (const Literal& value : PutTogether(values, rows.results)) results.push_back(*value.bytes);
    return results;
  }

  absl::StatusOr<std::vector<std::string>> RunOnOne(const RandomProgram& program) {
    const Mesh mesh = *Mesh::Parse("1");
    const Plan plan = PlanOfStrategies(program.module, mesh, WholeStrategies(program.module, mesh));
    ASSIGN_OR_RETURN(const SpmdProgram lowered,
                     LowerSpmd(program.module, plan.stage, Platform::kCpu));
    ASSIGN_OR_RETURN(pjrt::Executable executable,
                     pjrt::Executable::Compile(devices_.client, ExportHlo(lowered.module), {}));
    ASSIGN_OR_RETURN(const Step step, MakeStep(program.module, {}));
    return Results(step, WholeRows(step),
                   std::make_unique<MeshExecutor>(devices_.client, std::move(executable), mesh,
                                                  SignatureOf(program.module, lowered)),
                   program);
  }

  absl::StatusOr<std::vector<std::string>> RunAsPipeline(const RandomProgram& program,
                                                         PlannedPipeline& planned) {
    if (const char* const folder = std::getenv("MINKA_RANDOM_DUMP")) {
      RETURN_IF_ERROR(DumpPipeline(planned, Platform::kCpu, nullptr, folder));
    }
    LocalSession session(devices_);
    ASSIGN_OR_RETURN(auto executor, CompilePipeline(planned, session));
    return Results(planned.prepared, planned.split.rows, std::move(executor), program);
  }

  void Compare(const RandomProgram& program, const std::vector<std::string>& pipeline,
               const std::vector<std::string>& one_device) {
    const Computation& entry = program.module.entry_computation();
    ASSERT_EQ(pipeline.size(), one_device.size());
    for (size_t i = 0; i < one_device.size(); ++i) {
      const std::optional<std::string> difference =
          Difference(pipeline[i], one_device[i], entry.shape(entry.results[i]), program.noise[i]);
      EXPECT_EQ(difference, std::nullopt)
          << "result " << i << " (" << entry.instruction(entry.results[i]).name << ")";
    }
  }

  const LocalDevices devices_ = OpenLocalDevices({.num_devices = 8}).value();
};

// What is refused, is so with a reason.
void ExpectRefusal(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_NE(Message(status), "");
}

TEST_F(RandomPipelines, ComputeWhatOneDeviceComputes) {
  const int num_programs = FromEnvironment("MINKA_RANDOM_PROGRAMS", 50);
  const int first_seed = FromEnvironment("MINKA_RANDOM_SEED", 1);
  int num_tried = 0, num_split = 0;
  std::map<std::pair<bool, int>, int> num_run;  // by whether it trains and micro-batches
  for (int seed = first_seed; seed < first_seed + num_programs && !HasFailure(); ++seed) {
    if (!IsOfThisRun(seed)) continue;
    ++num_tried;
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const RandomProgram program = MakeRandomProgram(seed);
    bool trains = seed % 2 == 0;
    RandomStep step = StepOf(program, 1 + seed % 3, trains);
    absl::StatusOr<PlannedPipeline> planned = PlanWithRows(step, seed);
    if (!planned.ok()) {
      ExpectRefusal(planned.status());
      if (!std::exchange(trains, false)) continue;
      step = StepOf(program, 1 + seed % 3, trains);
      planned = PlanWithRows(step, seed);
      if (!planned.ok()) {
        ExpectRefusal(planned.status());
        continue;
      }
    }
    TakeRandomPlans(seed, *planned);
    const auto on_one = RunOnOne(program);
    ASSERT_TRUE(on_one.ok()) << on_one.status();
    const auto as_pipeline = RunAsPipeline(program, *planned);
    ASSERT_TRUE(as_pipeline.ok()) << as_pipeline.status();
    Compare(program, *as_pipeline, *on_one);
    ++num_run[{trains, step.num_micro_batches}];
    if (planned->split.step.parameters.size() > step.step.parameters.size()) ++num_split;
  }
  std::printf("%d programs with rows of stacks\n", num_split);
  int num_all = 0;
  for (const auto& [kind, count] : num_run) {
    std::printf("%d programs %s state in %d micro-batches\n", count,
                kind.first ? "with" : "without", kind.second);
    num_all += count;
  }
  EXPECT_GE(num_all, num_tried * 3 / 4) << "the others were refused";
}

}  // namespace
}  // namespace minka
