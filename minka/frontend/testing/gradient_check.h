// Gradients against finite differences: for random inputs and a random direction, the directional
// derivative by the rules must equal the difference quotient.
#pragma once

#include <functional>
#include <random>
#include <vector>

#include "minka/frontend/gradient.h"
#include "minka/ir/testing/evaluator.h"

namespace minka::testing {

using Build = std::function<Tensor(std::vector<Tensor>&)>;

// An f64 parameter whose elements are drawn evenly from [low, high].
struct Input {
  std::vector<int64_t> dims;
  double low = -1, high = 1;
};

Array Random(const Input& input, std::mt19937_64& random);
Module MustFinish(Graph& graph, std::vector<Value> results);
// A scalar that depends on every element of y differently.
Tensor Weigh(Tensor y);
// The module that computes the weighed result of `build`, with or without its gradients.
Module Traced(const std::vector<Input>& inputs, const Build& build, bool gradients);
void ExpectTrueGradient(const std::vector<Input>& inputs, const Build& build);

}  // namespace minka::testing
