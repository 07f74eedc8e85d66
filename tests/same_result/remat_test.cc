// Rematerialisation from the choice to the compiled program: same numbers, fewer temporary bytes,
// and plans that say what was chosen.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/check.h"
#include "minka/base/file.h"
#include "minka/base/status.h"
#include "minka/driver/inputs.h"
#include "minka/driver/parallelize.h"
#include "minka/driver/prepare.h"
#include "minka/ir/testing/evaluator.h"
#include "minka/models/gpt.h"
#include "minka/models/mlp.h"
#include "minka/models/unet.h"
#include "tests/support/temporary_folder.h"

namespace minka {
namespace {

using ::testing::HasSubstr;

constexpr RematPolicy kNone = RematPolicy::kNone;
constexpr RematPolicy kDots = RematPolicy::kDots;
constexpr RematPolicy kAll = RematPolicy::kAll;

const LocalDevices& Devices() {
  static const LocalDevices devices = OpenLocalDevices({.num_devices = 8}).value();
  return devices;
}

TracedStep FourLayers() {
  return Trace(Gpt({.batch = 64,
                    .sequence = 64,
                    .vocabulary = 64,
                    .hidden = 64,
                    .num_layers = 4,
                    .num_heads = 4,
                    .dropout = 0.1}),
               Sgd())
      .value();
}

Parallelized MustParallelize(const TracedStep& traced, const ParallelMethod& method,
                             const std::string& plan_path = "") {
  auto run = Parallelize(traced, Cluster::Local(8), method,
                         {.plan_path = plan_path, .devices = Devices()});
  MINKA_CHECK(run.ok(), "{}", Message(run.status()));
  return *std::move(run);
}

int64_t TemporaryBytes(const Parallelized& run) {
  return run.runner().executor().executables()[0]->memory().temp_bytes;
}

// The host evaluator computes every operation exactly as written.
void ExpectSameBits(const TracedStep& traced) {
  const Step plain = Prepare(traced.step).value();
  std::vector<testing::Array> inputs;
  for (int i = 0; i < static_cast<int>(plain.parameters.size()); ++i) {
    inputs.push_back(testing::FromLiteral(RandomInput(traced.step, i, 5).value()));
  }
  const std::vector<testing::Array> expected = testing::Evaluate(plain.module, inputs);
  for (const RematPolicy policy : {kDots, kAll}) {
    const Step remat = Prepare(traced.step, {.remat = {policy}}).value();
    EXPECT_GT(remat.module.entry_computation().num_instructions(),
              plain.module.entry_computation().num_instructions());
    const std::vector<testing::Array> results = testing::Evaluate(remat.module, inputs);
    ASSERT_EQ(results.size(), expected.size());
    for (size_t i = 0; i < results.size(); ++i) {
      EXPECT_EQ(results[i].elements, expected[i].elements) << plain.results[i].name;
    }
  }
}

TEST(Remat, ComputesTheSameBits) {
  ExpectSameBits(Trace(Mlp({.batch = 4, .hidden = 4, .num_layers = 3}), Sgd()).value());
  ExpectSameBits(Trace(Gpt({.batch = 2,
                            .sequence = 4,
                            .vocabulary = 11,
                            .hidden = 8,
                            .num_layers = 2,
                            .num_heads = 2,
                            .dropout = 0.2}),
                       AdamW())
                     .value());
}

TEST(Remat, CompiledTemporaryBytesFallFromNoneOverDotsToAll) {
  const TracedStep traced = FourLayers();
  std::vector<int64_t> bytes;
  for (const RematPolicy policy : {kNone, kDots, kAll}) {
    bytes.push_back(
        TemporaryBytes(MustParallelize(traced, DataParallel{.remat = RematChoice{policy}})));
  }
  EXPECT_LT(static_cast<double>(bytes[1]), 0.85 * static_cast<double>(bytes[0]));
  EXPECT_LT(static_cast<double>(bytes[2]), 0.9 * static_cast<double>(bytes[1]));
}

TEST(Remat, ALimitInBetweenTakesAsMuchAsItNeedsAndThePlanReproducesIt) {
  const TracedStep traced = FourLayers();
  const int64_t none = MustParallelize(traced, DataParallel{}).plan().peak_memory_bytes;
  const int64_t all =
      MustParallelize(traced, DataParallel{.remat = RematChoice{kAll}}).plan().peak_memory_bytes;
  const int64_t limit = (3 * none + all) / 4;
  const Parallelized run =
      MustParallelize(traced, DataParallel{.search = {.memory_limit_bytes = limit}});
  const Plan& plan = run.plan();
  EXPECT_LE(plan.peak_memory_bytes, limit);
  EXPECT_EQ(plan.remat.size(), 6u);
  EXPECT_NE(plan.remat, (RematChoice{kAll, kAll, kAll, kAll, kAll, kNone})) << "less is enough";
  EXPECT_FALSE(plan.gap.has_value());

  const std::string path = TemporaryPath("remat_plan.json");
  ASSERT_TRUE(run.SavePlan(path).ok());
  EXPECT_THAT(ReadFile(path).value(), HasSubstr("\"gap\": null"));
  const Parallelized again = MustParallelize(traced, DataParallel{}, path);
  EXPECT_EQ(again.plan().remat, plan.remat);
  EXPECT_EQ(ModuleHash(again.prepared().module), ModuleHash(run.prepared().module));
  EXPECT_EQ(TemporaryBytes(again), TemporaryBytes(run));
}

TEST(Remat, SkipConnectionsWaitForTheirOwnGradients) {
  const TracedStep traced = Trace(Unet({.batch = 8}), Sgd()).value();
  const Step remat = Prepare(traced.step, {.remat = {kAll}}).value();
  EXPECT_GT(remat.module.entry_computation().num_instructions(),
            Prepare(traced.step)->module.entry_computation().num_instructions());
}

TEST(Remat, StepsWithoutABackwardPassAreRefused) {
  const TracedStep evaluation =
      TraceEvaluation(Mlp({.batch = 4, .hidden = 4, .num_layers = 3})).value();
  EXPECT_THAT(Message(Prepare(evaluation.step, {.remat = {kAll}}).status()),
              HasSubstr("keep nothing for a backward pass"));
}

}  // namespace
}  // namespace minka
