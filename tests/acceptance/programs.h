// The programs of the acceptance rows: training steps that JAX made, and the small programs of
// Alpa's solver tests (OSDI'22), built here.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "minka/ir/step.h"

namespace minka {

// A module of tests/testdata/jax by its name in index.json, with its batch inputs.
absl::StatusOr<Step> JaxStep(const std::string& name);

struct DenseChain {
  int num_layers = 2;
  int64_t batch = 0;
  int64_t dim = 0;
  bool has_biases = false;
};

// h_i = h_(i-1) w_i [+ b_i] without activations, e = (h_n - y) / 2, and per layer new_w = w -
// h^T e [, new_b = b - column sum of e]. New weights lie as the old ones do; biases are free.
absl::StatusOr<Step> DenseChainStep(const DenseChain& chain);

// One result each, which lies as the state parameter "result" does, so that a pin on it holds.
// Transposed x (2048,128) times transposed y (128,2048), the result transposed; `repeats` odd.
absl::StatusOr<Step> TransposedDot(int repeats);
// x (128,1024,2) times y (1024,2,128), both reshaped to matrices; `again`: through further shapes
// and back, the result to (128,2,64).
absl::StatusOr<Step> ReshapedDot(bool again);
// x1 y1 + x2 y2.
absl::StatusOr<Step> SumOfTwoDots();
// Three dots, each reshaped to (32,4,128), added to a parameter, then six times exp.
absl::StatusOr<Step> ExpOfThreeDots();

}  // namespace minka
