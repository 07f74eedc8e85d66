#include "minka/frontend/testing/gradient_check.h"

#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "minka/base/status.h"

namespace minka::testing {

Array Random(const Input& input, std::mt19937_64& random) {
  Array array{{ElementType::kF64, input.dims}, {}};
  std::uniform_real_distribution<double> draw(input.low, input.high);
  for (int64_t i = 0; i < array.shape.num_elements(); ++i) array.elements.push_back(draw(random));
  return array;
}

Module MustFinish(Graph& graph, std::vector<Value> results) {
  graph.builder().SetResults(std::move(results));
  absl::StatusOr<Module> module = std::move(graph.module()).Finish();
  EXPECT_TRUE(module.ok()) << Message(module.status());
  return *std::move(module);
}

Tensor Weigh(Tensor y) {
  if (y.rank() == 0) return y;
  Tensor weights = y.graph().Full(y.shape(), 0.3);
  for (int i = 0; i < y.rank(); ++i) {
    weights = weights + Cosine(y.graph().Iota(y.shape(), i) * (i + 1.1));
  }
  return Sum(y * weights);
}

Module Traced(const std::vector<Input>& inputs, const Build& build, bool gradients) {
  Graph graph("test");
  std::vector<Tensor> tensors;
  for (size_t i = 0; i < inputs.size(); ++i) {
    tensors.push_back(graph.Parameter({ElementType::kF64, inputs[i].dims}, fmt::format("x{}", i)));
  }
  std::vector<Tensor> arguments = tensors;
  const Tensor loss = Weigh(build(arguments));
  EXPECT_TRUE(graph.status().ok()) << Message(graph.status());
  std::vector<Value> results = {loss.value()};
  if (gradients) {
    const auto found = Gradients(graph, loss, tensors);
    EXPECT_TRUE(found.ok()) << Message(found.status());
    if (found.ok()) {
      for (const Tensor& gradient : *found) results.push_back(gradient.value());
    }
  }
  return MustFinish(graph, std::move(results));
}

void ExpectTrueGradient(const std::vector<Input>& inputs, const Build& build) {
  std::mt19937_64 random(17);
  std::vector<Array> x, direction;
  for (const Input& input : inputs) {
    x.push_back(Random(input, random));
    direction.push_back(Random({input.dims}, random));
  }
  const std::vector<Array> results = Evaluate(Traced(inputs, build, true), x);
  ASSERT_EQ(results.size(), inputs.size() + 1);
  const Module forward = Traced(inputs, build, false);
  const auto moved = [&](long double step) {
    std::vector<Array> at = x;
    for (size_t i = 0; i < at.size(); ++i) {
      for (size_t j = 0; j < at[i].elements.size(); ++j) {
        at[i].elements[j] += step * direction[i].elements[j];
      }
    }
    return Evaluate(forward, at).front().elements.front();
  };
  long double by_rules = 0, size = 1e-3;
  for (size_t i = 0; i < inputs.size(); ++i) {
    ASSERT_EQ(results[i + 1].shape.dims, inputs[i].dims);
    for (size_t j = 0; j < x[i].elements.size(); ++j) {
      const long double term = results[i + 1].elements[j] * direction[i].elements[j];
      by_rules += term;
      size += std::abs(term);
    }
  }
  const long double step = 1e-5;
  EXPECT_NEAR(double(by_rules), double((moved(step) - moved(-step)) / (2 * step)),
              double(1e-8 * size));
}

}  // namespace minka::testing
