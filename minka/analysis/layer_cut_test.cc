#include "minka/analysis/layer_cut.h"

#include <algorithm>
#include <limits>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace minka {
namespace {

int64_t CostOf(const LayerCutProblem& problem, const std::vector<int>& layers) {
  int64_t cost = 0;
  for (const LayerCutProblem::Shared& shared : problem.shared) {
    int lowest = shared.lowest >= 0 ? shared.lowest : problem.num_layers;
    int highest = shared.highest;
    for (const int variable : shared.variables) {
      lowest = std::min(lowest, layers[variable]);
      highest = std::max(highest, layers[variable]);
    }
    cost += shared.bytes * (highest - lowest);
  }
  return cost;
}

bool IsInOrder(const LayerCutProblem& problem, const std::vector<int>& layers) {
  for (size_t i = 0; i < problem.bounds.size(); ++i) {
    if (layers[i] < problem.bounds[i].first || layers[i] > problem.bounds[i].second) return false;
  }
  return std::ranges::all_of(problem.orders, [&](const LayerCutProblem::Order& order) {
    return layers[order.after] <= layers[order.before];
  });
}

// Of all assignments in order, tried one by one.
int64_t LeastCost(const LayerCutProblem& problem) {
  std::vector<int> layers(problem.num_variables, 0);
  int64_t least = std::numeric_limits<int64_t>::max();
  while (true) {
    if (IsInOrder(problem, layers)) least = std::min(least, CostOf(problem, layers));
    size_t i = 0;
    while (i < layers.size() && ++layers[i] == problem.num_layers) layers[i++] = 0;
    if (i == layers.size()) return least;
  }
}

// Around layers that fall from variable to variable, as all orders do.
template <typename Below>
void AddBounds(const Below& below, LayerCutProblem& problem) {
  int layer = problem.num_layers - 1;
  for (int variable = 0; variable < problem.num_variables; ++variable) {
    layer = below(layer + 1);
    problem.bounds.emplace_back(below(layer + 1), layer + below(problem.num_layers - layer));
  }
}

LayerCutProblem RandomProblem(std::mt19937& random) {
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  LayerCutProblem problem{.num_layers = 2 + below(3), .num_variables = 1 + below(6)};
  const int num_shared = 1 + below(8);
  for (int i = 0; i < num_shared; ++i) {
    LayerCutProblem::Shared shared{.bytes = 1 + below(9)};
    for (int variable = 0; variable < problem.num_variables; ++variable) {
      if (below(3) == 0) shared.variables.push_back(variable);
    }
    if (below(2) == 0) {
      shared.lowest = below(problem.num_layers);
      shared.highest = shared.lowest + below(problem.num_layers - shared.lowest);
    }
    problem.shared.push_back(std::move(shared));
  }
  for (int variable = 1; variable < problem.num_variables; ++variable) {
    if (below(2) == 0) problem.orders.push_back({below(variable), variable});
  }
  if (below(2) == 0) AddBounds(below, problem);
  return problem;
}

TEST(SolveLayerCut, FindsTheLeastCost) {
  std::mt19937 random(1);
  for (int round = 0; round < 500; ++round) {
    const LayerCutProblem problem = RandomProblem(random);
    const std::vector<int> layers = SolveLayerCut(problem);
    EXPECT_TRUE(IsInOrder(problem, layers)) << "round " << round;
    EXPECT_EQ(CostOf(problem, layers), LeastCost(problem)) << "round " << round;
  }
}

TEST(SolveLayerCut, TakesTheLowestOfEqualLayers) {
  // Between what stands in layer 3 and what stands in layer 1, at equal bytes.
  const LayerCutProblem problem{
      .num_layers = 4,
      .num_variables = 1,
      .shared = {{.bytes = 8, .variables = {0}, .lowest = 3, .highest = 3},
                 {.bytes = 8, .variables = {0}, .lowest = 1, .highest = 1}}};
  EXPECT_THAT(SolveLayerCut(problem), testing::ElementsAre(1));
}

}  // namespace
}  // namespace minka
