#include "minka/driver/explain.h"

#include <atomic>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/driver/explain_pipeline.h"
#include "minka/driver/parallelize.h"
#include "minka/driver/pipeline.h"
#include "minka/models/registry.h"

namespace minka {
namespace {

using ::testing::HasSubstr;

Step TwoLayers() {
  absl::StatusOr<TracedStep> traced = TraceModel("mlp", {.num_layers = 2});
  MINKA_CHECK(traced.ok(), "{}", Message(traced.status()));
  return std::move(traced->step);
}

TEST(ExplainTest, PlansWithEachShardingAndKeepsOtherPins) {
  const Step step = TwoLayers();
  const PlanRequest request{.cluster = Cluster::Local(2),
                            .search = {.pins = {"params/*/kernel=[-,x]"}}};
  const SearchResult<PlanResult> planned = PlanStep(step, request);
  ASSERT_TRUE(planned.ok());
  const ExplainedPlan explained{.step = step,
                                .prepared = planned->prepared,
                                .plan = planned->candidates[planned->best].plan,
                                .name = "it"};
  std::vector<std::string> tried;
  const auto explain = [&](const ExplainQuestion& question) {
    tried.clear();
    return Explain(explained, request, question,
                   [&](const std::string& what) { tried.push_back(what); });
  };
  const auto table = explain({.tensor = "params/*_1/kernel"});
  ASSERT_TRUE(table.ok()) << Message(table.status());
  EXPECT_EQ(tried, (std::vector<std::string>{"plan with params/layer_1/kernel=[-,-]",
                                             "plan with params/layer_1/kernel=[x,-]",
                                             "plan with params/layer_1/kernel=[-,x]"}));
  EXPECT_THAT(*table, HasSubstr("\n*  [-,x] "));
  EXPECT_EQ(Message(explain({.tensor = "weights"}).status()), "no parameter of it matches weights");
  EXPECT_EQ(Message(explain({.operation = "weights"}).status()),
            "no operation of it matches weights");
  EXPECT_EQ(Message(explain({.stage = 1}).status()),
            "it is the plan of one mesh; it has no stage 1");

  const auto operation = explain({.operation = "dot*"});
  ASSERT_TRUE(operation.ok()) << Message(operation.status());
  EXPECT_THAT(*operation, HasSubstr("    cost       "));
  EXPECT_THAT(*operation, testing::ContainsRegex("\n\\*  \\[.*  \\+0 us"));
  const auto whole = explain({});
  ASSERT_TRUE(whole.ok()) << Message(whole.status());
  EXPECT_THAT(*whole, HasSubstr("\n*  shard   x=2 "));
}

class ExplainPipelineTest : public testing::Test {
 protected:
  ExplainPipelineTest() {
    request_.pipeline = PipelineOptions{.layers = AutoLayers{4}, .num_stages = 2};
    absl::StatusOr<PlannedPipeline> planned = PlanPipeline(step_, request_);
    MINKA_CHECK(planned.ok(), "{}", Message(planned.status()));
    planned_ = *std::move(planned);
  }

  std::string Explained(const ExplainQuestion& question) const {
    const auto text = ExplainPipeline({.step = step_, .planned = planned_, .name = "it"}, request_,
                                      question, [](const std::string&) {});
    return text.ok() ? *text : Message(text.status());
  }

  // Accelerators that share nothing, so that waits and transfers take time.
  static Cluster FourAccelerators() { return Cluster::Preset("p3.16xlarge:1x4").value(); }

  const Step step_ = TwoLayers();
  PlanRequest request_{.cluster = FourAccelerators(), .micro_batches = {.num_micro_batches = 2}};
  PlannedPipeline planned_;
};

TEST_F(ExplainPipelineTest, SaysWhereTheStepsTimeGoesAndWhatIsNextToIt) {
  const std::string whole = Explained({});
  EXPECT_THAT(whole, HasSubstr("\nThe longest is stage "));
  // Nothing that is left out makes a step longer; the stages may be such that what the first one
  // sends is hidden best.
  EXPECT_THAT(whole, testing::ContainsRegex("\nmeshes sent in no time  [^\n]*  -[0-9]"));
  EXPECT_THAT(whole, testing::ContainsRegex("\nall stages took equally long  [^\n]*  [-+][0-9]"));
  EXPECT_THAT(whole, testing::ContainsRegex("\nno mesh waited for another  [^\n]*  -[0-9]"));
  EXPECT_THAT(whole, HasSubstr("\nthere were 4 micro-batches "));
  EXPECT_THAT(whole, HasSubstr("\n*  as planned "));
  EXPECT_THAT(whole, HasSubstr("4 stages on 1+1+1+1 devices"));
  EXPECT_THAT(whole, testing::ContainsRegex("\n   layer [0-9] on stage [01] "));
  EXPECT_THAT(whole, HasSubstr("\n   schedule gpipe "));
}

TEST_F(ExplainPipelineTest, PricesTheShapesOfAStagesMesh) {
  const std::string stage = Explained({.stage = 1});
  EXPECT_THAT(stage, testing::StartsWith("stage 1 of "));
  EXPECT_THAT(stage, HasSubstr("\nbackward "));
  EXPECT_EQ(Explained({.stage = 2}), "there is no stage 2: there are stages 0 to 1");
}

TEST_F(ExplainPipelineTest, PricesShardingsOnTheStageThatHasThem) {
  const std::string kernel = Explained({.tensor = "params/layer_1/kernel"});
  EXPECT_THAT(kernel, HasSubstr("with params/layer_1/kernel pinned ('*': as planned):\n"));
  EXPECT_THAT(kernel, testing::ContainsRegex("\n\\*  \\[.*  \\+0 us"));
  EXPECT_EQ(Explained({.stage = 0, .tensor = "weights"}),
            "no parameter of stage 0 of it matches weights");
  EXPECT_THAT(Explained({.stage = 1, .operation = "dot*"}),
              HasSubstr("\nThe best plans of stage 1 on mesh 1, "));
}

TEST(CancellationTest, EndsEverySearch) {
  const std::atomic<bool> cancelled = true;
  PlanRequest request{.cluster = Cluster::Local(4), .cancelled = &cancelled};
  EXPECT_EQ(PlanStep(TwoLayers(), request).status().why.code(), absl::StatusCode::kCancelled);
  request.pipeline = PipelineOptions{.layers = AutoLayers{2}, .num_stages = 2};
  EXPECT_EQ(PlanPipeline(TwoLayers(), request).status().code(), absl::StatusCode::kCancelled);
}

TEST(CancellationTest, ParallelizeAnswersCancelled) {
  std::stop_source source;
  source.request_stop();
  const auto run =
      Parallelize(TwoLayers(), Cluster::Local(2), Shard{}, {.stop = source.get_token()});
  EXPECT_EQ(run.status().code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace minka
