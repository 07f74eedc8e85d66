// Alpa's tests of what happens to arrays at run time (OSDI'22) with the same sizes, on workers.
#include <cstring>
#include <filesystem>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/driver/checkpoint.h"
#include "minka/driver/evaluation.h"
#include "minka/driver/inputs.h"
#include "minka/driver/parallelize.h"
#include "minka/runtime/mesh/mesh_executor.h"
#include "minka/runtime/mesh/split_array.h"
#include "minka/runtime/worker/worker_pipeline_executor.h"
#include "tests/acceptance/dense_layers.h"
#include "tests/support/temporary_folder.h"

namespace minka {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;

constexpr uint64_t kSeed = 5;

Pipeline TwoStages(int num_micro_batches, int devices_of_each = 2) {
  Pipeline method{.num_micro_batches = num_micro_batches};
  method.options.num_stages = 2;
  method.options.submeshes = {devices_of_each, devices_of_each};
  return method;
}

// What most rows ask of: one mesh, the same in micro-batches, a pipeline.
std::vector<ParallelMethod> Methods() {
  return {Shard{}, Shard{.num_micro_batches = 2}, TwoStages(2)};
}

Parallelized Start(const TracedStep& traced, const ParallelMethod& method,
                   const std::string& plan_path = "") {
  auto run =
      Parallelize(traced, Cluster::Local(4), method,
                  {.plan_path = plan_path, .workers = WorkerOptions{.binary = MINKA_BINARY}});
  MINKA_CHECK(run.ok(), "{}", Message(run.status()));
  return *std::move(run);
}

Parallelized StartOnOneDevice(const TracedStep& traced) {
  auto run = Parallelize(traced, Cluster::Local(1), DataParallel{});
  MINKA_CHECK(run.ok(), "{}", Message(run.status()));
  return *std::move(run);
}

std::vector<std::string> Contents(const State& state) {
  std::vector<std::string> contents;
  for (const DistributedArray& array : state.arrays) {
    contents.push_back(array.empty() ? "" : *array.ToHost().value().bytes);
  }
  return contents;
}

Batch RandomBatch(const TracedStep& traced, uint64_t seed) {
  Batch batch;
  for (int i = 0; i < static_cast<int>(traced.step.parameters.size()); ++i) {
    if (traced.step.parameters[i].role != ParameterRole::kBatch) continue;
    batch.push_back(RandomInput(traced.step, i, seed).value());
  }
  return batch;
}

// The losses of steps from the state on.
std::vector<double> Losses(Parallelized& run, const TracedStep& traced, State state,
                           int num_steps) {
  std::vector<double> losses;
  for (int step = 0; step < num_steps; ++step) {
    auto result = run(std::move(state), RandomBatch(traced, kSeed + step));
    MINKA_CHECK(result.ok(), "{}", Message(result.status()));
    losses.push_back(result->Loss().value());
    state = std::move(result->state);
  }
  return losses;
}

testing::Matcher<std::vector<double>> AreNear(const std::vector<double>& wanted) {
  std::vector<testing::Matcher<double>> each;
  for (const double value : wanted) each.push_back(testing::DoubleNear(value, 1e-3 * value));
  return testing::ElementsAreArray(each);
}

Workers& WorkersOf(const Parallelized& run) {
  return dynamic_cast<WorkersSession&>(run.session()).workers();
}

int64_t NumArrays(const Parallelized& run) {
  int64_t most = 0;
  for (int i = 0; i < WorkersOf(run).size(); ++i) {
    worker::Request request;
    request.mutable_measure();
    const auto answer = WorkersOf(run).Ask(i, std::move(request));
    WorkersOf(run).Flush();
    most = std::max(most, WorkersOf(run).Wait(*answer).value().front().measured().num_arrays());
  }
  return most;
}

TEST(RunTimeRows, StateIsCreatedWhereTheStepTakesIt) {
  const TracedStep traced = Trace(DenseLayers(8, 32, 4, 1), AdamW()).value();
  Parallelized one_device = StartOnOneDevice(traced);
  const State alone = one_device.Initialize(kSeed).value();
  const std::vector<Literal> on_host = InitialValues(traced.step, traced.initializers, kSeed);
  for (const ParallelMethod& method : Methods()) {
    Parallelized run = Start(traced, method);
    const auto state = run.Initialize(kSeed);
    ASSERT_TRUE(state.ok()) << Message(state.status());
    for (int i = 0; i < static_cast<int>(state->arrays.size()); ++i) {
      if (state->arrays[i].empty()) continue;
      EXPECT_EQ(state->arrays[i].layout(), run.executor().ParameterLayout(i));
      // Of the host only as near as logarithms are.
      const Literal value = state->arrays[i].ToHost().value();
      for (int64_t element = 0; element < value.shape.num_elements(); ++element) {
        EXPECT_NEAR(ElementAsDouble(value, element), ElementAsDouble(on_host[i], element), 1e-6);
      }
    }
    EXPECT_EQ(Contents(*state), Contents(alone));
  }
}

TEST(RunTimeRows, AnEvaluationReadsParametersWhereTrainingHasThem) {
  const TracedStep training = Trace(DenseLayers(32, 8, 4, 1), AdamW()).value();
  const TracedStep evaluation = TraceEvaluation(DenseLayers(64, 8, 4, 1)).value();
  std::vector<double> losses;
  for (const ParallelMethod& method : Methods()) {
    Parallelized run = Start(training, method);
    auto evaluated = Evaluation::Create(evaluation, run, Cluster::Local(4), {});
    ASSERT_TRUE(evaluated.ok()) << Message(evaluated.status());
    EXPECT_EQ(evaluated->num_copied(), 0);
    State state = run.Initialize(kSeed).value();
    const auto results = evaluated->Run(state, RandomBatch(evaluation, kSeed)).value();
    losses.push_back(ScalarValue(results[evaluated->FindResult("loss")]));
  }
  for (const double loss : losses) EXPECT_NEAR(loss, losses[0], 1e-5 * losses[0]);
}

// 256 samples of 32 features in batches of 64: sums of columns are those of all samples.
TEST(RunTimeRows, PlacedBatchesArriveAsAPermutation) {
  const Shape shape{ElementType::kF32, {64, 32}};
  const Model model = {.name = "columns",
                       .inputs = {{"x", shape}},
                       .forward = [](const Scope& scope, std::span<const Tensor> inputs) {
                         const Tensor scale = scope.Parameter(
                             "scale", {}, {.initializer = {Initializer::Kind::kOnes}});
                         return ModelOutput{.loss = Mean(inputs[0]) * scale,
                                            .metrics = {{"columns", Sum(inputs[0], {0})}}};
                       }};
  const TracedStep traced = Trace(model, Sgd()).value();
  std::vector<double> wanted(32);
  std::vector<Batch> batches;
  for (int i = 0; i < 4; ++i) {
    std::vector<float> values(64 * 32);
    for (size_t element = 0; element < values.size(); ++element) {
      values[element] = static_cast<float>((element * 7919 + i * 104729) % 8192);
      wanted[element % 32] += values[element];
    }
    const std::string bytes(reinterpret_cast<const char*>(values.data()),
                            values.size() * sizeof(float));
    batches.push_back({Literal{shape, std::make_shared<const std::string>(bytes)}});
  }
  for (const char* sharding : {"[x,-]", "[-,x]", "[x,y]"}) {
    Parallelized run = Start(
        traced, Shard{.mesh = "x=2,y=2", .search = {.pins = {fmt::format("x={}", sharding)}}});
    State state = run.Initialize(kSeed).value();
    std::vector<double> sums(32);
    PlacedBatch next = run.Place(batches[0]).value();
    for (size_t i = 0; i < batches.size(); ++i) {
      EXPECT_EQ(next.arrays.back().ToString(), fmt::format("f32[64,32] {} on x=2,y=2", sharding));
      auto result = run.RunPlaced(std::move(state), std::move(next));
      ASSERT_TRUE(result.ok()) << Message(result.status());
      state = std::move(result->state);
      next = run.Place(batches[(i + 1) % batches.size()]).value();
      int columns = 0;
      while (traced.step.results[columns].name != "columns") ++columns;
      const Literal of_batch = result->results[columns].ToHost().value();
      for (int column = 0; column < 32; ++column) {
        sums[column] += ElementAsDouble(of_batch, column);
      }
    }
    EXPECT_EQ(sums, wanted) << sharding;
  }
}

std::vector<int32_t> Integers(const std::string& bytes) {
  std::vector<int32_t> values(bytes.size() / sizeof(int32_t));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// Counts to 8, split over 2x2 devices, is written in four tiles, and read by rows.
TEST(RunTimeRows, TilesAreSavedAndLoadedInAnotherSharding) {
  const Shape shape{ElementType::kS32, {4, 2}};
  Graph graph("identity");
  const Tensor x = graph.Parameter(shape, "x");
  graph.builder().SetResults({{x.value()}});
  Step step = MakeStep(std::move(graph.module()).Finish().value(), {.states = {"x:0"}}).value();
  const auto start = [&](const std::string& pin) {
    return Parallelize(step, Cluster::Local(4), Shard{.mesh = "a=2,b=2", .search = {.pins = {pin}}},
                       {.workers = WorkerOptions{.binary = MINKA_BINARY}})
        .value();
  };
  const std::vector<int32_t> values = {0, 1, 2, 3, 4, 5, 6, 7};
  const std::string bytes(reinterpret_cast<const char*>(values.data()),
                          values.size() * sizeof(int32_t));
  Parallelized tiled = start("x=[a,b]"), by_rows = start("x=[a,-]");
  const State state =
      tiled.Initialize({Literal{shape, std::make_shared<const std::string>(bytes)}}).value();
  const std::string folder = TemporaryPath("tiles");
  fs::remove_all(folder);
  ASSERT_TRUE(SaveCheckpoint({.folder = folder}, {.model = "x"}, tiled.runner(), state).ok());
  CheckpointReader checkpoint = CheckpointReader::Open(folder).value();
  const TensorFile file =
      ReadTensors(checkpoint.path() + "/" + checkpoint.manifest().files.at(0).name).value();
  std::vector<std::vector<int32_t>> tiles, rows;
  for (const auto& [name, tensor] : file.tensors) tiles.push_back(Integers(tensor.bytes));
  EXPECT_THAT(tiles, ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3), ElementsAre(4, 6),
                                 ElementsAre(5, 7)));
  const State loaded = RestoreCheckpoint(checkpoint, by_rows.runner()).value();
  const std::vector<std::string> parts = loaded.arrays[0].PartsToHost().value();
  for (const std::string& part : parts) rows.push_back(Integers(part));
  EXPECT_THAT(rows, ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(0, 1, 2, 3),
                                ElementsAre(4, 5, 6, 7), ElementsAre(4, 5, 6, 7)));
}

TEST(RunTimeRows, APipelineGoesOnFromAnUnshardedCheckpointAndTheOtherWay) {
  const TracedStep traced = Trace(DenseLayers(64, 16, 4, 1), Sgd()).value();
  Parallelized one_device = StartOnOneDevice(traced), pipeline = Start(traced, TwoStages(4));
  const std::vector<double> wanted =
      Losses(one_device, traced, one_device.Initialize(kSeed).value(), 3);
  const std::string folder = TemporaryPath("unsharded");
  const auto through_files = [&](Parallelized& from, Parallelized& to) {
    fs::remove_all(folder);
    const State state = from.Initialize(kSeed).value();
    MINKA_CHECK(SaveCheckpoint({.folder = folder}, {.model = "x"}, from.runner(), state).ok());
    CheckpointReader checkpoint = CheckpointReader::Open(folder).value();
    return Losses(to, traced, RestoreCheckpoint(checkpoint, to.runner()).value(), 3);
  };
  EXPECT_THAT(through_files(one_device, pipeline), AreNear(wanted));
  EXPECT_THAT(through_files(pipeline, one_device), AreNear(wanted));
}

TEST(RunTimeRows, StateThatWasReadBackGoesOn) {
  const TracedStep traced = Trace(DenseLayers(64, 16, 4, 1), Sgd()).value();
  for (const ParallelMethod& method : Methods()) {
    Parallelized run = Start(traced, method);
    State state = run.Initialize(kSeed).value();
    ParameterValues values(state.arrays.size());
    for (size_t i = 0; i < values.size(); ++i) {
      if (!state.arrays[i].empty()) values[i] = state.arrays[i].ToHost().value();
    }
    const std::vector<double> wanted = Losses(run, traced, std::move(state), 2);
    EXPECT_EQ(Losses(run, traced, run.Initialize(values).value(), 2), wanted);
  }
}

TEST(RunTimeRows, StepsLeaveNoArraysBehind) {
  const TracedStep traced = Trace(DenseLayers(128, 128, 4, 1), Sgd()).value();
  for (const ParallelMethod& method : Methods()) {
    Parallelized run = Start(traced, method);
    Losses(run, traced, run.Initialize(kSeed).value(), 2);
    EXPECT_EQ(NumArrays(run), 0);
  }
}

TEST(RunTimeRows, AStoredPlanIsTheSamePlan) {
  const TracedStep traced = Trace(DenseLayers(64, 16, 4, 1), Sgd()).value();
  const std::string path = TemporaryPath("plan.json");
  for (const ParallelMethod& method :
       {ParallelMethod(DataParallel{}), ParallelMethod(TwoStages(2))}) {
    const Parallelized first = Start(traced, method);
    ASSERT_TRUE(first.SavePlan(path).ok());
    const Parallelized again = Start(traced, method, path);
    for (int i = 0; i < static_cast<int>(traced.step.parameters.size()); ++i) {
      EXPECT_EQ(first.executor().ParameterLayout(i), again.executor().ParameterLayout(i));
    }
    if (first.pipeline() != nullptr) continue;
    EXPECT_EQ(first.plan().objective, again.plan().objective);
  }
}

// Two arrays of 16x4: all their elements differ, so do those of another seed, and the same seed
// gives the same in another program.
TEST(RunTimeRows, RandomNumbersAreThoseOfTheirSeed) {
  const auto draw = [&](const Model& model, const Optimizer& optimizer, uint64_t seed) {
    const TracedStep traced = Trace(model, optimizer).value();
    Parallelized run = Start(traced, Zero3{});
    const State state = run.Initialize(seed).value();
    std::vector<int32_t> numbers;
    for (size_t i = 0; i < state.arrays.size(); ++i) {
      if (traced.step.parameters[i].name.find("params/") != 0) continue;
      EXPECT_FALSE(state.arrays[i].layout().sharding.is_replicated());
      const Literal value = state.arrays[i].ToHost().value();
      for (int64_t element = 0; element < value.shape.num_elements(); ++element) {
        numbers.push_back(static_cast<int32_t>(ElementAsDouble(value, element) * 10'000));
      }
    }
    return numbers;
  };
  const Model model = {
      .name = "two_tables",
      .inputs = {{"x", {ElementType::kF32, {8, 16}}}},
      .forward = [](const Scope& scope, std::span<const Tensor> inputs) {
        const ParameterOptions normal{.initializer = {Initializer::Kind::kNormal, 1}};
        const Tensor a = scope.Parameter("a", {16, 4}, normal);
        const Tensor b = scope.Parameter("b", {16, 4}, normal);
        return ModelOutput{.loss = Mean(MatMul(inputs[0], a) * MatMul(inputs[0], b))};
      }};
  const std::vector<int32_t> numbers = draw(model, Sgd(), 10);
  EXPECT_EQ(numbers.size(), 128u);
  EXPECT_EQ(std::set(numbers.begin(), numbers.end()).size(), 128u);
  EXPECT_EQ(draw(model, AdamW(), 10), numbers);
  const std::vector<int32_t> others = draw(model, Sgd(), 11);
  for (size_t i = 0; i < numbers.size(); ++i) EXPECT_NE(numbers[i], others[i]) << i;
}

TEST(RunTimeRows, ATracedStepShowsEveryRun) {
  const TracedStep traced = Trace(DenseLayers(64, 16, 2, 2), Sgd()).value();
  Parallelized run = Start(traced, TwoStages(2));
  auto& executor = dynamic_cast<PipelineExecutor&>(run.runner().executor());
  std::set<std::string> programs;
  int runs_of_first = 0;
  State state = run.Initialize(kSeed).value();
  executor.set_is_tracing(true);
  for (int step = 0; step < 2; ++step) {
    auto result = run(std::move(state), RandomBatch(traced, kSeed));
    ASSERT_TRUE(result.ok()) << Message(result.status());
    state = std::move(result->state);
    ASSERT_TRUE(executor.Wait().ok());
    for (size_t mesh = 0; mesh < executor.trace().size(); ++mesh) {
      const MeshProgram& program = executor.program().meshes[mesh];
      for (const InstructionTime& time : executor.trace()[mesh]) {
        const auto* const ran =
            std::get_if<RunInstruction>(&program.instructions[time.instruction]);
        if (ran == nullptr) continue;
        EXPECT_LT(time.begin_us, time.end_us);
        const StageProgram& of_stage = program.programs[ran->program];
        if (of_stage.task.kind == ProgramKind::kFront) continue;
        const std::string name = fmt::format("{} {}", of_stage.stage, ToString(of_stage.task));
        programs.insert(name);
        runs_of_first += name == "0 forward" ? 1 : 0;
      }
    }
  }
  EXPECT_EQ(programs.size(), 6u) << testing::PrintToString(programs);
  EXPECT_EQ(runs_of_first, 4);
}

}  // namespace
}  // namespace minka
