#include "minka/frontend/experts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "minka/base/status.h"
#include "minka/ir/testing/evaluator.h"

namespace minka {
namespace {

using testing::Array;
using ::testing::ElementsAre;
using testing::Evaluate;

TEST(ExpertsTest, FirstLargestMarksOneOfSeveralEqualElements) {
  Graph graph("test");
  const Tensor y = FirstLargest(graph.Parameter({ElementType::kF32, {2, 3}}, "x"));
  graph.builder().SetResults({y.value()});
  const Module module = std::move(graph.module()).Finish().value();
  const Array x{{ElementType::kF32, {2, 3}}, {1, 2, 2, 5, -1, 5}};
  EXPECT_THAT(Evaluate(module, {x})[0].elements, ElementsAre(0, 1, 0, 1, 0, 0));
}

constexpr int64_t kGroups = 2, kTokens = 7, kFeatures = 3, kExperts = 4, kHidden = 5;
constexpr int64_t kCapacity = 3;  // tokens find their expert full

long double Element(int64_t number, int64_t i) {
  return std::sin(0.7L * static_cast<long double>(i) + static_cast<long double>(number) +
                  0.3L * static_cast<long double>(i % 5));
}

// The layer written with loops, for one group of tokens.
class ReferenceGroup {
 public:
  explicit ReferenceGroup(int64_t group) : group_(group) {}

  void Run(std::vector<long double>& y, long double& balance) {
    std::vector<int> used(kExperts);
    std::vector<int> first(kTokens), second(kTokens);
    std::vector<std::vector<long double>> gates;
    for (int64_t t = 0; t < kTokens; ++t) gates.push_back(Gates(t));
    for (int64_t t = 0; t < kTokens; ++t) first[t] = Best(gates[t], -1);
    for (int64_t t = 0; t < kTokens; ++t) second[t] = Best(gates[t], first[t]);
    for (const std::vector<int>* chosen : {&first, &second}) {
      for (int64_t t = 0; t < kTokens; ++t) {
        const int expert = (*chosen)[t];
        if (used[expert] == kCapacity) continue;
        ++used[expert];
        const long double gate = gates[t][expert] / (gates[t][first[t]] + gates[t][second[t]]);
        AddExpert(expert, t, gate, y);
      }
    }
    for (int e = 0; e < kExperts; ++e) {
      long double mean_gate = 0;
      for (int64_t t = 0; t < kTokens; ++t) mean_gate += gates[t][e] / kTokens;
      const auto share = static_cast<long double>(std::ranges::count(first, e)) / kTokens;
      balance += mean_gate * share * kExperts / kGroups;
    }
  }

 private:
  long double X(int64_t token, int64_t feature) const {
    return Element(0, (group_ * kTokens + token) * kFeatures + feature);
  }

  std::vector<long double> Gates(int64_t token) const {
    std::vector<long double> gates(kExperts);
    long double sum = 0;
    for (int64_t e = 0; e < kExperts; ++e) {
      for (int64_t m = 0; m < kFeatures; ++m)
        gates[e] += X(token, m) * Element(1, m * kExperts + e);
      sum += gates[e] = std::exp(gates[e]);
    }
    for (long double& gate : gates) gate /= sum;
    return gates;
  }

  static int Best(const std::vector<long double>& gates, int without) {
    int best = without == 0 ? 1 : 0;
    for (int e = 0; e < kExperts; ++e) {
      if (e != without && gates[e] > gates[best]) best = e;
    }
    return best;
  }

  void AddExpert(int64_t expert, int64_t token, long double gate,
                 std::vector<long double>& y) const {
    for (int64_t h = 0; h < kHidden; ++h) {
      long double inner = 0;
      for (int64_t m = 0; m < kFeatures; ++m)
        inner += X(token, m) * Element(2, (expert * kFeatures + m) * kHidden + h);
      inner = std::max<long double>(inner, 0);
      for (int64_t m = 0; m < kFeatures; ++m) {
        y[(group_ * kTokens + token) * kFeatures + m] +=
            gate * inner * Element(3, (expert * kHidden + h) * kFeatures + m);
      }
    }
  }

  int64_t group_;
};

TEST(ExpertsTest, TokensGoToTheirTwoBestExpertsWhileThereArePlaces) {
  Graph graph("test");
  ParameterStore store(graph, {}, /*training=*/true);
  const Tensor x = graph.Parameter({ElementType::kF32, {kGroups, kTokens, kFeatures}}, "x");
  const ExpertsOutput output = MixtureOfExperts(
      Scope(store, "experts"), x,
      {.num_experts = kExperts, .hidden = kHidden, .group_size = kTokens, .capacity_factor = 1.5});
  ASSERT_TRUE(graph.status().ok()) << Message(graph.status());
  graph.builder().SetResults({output.y.value(), output.auxiliary_loss.value()});
  const Module module = std::move(graph.module()).Finish().value();
  std::vector<Array> inputs;
  for (const InstructionId id : module.entry_computation().parameters) {
    Array array{module.entry_computation().instructions[id].shape(), {}};
    for (int64_t i = 0; i < array.shape.num_elements(); ++i)
      array.elements.push_back(Element(static_cast<int64_t>(inputs.size()), i));
    inputs.push_back(std::move(array));
  }
  std::vector<long double> expected(kGroups * kTokens * kFeatures);
  long double balance = 0;
  for (int64_t group = 0; group < kGroups; ++group) ReferenceGroup(group).Run(expected, balance);
  const std::vector<Array> results = Evaluate(module, inputs);
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(double(results[0].elements[i]), double(expected[i]), 1e-7) << i;
  EXPECT_NEAR(double(results[1].elements[0]), double(balance), 1e-7);
}

TEST(ExpertsTest, GroupsThatDoNotDivideTheTokensAreRefused) {
  Graph graph("test");
  ParameterStore store(graph, {}, /*training=*/true);
  const Tensor x = graph.Parameter({ElementType::kF32, {2, 3, 4}}, "x");
  MixtureOfExperts(Scope(store, "layer"), x, {.num_experts = 2, .hidden = 4, .group_size = 4});
  EXPECT_THAT(Message(graph.status()),
              ::testing::HasSubstr("layer: 6 tokens cannot go to 2 experts in groups of 4"));
}

}  // namespace
}  // namespace minka
