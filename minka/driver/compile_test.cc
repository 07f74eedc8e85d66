#include "minka/driver/compile.h"

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/file.h"
#include "minka/base/status.h"
#include "minka/driver/inputs.h"
#include "minka/driver/parallelize.h"
#include "minka/ir/builder.h"
#include "minka/models/gpt.h"
#include "minka/models/mlp.h"
#include "minka/planner/intra_op/intra_op.h"
#include "tests/support/temporary_folder.h"

namespace minka {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const LocalDevices& Devices() {
  static const LocalDevices devices = OpenLocalDevices({.num_devices = 8}).value();
  return devices;
}

LocalSession& Here() {
  static LocalSession session(Devices());
  return session;
}

TracedStep SmallMlp() {
  return Trace(Mlp({.batch = 16, .hidden = 32, .num_layers = 2}), Sgd()).value();
}

PlanSource Planned(const ParallelMethod& method) {
  return [method](const Step& step, std::optional<int64_t> limit) -> SearchResult<Plan> {
    ASSIGN_OR_RETURN(PlanRequest request, RequestFor(Cluster::Local(8), method, {}));
    request.search.memory_limit_bytes = limit;
    ASSIGN_OR_RETURN(PlanResult result, PlanStep(step, request));
    return result.candidates[result.best].plan;
  };
}

TEST(Compile, StopsWhereItIsToldTo) {
  std::vector<std::string> begun;
  CompileOptions options{.stop_after = "lower",
                         .on_step = [&](std::string_view step) { begun.emplace_back(step); }};
  const auto compiled = Compile(SmallMlp().step, Planned(DataParallel{}), Here(), options);
  ASSERT_TRUE(compiled.ok()) << Message(compiled.status());
  EXPECT_EQ(compiled->executor, nullptr);
  EXPECT_THAT(begun, ElementsAre("import", "prepare", "plan", "check", "lower"));
  EXPECT_EQ(compiled->times.size(), begun.size());
  options.stop_after = "link";
  EXPECT_EQ(
      Message(Compile(SmallMlp().step, Planned(DataParallel{}), Here(), options).status()),
      "no step \"link\" to stop after; there are import, prepare, plan, check, lower, verify, "
      "xla");
}

TEST(Compile, WritesEveryStepOfTheCompiler) {
  const std::string folder = TemporaryPath("dump");
  const auto compiled = Compile(SmallMlp().step, Planned(Shard{.mesh = "2x4"}), Here(),
                                {.dump_dir = folder, .configuration = {{"mesh", "2x4"}}});
  ASSERT_TRUE(compiled.ok()) << Message(compiled.status());
  std::vector<std::string> files;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    files.push_back(file.path().filename().string());
  }
  EXPECT_THAT(files, testing::UnorderedElementsAre(
                         "01-imported.txt", "02-prepared.txt", "03-plan.json", "04-local.hlo.txt",
                         "05-optimized.hlo.txt", "manifest.json", "memory.json", "step_inputs.txt",
                         "step_outputs.txt"));
  EXPECT_THAT(*ReadFile(folder + "/step_inputs.txt"),
              HasSubstr("params/layer_0/kernel  f32[32,32]"));
  EXPECT_THAT(*ReadFile(folder + "/manifest.json"), HasSubstr("\"mesh\": \"2x4\""));
  // What was dumped runs again as it is.
  const auto again =
      Compile(SmallMlp().step, PlanFromText(*ReadFile(folder + "/03-plan.json")), Here(), {});
  ASSERT_TRUE(again.ok()) << Message(again.status());
  EXPECT_EQ(PlanToJson(again->plan, again->prepared.module),
            PlanToJson(compiled->plan, compiled->prepared.module));
}

TEST(Compile, SaysThatTheFolderCannotBeWritten) {
  const auto compiled =
      Compile(SmallMlp().step, Planned(DataParallel{}), Here(), {.dump_dir = "/proc/minka"});
  EXPECT_THAT(Message(compiled.status()), HasSubstr("/proc/minka"));
}

TEST(Compile, TellsTheCompiledMemory) {
  const auto compiled = Compile(SmallMlp().step, Planned(DataParallel{}), Here(), {});
  ASSERT_TRUE(compiled.ok()) << Message(compiled.status());
  EXPECT_EQ(compiled->plan.memory_tier, MemoryTier::kCompiled);
  // Two layers' kernels and biases and a device's two examples are there at least; their gradients
  // and activations are no more than three times as much.
  constexpr int64_t kState = 2 * (32 * 32 + 32) * 4, kBatch = 2 * (2 * 32) * 4;
  EXPECT_GE(compiled->plan.peak_memory_bytes, kState + kBatch);
  EXPECT_LE(compiled->plan.peak_memory_bytes, 4 * (kState + kBatch));
}

// What frees memory keeps its place (release_operands.h), so that the estimate need not be far
// above.
TEST(Compile, TheEstimateIsCloseToTheCompiledMemory) {
  const TracedStep gpt = Trace(Gpt({.batch = 16,
                                    .sequence = 128,
                                    .vocabulary = 256,
                                    .hidden = 64,
                                    .num_layers = 2,
                                    .num_heads = 2}),
                               AdamW())
                             .value();
  for (const ParallelMethod& method : {ParallelMethod(DataParallel{}), ParallelMethod(Zero3{})}) {
    int64_t estimated = 0;
    const PlanSource source = [&](const Step& step,
                                  std::optional<int64_t> limit) -> SearchResult<Plan> {
      ASSIGN_OR_RETURN(Plan plan, Planned(method)(step, limit));
      estimated = plan.peak_memory_bytes;
      return plan;
    };
    const auto compiled = Compile(gpt.step, source, Here(), {});
    ASSERT_TRUE(compiled.ok()) << Message(compiled.status());
    const double ratio =
        static_cast<double>(compiled->plan.peak_memory_bytes) / static_cast<double>(estimated);
    EXPECT_GT(ratio, 0.8);
    EXPECT_LE(ratio, 1);
  }
}

// Estimates err to either side: what is estimated to need a little too much is compiled.
TEST(Compile, TakesTheSmallestLimitKnownToWorkWhereNothingFits) {
  const auto data = Compile(SmallMlp().step, Planned(DataParallel{}), Here(), {});
  ASSERT_TRUE(data.ok()) << Message(data.status());
  const int64_t fits = data->plan.peak_memory_bytes;
  std::vector<int64_t> limits;
  const PlanSource source = [&](const Step& step,
                                std::optional<int64_t> limit) -> SearchResult<Plan> {
    limits.push_back(*limit);
    if (*limit < fits + 100) {
      return Refusal{.why = ResourceExhausted("nothing fits"), .smallest_limit_bytes = fits + 100};
    }
    return Planned(DataParallel{})(step, std::nullopt);
  };
  const auto compiled = Compile(SmallMlp().step, source, Here(), {.memory_limit_bytes = fits});
  ASSERT_TRUE(compiled.ok()) << Message(compiled.status());
  EXPECT_THAT(limits, ElementsAre(fits, fits + 100));
}

TEST(Compile, PlansAgainThreeTimesAtMost) {
  int plans = 0;
  const PlanSource source = [&](const Step& step, std::optional<int64_t>) {
    ++plans;
    return Planned(DataParallel{})(step, std::nullopt);
  };
  const auto compiled = Compile(SmallMlp().step, source, Here(), {.memory_limit_bytes = 1000});
  EXPECT_EQ(plans, 4);
  EXPECT_THAT(Message(compiled.status()), HasSubstr("1000 are allowed; raise the memory limit"));
}

TEST(Compile, KeepsTheBoundsOfTheLimitThatWasAskedFor) {
  const auto data = Compile(SmallMlp().step, Planned(DataParallel{}), Here(), {});
  ASSERT_TRUE(data.ok()) << Message(data.status());
  Plan first = data->plan;
  first.objective = 100;
  first.lower_bound = 90;
  first.gap = 0.2;
  int plans = 0;
  const PlanSource source = [&](const Step& step, std::optional<int64_t>) -> SearchResult<Plan> {
    if (++plans == 1) return first;
    ASSIGN_OR_RETURN(Plan plan, Planned(Zero3{})(step, std::nullopt));
    plan.objective = 160;
    plan.lower_bound = 150;
    plan.gap = plan.sharding_gap = 0.0625;
    return plan;
  };
  const auto compiled = Compile(SmallMlp().step, source, Here(),
                                {.memory_limit_bytes = data->plan.peak_memory_bytes - 1});
  ASSERT_TRUE(compiled.ok()) << Message(compiled.status());
  EXPECT_EQ(plans, 2);
  // Another method, so only the bound of the whole search is known of it.
  EXPECT_DOUBLE_EQ(compiled->plan.lower_bound, 80);
  EXPECT_DOUBLE_EQ(compiled->plan.sharding_gap, 0.5);
  EXPECT_DOUBLE_EQ(*compiled->plan.gap, 0.5);
}

TEST(Compile, RefusesMoreDevicesThanThereAre) {
  const auto source = [](const Step& step, std::optional<int64_t>) -> SearchResult<Plan> {
    ASSIGN_OR_RETURN(PlanRequest request,
                     RequestFor(Cluster::Local(16), DataParallel{.mesh = "data=16"}, {}));
    ASSIGN_OR_RETURN(PlanResult result, PlanStep(step, request));
    return result.candidates[result.best].plan;
  };
  EXPECT_EQ(Message(Compile(SmallMlp().step, source, Here(), {}).status()),
            "the mesh data=16 has more devices than the 8 at hand");
}

TEST(Parallelize, StateStaysOnTheDevicesAndIsConsumed) {
  const TracedStep traced = SmallMlp();
  auto run = Parallelize(traced, Cluster::Local(8), Shard{}, {.devices = Devices()});
  ASSERT_TRUE(run.ok()) << Message(run.status());
  State state = run->Initialize(0).value();
  const std::vector<Literal> inputs = RandomInputs(traced.step, 1).value();
  const Batch batch(inputs.end() - 2, inputs.end());
  double first = 0, last = 0;
  for (int i = 0; i < 30; ++i) {
    auto result = (*run)(std::move(state), batch);
    ASSERT_TRUE(result.ok()) << Message(result.status());
    state = std::move(result->state);
    (i == 0 ? first : last) = result->Loss().value();
  }
  EXPECT_LT(last, first);
  EXPECT_EQ(run->runner().executor().times().us.size(), 30u);
  const int64_t peak = run->runner().executor().MeasuredPeakBytes().value();
  EXPECT_GT(peak, 0);
  State empty = std::move(state);
  EXPECT_EQ(Message((*run)(std::move(state), batch).status()),
            "this state was consumed by an earlier step; use what that returned");
  EXPECT_EQ(Message((*run)(std::move(empty), {batch[0]}).status()),
            "the batch has 1 arrays; y is missing");
}

TEST(Parallelize, EveryMethodCarriesTheOptionsOfTheSearch) {
  const SearchOptions search = {.memory_limit_bytes = 1 << 30,
                                .pins = {"x=[data,-]"},
                                .limits = {.no_all_to_all = true, .combine_gathers_bytes = 64},
                                .gap = 0.1,
                                .time_limit_seconds = 7,
                                .num_threads = 1};
  for (const Method method : {Method::kShard, Method::kData, Method::kZero2, Method::kZero3}) {
    const auto request =
        RequestFor(Cluster::Local(8), MakeMethod(method, "data=8", search), /*cost_model=*/{});
    ASSERT_TRUE(request.ok()) << Message(request.status());
    EXPECT_EQ(request->methods, std::vector{method});
    EXPECT_EQ(request->search, search) << MethodName(method);
  }
}

TEST(Parallelize, OptionsOfTheSearchBesideAPlanAreRefused) {
  const auto run =
      Parallelize(SmallMlp(), Cluster::Local(8), DataParallel{.search = {.pins = {"x=[data,-]"}}},
                  {.plan_path = "plan.json", .devices = Devices()});
  EXPECT_EQ(
      Message(run.status()),
      "plan.json is a plan already made; leave out pins, limits, gap, time limit and threads, "
      "or leave out the plan to search for one");
}

TEST(OpenLocalDevices, SaysHowManyThereCanBe) {
  EXPECT_EQ(Message(OpenLocalDevices({.num_devices = 65}).status()),
            "65 local devices asked for; 1 to 64 can be had");
  EXPECT_THAT(Message(OpenLocalDevices({.plugin_path = "/nonexistent.so"}).status()),
              HasSubstr("/nonexistent.so"));
}

}  // namespace
}  // namespace minka
