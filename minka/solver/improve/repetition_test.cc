#include "minka/solver/improve/repetition.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "minka/solver/bound/core_graph.h"
#include "minka/solver/reduce/core.h"
#include "minka/solver/reduce/core_answer.h"

namespace minka {
namespace {

constexpr int32_t kNumLayers = 20;

// Pairs of nodes in a row, of choices 0 and 1. A pair costs 5 where both choose 0, nothing where
// both choose 1, and 10 otherwise; neighbours in different pairs that choose differently cost 1.
Core PairsInARow() {
  Core core;
  const RowId free = core.algebra.AddRow(std::vector<int64_t>{0, 0});
  const TableId inside = core.algebra.AddTable(2, 2, std::vector<int64_t>{5, 10, 10, 0});
  const TableId between = core.algebra.AddTable(2, 2, std::vector<int64_t>{0, 1, 1, 0});
  core.cost_rows.assign(2 * kNumLayers, free);
  core.usages.resize(2 * kNumLayers);
  for (int32_t node = 1; node < 2 * kNumLayers; ++node)
    core.edges.push_back({node - 1, node, node % 2 == 1 ? inside : between});
  return core;
}

// The answer in which the pair that begins at `node` has changed from 0 to 1.
CoreAnswer ChangedPair(const Core& core, int32_t node) {
  CoreAnswer answer = {std::vector<int32_t>(core.num_nodes(), 0), 0};
  answer.choice[node] = answer.choice[node + 1] = 1;
  answer.cost = *CoreCost(core, answer.choice);
  return answer;
}

CoreAnswer Repeated(const Core& core, const CoreAnswer& answer) {
  const CoreGraph graph(core);
  const std::vector<int32_t> before(core.num_nodes(), 0);
  int64_t work = 0;
  CoreAnswer repeated = RepeatChange(graph, before, answer, work);
  EXPECT_GT(work, 0);
  EXPECT_EQ(CoreCost(core, repeated.choice), std::optional(repeated.cost));
  return repeated;
}

TEST(RepeatedChange, ImprovesEveryEqualLayer) {
  const Core core = PairsInARow();
  const CoreAnswer answer = ChangedPair(core, 8);
  EXPECT_EQ(answer.cost, 5 * (kNumLayers - 1) + 2);
  const CoreAnswer repeated = Repeated(core, answer);
  EXPECT_EQ(repeated.choice, std::vector<int32_t>(core.num_nodes(), 1));
  EXPECT_EQ(repeated.cost, 0);
}

TEST(RepeatedChange, LeavesLayersOfOtherCosts) {
  Core core = PairsInARow();
  core.cost_rows[20] = core.algebra.AddRow(std::vector<int64_t>{0, 1});
  std::vector<int32_t> expected(core.num_nodes(), 1);
  expected[20] = expected[21] = 0;
  EXPECT_EQ(Repeated(core, ChangedPair(core, 8)).choice, expected);
}

TEST(RepeatedChange, KeepsForbiddenEntriesOut) {
  Core core = PairsInARow();
  const TableId never = core.algebra.AddTable(2, 2, std::vector<int64_t>{0, 0, kForbidden, 0});
  core.edges[19].table = never;  // node 19 chooses 1 only if node 20 does
  core.cost_rows[20] = core.algebra.AddRow(std::vector<int64_t>{0, 1});
  const CoreAnswer repeated = Repeated(core, ChangedPair(core, 8));
  EXPECT_EQ(repeated.choice[18], 0);
  EXPECT_EQ(repeated.choice[19], 0);
  EXPECT_EQ(repeated.choice[0], 1);
  EXPECT_EQ(repeated.choice[39], 1);
}

TEST(RepeatedChange, KeepsTheLimit) {
  Core core = PairsInARow();
  const RowId bytes = core.algebra.AddRow(std::vector<int64_t>{0, 10});
  for (int32_t node = 0; node < core.num_nodes(); node += 2)
    core.usages[node] = {{.row = bytes, .ranges = {{0, 1}}}};
  core.limit_bytes = {35};
  core.times = {0};
  const CoreAnswer repeated = Repeated(core, ChangedPair(core, 8));
  EXPECT_TRUE(FitsLimit(core, repeated.choice));
  int num_changed = 0;
  for (int32_t node = 0; node < core.num_nodes(); node += 2) num_changed += repeated.choice[node];
  EXPECT_EQ(num_changed, 3);
}

TEST(RepeatedChange, LeavesAnswersThatShareLittle) {
  const Core core = PairsInARow();
  CoreAnswer answer = {std::vector<int32_t>(core.num_nodes(), 0), 0};
  for (int32_t node = 0; node < core.num_nodes() / 2; ++node) answer.choice[node] = 1;
  answer.cost = *CoreCost(core, answer.choice);
  EXPECT_EQ(Repeated(core, answer).choice, answer.choice);
}

}  // namespace
}  // namespace minka
