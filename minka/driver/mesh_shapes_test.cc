#include "minka/driver/mesh_shapes.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/status.h"
#include "minka/driver/plan_step.h"
#include "minka/frontend/nn.h"
#include "minka/frontend/optimizer.h"
#include "minka/frontend/trace.h"
#include "minka/models/mlp.h"
#include "minka/plan/testing/nested_loops.h"
#include "tests/support/random_plan.h"

namespace minka {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> Texts(const std::vector<JoinedAxes>& all) {
  std::vector<std::string> texts;
  for (const JoinedAxes& joined : all) texts.push_back(joined.mesh.ToString());
  return texts;
}

TEST(JoinNeighbours, JoinsWhatLiesSideBySide) {
  const Mesh mesh = *Mesh::Parse("a=2,b=3,one=1,c=4");
  EXPECT_THAT(Texts(JoinNeighbours(mesh, 2, /*equal_links=*/false)),
              ElementsAre("a_b_c=24", "a=2,b_c=12", "a_b=6,c=4"));
  EXPECT_THAT(JoinNeighbours(mesh, 2, false)[1].axes,
              ElementsAre(ElementsAre(0), ElementsAre(1, 3)));
}

TEST(JoinNeighbours, TakesOneOrderWhereLinksAreEqual) {
  const Mesh mesh = *Mesh::Parse("2x2x2x2x2x2");
  EXPECT_EQ(JoinNeighbours(mesh, 3, /*equal_links=*/false).size(), 1 + 5 + 10);
  EXPECT_EQ(JoinNeighbours(mesh, 3, /*equal_links=*/true).size(), 1 + 3 + 3);
}

TEST(OnJoinedAxes, PinsNameWhatIsJoined) {
  const Mesh mesh = *Mesh::Parse("2x2x2x2");
  const std::vector<JoinedAxes> ways = JoinNeighbours(mesh, 2, false);
  ASSERT_THAT(Texts(ways), ElementsAre("x_y_z_w=16", "x=2,y_z_w=8", "x_y=4,z_w=4", "x_y_z=8,w=2"));
  SearchOptions search{.pins = {"a/*=[x+y,-]", "b=[-,-]"}};
  const auto joined = OnJoinedAxes(search, mesh, ways[2]);
  ASSERT_TRUE(joined.ok()) << joined.status();
  EXPECT_THAT(joined->pins, ElementsAre("a/*=[x_y,-]", "b=[-,-]"));
  EXPECT_EQ(Message(OnJoinedAxes(search, mesh, ways[1]).status()),
            "pin \"a/*=[x+y,-]\" keeps axes apart that x=2,y_z_w=8 joins");
  search = {.limits = {.batch_axis = "w"}};
  EXPECT_EQ(OnJoinedAxes(search, mesh, ways[3])->limits.batch_axis, "w");
  EXPECT_EQ(Message(OnJoinedAxes(search, mesh, ways[2]).status()),
            "--batch-axis w is no axis of x_y=4,z_w=4");
}

Step SmallMlp() {
  return Trace(Mlp({.batch = 64, .hidden = 64, .num_layers = 2}), Sgd()).value().step;
}

// What is searched on the coarser meshes is a plan of the finer one at the same price, so at most
// as dear as the best of them.
TEST(PlanStep, AMeshOfManyAxesIsPlannedAsItsCoarserOnes) {
  const Step step = SmallMlp();
  const Mesh mesh = *Mesh::Parse("2x2x2x2x2");
  for (const Method method : {Method::kShard, Method::kData, Method::kZero3}) {
    const auto fine =
        PlanStep(step, {.cluster = Cluster::Local(32), .meshes = {mesh}, .methods = {method}});
    ASSERT_TRUE(fine.ok()) << Message(fine.status());
    const Plan& plan = fine->candidates[0].plan;
    EXPECT_EQ(plan.stage.mesh, mesh);
    const absl::Status checked = CheckPlan(plan, fine->prepared.module);
    EXPECT_TRUE(checked.ok()) << Message(checked);
    const auto coarse = PlanStep(step, {.cluster = Cluster::Local(32), .methods = {method}});
    ASSERT_TRUE(coarse.ok()) << Message(coarse.status());
    EXPECT_EQ(plan.step_time_us, coarse->candidates[coarse->best].plan.step_time_us);
    for (const PlanCandidate& candidate : coarse->candidates) {
      EXPECT_LE(plan.lower_bound, candidate.plan.objective) << candidate.mesh.ToString();
    }
  }
}

TEST(WithAxesApart, WritesInsidesOfLoopsOnTheFineMesh) {
  const Module module = NestedLoops();
  const Mesh mesh = *Mesh::Parse("2x2x2");
  const JoinedAxes joined = JoinNeighbours(mesh, 2, /*equal_links=*/false)[2];
  ASSERT_EQ(joined.mesh.ToString(), "x_y=4,z=2");
  std::vector<Strategy> strategies = WholeStrategies(module, joined.mesh);
  const auto loop = static_cast<InstructionId>(strategies.size()) - 1;
  const OpRule rule = RuleFor(module, module.entry_computation(), loop);
  strategies[loop] = *ParseStrategy("x_y: value 1 dim 1", rule, joined.mesh);
  Plan plan = PlanOfStrategies(module, joined.mesh, std::move(strategies));
  plan.stage = WithAxesApart(std::move(plan.stage), mesh, joined);
  const absl::Status checked = CheckPlan(plan, module);
  EXPECT_TRUE(checked.ok()) << Message(checked);
  const CalledPlan& inner = plan.stage.ops[loop].called[0].operations[7].called[0];
  ASSERT_EQ(inner.reshards.size(), 1u);
  EXPECT_EQ(ToString(inner.reshards[0].from, mesh), "[-,-]{partial: x,y}");
  EXPECT_EQ(ToString(inner.reshards[0].to, mesh), "[-,x+y]");
}

TEST(PlanStep, PinsOnSingleAxesOfAFineMeshHold) {
  const Mesh mesh = *Mesh::Parse("2x2x2x2");
  const auto result = PlanStep(SmallMlp(), {.cluster = Cluster::Local(16),
                                            .meshes = {mesh},
                                            .search = {.pins = {"params/layer_0/kernel=[z,x+y]"}}});
  ASSERT_TRUE(result.ok()) << Message(result.status());
  const Plan& plan = result->candidates[0].plan;
  const auto pinned =
      std::ranges::find(plan.parameters, "params/layer_0/kernel", &ParameterPlan::name);
  ASSERT_NE(pinned, plan.parameters.end());
  EXPECT_EQ(ToString(pinned->sharding, mesh), "[z,x+y]");
  EXPECT_EQ(Message(PlanStep(SmallMlp(), {.cluster = Cluster::Local(16),
                                          .meshes = {mesh},
                                          .search = {.pins = {"params/*/kernel=[z+x,-]"}}})
                        .status()),
            "neighbours of the 4 axes of x=2,y=2,z=2,w=2 are joined to 3: pin "
            "\"params/*/kernel=[z+x,-]\" keeps axes apart that x_y_z_w=16 joins; there is one "
            "without --pin params/*/kernel=[z+x,-]: drop it");
}

TEST(MeshShapes, AxesOfHostsComeFirst) {
  Cluster cluster = Cluster::Local(4);
  const auto texts = [&] {
    std::vector<std::string> texts;
    for (const Mesh& mesh : MeshShapes(cluster)) texts.push_back(mesh.ToString());
    return texts;
  };
  EXPECT_THAT(texts(), ElementsAre("x=4", "x=2,y=2"));
  cluster.num_hosts = 2;
  EXPECT_THAT(texts(), ElementsAre("x=2,y=4", "x=2,y=2,z=2", "x=8", "x=4,y=2"));
}

TEST(PlanStep, TheWorkLimitIsThatOfAllMeshesTogether) {
  const auto result =
      PlanStep(SmallMlp(), {.cluster = Cluster::Local(8), .search = {.work_limit = 1}});
  ASSERT_TRUE(result.ok()) << Message(result.status());
  ASSERT_EQ(result->candidates.size(), 3u);
  EXPECT_EQ(result->best, 0);
  for (int other : {1, 2}) {
    EXPECT_EQ(Message(result->candidates[other].status),
              "not searched: --work-limit was spent before");
  }
}

// What is known of one mesh ends the search of another: where nothing can be better than the best
// so far by more than the gap, no better plan is looked for.
TEST(PlanStep, BoundsOfOneMeshEndTheSearchOfAnother) {
  const auto result = PlanStep(SmallMlp(), {.cluster = Cluster::Local(8), .search = {.gap = 0.5}});
  ASSERT_TRUE(result.ok()) << Message(result.status());
  const Plan& first = result->candidates[0].plan;
  const auto alone = PlanStep(SmallMlp(), {.cluster = Cluster::Local(8),
                                           .meshes = {result->candidates[2].mesh},
                                           .search = {.gap = 0.5}});
  ASSERT_TRUE(alone.ok()) << Message(alone.status());
  ASSERT_GT(alone->candidates[0].plan.lower_bound, first.objective / 2)
      << "the example has become useless";
  const PlanCandidate& last = result->candidates[2];
  EXPECT_EQ(alone->candidates[0].plan.stop_reason, "optimal");
  EXPECT_EQ(last.status.ok() ? last.plan.stop_reason : Message(last.status), "cutoff");
}

// Searches end by work: a machine that is busy with other things gives the same plan.
TEST(PlanStep, ABusyMachineGivesTheSamePlan) {
  const Step step = SmallMlp();
  const auto planned = [&]() -> std::string {
    auto result = PlanStep(
        step, {.cluster = Cluster::Local(8), .search = {.memory_limit_bytes = 60'000, .gap = 0}});
    EXPECT_TRUE(result.ok()) << Message(result.status());
    if (!result.ok()) return "";
    Plan& plan = result->candidates[result->best].plan;
    plan.search_seconds = 0;
    return PlanToJson(plan, result->prepared.module);
  };
  const std::string alone = planned();
  std::atomic<bool> is_done = false;
  std::vector<std::thread> others;
  for (int i = 0; i < 4; ++i) {
    others.emplace_back([&] {
      while (!is_done) {
      }
    });
  }
  EXPECT_EQ(planned(), alone);
  is_done = true;
  for (std::thread& other : others) other.join();
}

TEST(PlanStep, RefusesWhatIsTooLargeAtOnce) {
  Cluster cluster = Cluster::Local(1);
  cluster.devices_per_host = 8192;
  EXPECT_EQ(Message(PlanStep(SmallMlp(), {.cluster = cluster}).status()),
            "the cluster local has 8192 devices; at most 4096 are planned for: give a mesh of "
            "fewer");
  EXPECT_EQ(
      Message(
          PlanStep(SmallMlp(), {.cluster = cluster, .meshes = {*Mesh::Parse("64x128")}}).status()),
      "mesh x=64,y=128 has 8192 devices; at most 4096 are planned for");
}

}  // namespace
}  // namespace minka
