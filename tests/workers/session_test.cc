// What a session promises, in this process and over workers.
#include "minka/runtime/pipeline/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <functional>
#include <numeric>
#include <thread>

#include "minka/base/check.h"
#include "minka/ir/hlo_proto.h"
#include "minka/runtime/mesh/local_devices.h"
#include "minka/runtime/mesh/step_runner.h"
#include "small_pipeline.h"

namespace minka {
namespace {

using testing::HasSubstr;

constexpr int kMeshes = 2;

enum class Kind { kLocal, kWorkers };

class SessionTest : public testing::TestWithParam<Kind> {
 protected:
  SessionTest() : small_(PlanSmallPipeline(kMeshes)) {
    if (GetParam() == Kind::kLocal) {
      devices_ = OpenLocalDevices({.num_devices = kMeshes}).value();
      session_ = std::make_unique<LocalSession>(*devices_);
      return;
    }
    auto session = StartWorkers(small_.planned.num_devices(), {.binary = MINKA_BINARY});
    MINKA_CHECK(session.ok(), "{}", Message(session.status()));
    session_ = *std::move(session);
  }

  StepRunner Load() {
    auto executor = CompilePipeline(small_.planned, *session_);
    MINKA_CHECK(executor.ok(), "{}", Message(executor.status()));
    return {small_.planned.prepared, *std::move(executor)};
  }

  Workers* workers() const {
    auto* const session = dynamic_cast<WorkersSession*>(session_.get());
    return session == nullptr ? nullptr : &session->workers();
  }

  // Arrays on all workers.
  int64_t NumArrays() const {
    int64_t sum = 0;
    for (int i = 0; i < workers()->size(); ++i) {
      worker::Request request;
      request.mutable_measure();
      const auto answer = workers()->Ask(i, std::move(request));
      workers()->Flush();
      sum += workers()->Wait(*answer).value().front().measured().num_arrays();
    }
    return sum;
  }

  std::vector<std::string> StateOf(const State& state) const {
    std::vector<std::string> bytes;
    for (const DistributedArray& array : state.arrays) {
      if (!array.empty()) bytes.push_back(*array.ToHost().value().bytes);
    }
    return bytes;
  }

  SmallPipeline small_;
  std::optional<LocalDevices> devices_;
  std::unique_ptr<Session> session_;
};

TEST_P(SessionTest, GivesBackWhatItWasGiven) {
  StepRunner runner = Load();
  const ParameterValues values = small_.Values();
  const State state = runner.CreateState(values).value();
  for (size_t i = 0; i < state.arrays.size(); ++i) {
    if (state.arrays[i].empty()) continue;
    EXPECT_EQ(*state.arrays[i].ToHost().value().bytes, *values[i].bytes) << i;
  }
}

TEST_P(SessionTest, ProgramsShareArrays) {
  StepRunner first = Load(), second = Load();
  const ParameterValues values = small_.Values();
  State alone = first.CreateState(values).value();
  State shared = first.CreateState(values).value();
  for (int step = 0; step < 2; ++step) {
    alone = first.Run(std::move(alone), values).value().state;
    shared = (step == 0 ? first : second).Run(std::move(shared), values).value().state;
  }
  EXPECT_EQ(StateOf(shared), StateOf(alone));
}

TEST_P(SessionTest, AnotherShapeIsRefused) {
  StepRunner runner = Load();
  const auto array = runner.executor().Put(0, FilledLiteral({ElementType::kF32, {3}}, 1));
  EXPECT_THAT(Message(array.status()), HasSubstr("parameter 0: it is f32["));
  EXPECT_THAT(Message(array.status()), HasSubstr("given is f32[3]"));
}

TEST_P(SessionTest, MeasuresStepsAndMemory) {
  StepRunner runner = Load();
  const ParameterValues values = small_.Values();
  State state = runner.CreateState(values).value();
  ASSERT_TRUE(runner.executor().ResetMeasurements().ok());
  for (int step = 0; step < 3; ++step) state = runner.Run(std::move(state), values).value().state;
  ASSERT_TRUE(runner.executor().Wait().ok());
  EXPECT_EQ(runner.executor().times().us.size(), 3u);
  for (const double us : runner.executor().times().us) EXPECT_GT(us, 0);
  const int64_t peak = runner.executor().MeasuredPeakBytes().value();
  EXPECT_EQ(peak, small_.planned.plan.peak_memory_bytes);
}

TEST_P(SessionTest, AThousandStepsLeaveNothingBehind) {
  StepRunner runner = Load();
  const ParameterValues values = small_.Values();
  State state = runner.CreateState(values).value();
  int64_t num_arrays = 0;
  ASSERT_TRUE(runner.executor().ResetMeasurements().ok());
  for (int step = 0; step < 1000; ++step) {
    state = runner.Run(std::move(state), values).value().state;
    if (step == 10 && workers() != nullptr) num_arrays = NumArrays();
  }
  ASSERT_TRUE(runner.executor().Wait().ok());
  if (workers() != nullptr) {
    EXPECT_EQ(NumArrays(), num_arrays);
  }
  EXPECT_EQ(runner.executor().MeasuredPeakBytes().value(), small_.planned.plan.peak_memory_bytes);
}

INSTANTIATE_TEST_SUITE_P(All, SessionTest, testing::Values(Kind::kLocal, Kind::kWorkers),
                         [](const auto& info) {
                           return info.param == Kind::kLocal ? "local" : "workers";
                         });

class WorkerSessionTest : public SessionTest {};

// Stopped workers can have done nothing.
TEST_P(WorkerSessionTest, AStepIsLaunchedWithoutWaiting) {
  StepRunner runner = Load();
  const ParameterValues values = small_.Values();
  State state = runner.CreateState(values).value();
  ASSERT_TRUE(StateOf(state).size() > 1);  // all that was asked for is done
  for (int i = 0; i < kMeshes; ++i) ASSERT_EQ(kill(workers()->pid(i), SIGSTOP), 0);
  auto results = runner.Launch(state, values);
  auto next = results.ok() ? runner.NextState(std::move(state), *results) : results.status();
  for (int i = 0; i < kMeshes; ++i) ASSERT_EQ(kill(workers()->pid(i), SIGCONT), 0);
  ASSERT_TRUE(next.ok()) << Message(next.status());
  EXPECT_TRUE(runner.executor().times().us.empty());
  ASSERT_TRUE(runner.executor().Wait().ok());
  EXPECT_EQ(runner.executor().times().us.size(), 1u);
}

// -x of a matrix of 400 KiB, by rows on two devices and by columns on two others.
PipelineProgram Negations() {
  PipelineProgram program;
  const Shape shape{ElementType::kS32, {1024, 100}};
  for (const char* const split : {"[x,-]", "[-,x]"}) {
    MeshProgram& mesh = program.meshes.emplace_back(MeshProgram{.mesh = *Mesh::Parse("x=2")});
    const Sharding sharding = *ParseSharding(split, mesh.mesh);
    const std::string local = ToString(LocalShape(shape, sharding, mesh.mesh));
    mesh.programs.push_back({.module = *ParseHloText(fmt::format(
                                 "HloModule negation\n\nENTRY main {{\n  x = {} parameter(0)\n"
                                 "  ROOT y = {} negate(x)\n}}\n",
                                 local, local))});
    mesh.slots = {{"x", shape, sharding}, {"y", shape, sharding}};
    mesh.instructions = {RunInstruction{.arguments = {0}, .results = {1}}};
  }
  program.parameters = {{{0, 0}, {1, 0}}};
  program.results = {{0, 1}, {1, 1}};
  return program;
}

// Arrays of 64 KiB and more come in memory that a worker shares: whole, in pieces, or in no such
// memory where there is too little.
class ArenaTest : public testing::TestWithParam<size_t> {
 protected:
  ArenaTest() {
    auto workers = Workers::StartLocal({.num_devices = {2, 2},
                                        .binary = MINKA_BINARY,
                                        .version = MINKA_VERSION,
                                        .arena_bytes = GetParam()});
    MINKA_CHECK(workers.ok(), "{}", Message(workers.status()));
    auto executor = WorkerPipelineExecutor::Create(*workers, Negations());
    MINKA_CHECK(executor.ok(), "{}", Message(executor.status()));
    executor_ = *std::move(executor);
  }

  // first, first + 1, ...
  DistributedArray PutNumbers(int32_t first) {
    std::vector<int32_t> numbers(kElements);
    std::iota(numbers.begin(), numbers.end(), first);
    const std::span<const int32_t> view = numbers;
    return executor_
        ->Put(0,
              HostArray({ElementType::kS32, {1024, 100}},
                        {.bytes = {reinterpret_cast<const char*>(view.data()), view.size_bytes()}}))
        .value();
  }

  std::vector<DistributedArray> Negate(DistributedArray argument) {
    DistributedArray* const arguments[] = {&argument};
    return executor_->Run(arguments).value();
  }

  static void ExpectNegated(const Literal& found, int32_t first) {
    const auto* const elements = reinterpret_cast<const int32_t*>(found.bytes->data());
    for (int32_t i = 0; i < kElements; ++i) ASSERT_EQ(elements[i], -(first + i));
  }
  static void ExpectNegated(const std::vector<DistributedArray>& results, int32_t first) {
    for (const DistributedArray& result : results) ExpectNegated(result.ToHost().value(), first);
  }

  static constexpr int32_t kElements = 1024 * 100;
  std::unique_ptr<WorkerPipelineExecutor> executor_;
};

// More of them than fit are on their way at once.
TEST_P(ArenaTest, LargeArraysArriveWhole) {
  std::vector<std::vector<DistributedArray>> results;
  for (int step = 0; step < 20; ++step) results.push_back(Negate(PutNumbers(step)));
  for (int step = 0; step < 20; ++step) ExpectNegated(results[step], step);
}

// As a thread that prefetches batches puts them beside the one that runs steps.
TEST_P(ArenaTest, ArraysOfTwoThreadsStayApart) {
  std::vector<DistributedArray> of_thread;
  std::thread thread([&] {
    for (int i = 0; i < 10; ++i) of_thread.push_back(PutNumbers(1000 + i));
  });
  std::vector<DistributedArray> of_main;
  for (int i = 0; i < 10; ++i) of_main.push_back(PutNumbers(i));
  thread.join();
  for (int i = 0; i < 10; ++i) {
    ExpectNegated(Negate(std::move(of_thread[i])), 1000 + i);
    ExpectNegated(Negate(std::move(of_main[i])), i);
  }
}

// What is asked for and not read yet, or never, takes no room from what is put.
TEST_P(ArenaTest, ArraysAreFetchedWhileOthersArePut) {
  const std::vector<DistributedArray> results = Negate(PutNumbers(1));
  std::vector<std::function<absl::StatusOr<Literal>()>> pending;
  for (int i = 0; i < 20; ++i) pending.push_back(results.front().StartToHost());
  pending.resize(10);
  std::vector<std::vector<pjrt::LentContents>> parts;
  for (int i = 0; i < 10; ++i) {
    parts.push_back(
        results.front().storage().Fetch({0}, kElements * sizeof(int32_t) / 2)().value());
    ExpectNegated(Negate(PutNumbers(i)), i);
  }
  for (const auto& read : pending) ExpectNegated(read().value(), 1);
  for (const std::vector<pjrt::LentContents>& part : parts) {
    const auto* const elements = reinterpret_cast<const int32_t*>(part.front().bytes.data());
    for (int32_t i = 0; i < kElements / 2; ++i) ASSERT_EQ(elements[i], -(1 + i));
  }
}

INSTANTIATE_TEST_SUITE_P(All, ArenaTest,
                         testing::Values(0, 200'000, 1'000'000, SharedArena::kDefaultCapacity),
                         [](const auto& info) { return fmt::format("of{}", info.param); });

INSTANTIATE_TEST_SUITE_P(All, WorkerSessionTest, testing::Values(Kind::kWorkers),
                         [](const auto&) { return "workers"; });

}  // namespace
}  // namespace minka
