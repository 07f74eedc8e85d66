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
#include "minka/driver/parallelize.h"
#include "minka/driver/pipeline.h"
#include "minka/models/registry.h"

namespace minka {
namespace {

using ::testing::HasSubstr;

Step Mlp() {
  absl::StatusOr<TracedStep> traced = TraceModel("mlp", {.num_layers = 2});
  MINKA_CHECK(traced.ok(), "{}", Message(traced.status()));
  return std::move(traced->step);
}

TEST(ExplainTest, PlansWithEachShardingAndKeepsOtherPins) {
  const Step step = Mlp();
  const PlanRequest request{.cluster = Cluster::Local(2),
                            .search = {.pins = {"params/*/kernel=[-,x]"}}};
  const SearchResult<PlanResult> planned = PlanStep(step, request);
  ASSERT_TRUE(planned.ok());
  const Plan& plan = planned->candidates[planned->best].plan;
  const int parameter = *FindParameter(plan, "it", "params/*_1/kernel");
  EXPECT_EQ(plan.parameters[parameter].name, "params/layer_1/kernel");
  std::vector<std::string> tried;
  const auto table = ExplainParameter(step, request, plan, parameter,
                                      [&](const std::string& pin) { tried.push_back(pin); });
  ASSERT_TRUE(table.ok()) << Message(table.status());
  EXPECT_EQ(tried, (std::vector<std::string>{"params/layer_1/kernel = [-,-]",
                                             "params/layer_1/kernel = [x,-]",
                                             "params/layer_1/kernel = [-,x]"}));
  EXPECT_THAT(*table, HasSubstr("\n*  [-,x] "));
  EXPECT_EQ(Message(FindParameter(plan, "it", "weights").status()),
            "no parameter of it matches weights");
}

TEST(CancellationTest, EndsEverySearch) {
  const std::atomic<bool> cancelled = true;
  PlanRequest request{.cluster = Cluster::Local(4), .cancelled = &cancelled};
  EXPECT_EQ(PlanStep(Mlp(), request).status().why.code(), absl::StatusCode::kCancelled);
  request.pipeline = PipelineOptions{.num_layers = 2, .num_stages = 2};
  EXPECT_EQ(PlanPipeline(Mlp(), request).status().code(), absl::StatusCode::kCancelled);
}

TEST(CancellationTest, ParallelizeAnswersCancelled) {
  std::stop_source source;
  source.request_stop();
  const auto run = Parallelize(Mlp(), Cluster::Local(2), Shard{}, {.stop = source.get_token()});
  EXPECT_EQ(run.status().code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace minka
