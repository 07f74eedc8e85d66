// Mixture of experts: every token goes to two of many feed-forward networks (Lepikhin et al. 2021,
// GShard, arXiv:2006.16668, algorithm 1, with every second expert used).
#pragma once

#include <cstdint>

#include "minka/frontend/parameters.h"
#include "minka/frontend/tensor.h"

namespace minka {

struct ExpertsOptions {
  int64_t num_experts = 8;
  int64_t hidden = 0;  // features inside an expert
  // Tokens that compete for the places of an expert; divides their number.
  int64_t group_size = 2048;
  // Places per expert and group: this times group_size / num_experts, rounded up. Tokens that find
  // none skip the expert.
  double capacity_factor = 2;
  double up_stddev = 0.02, down_stddev = 0.02, gate_stddev = 0.02;
};

struct ExpertsOutput {
  Tensor y;
  // Smallest (1) where experts are used evenly: E^2 times the mean over groups and experts of the
  // share of tokens that choose an expert first, times its mean gate. f32[].
  Tensor auxiliary_loss;
};

// For x [batch, sequence, features], parameters gate/kernel [features, experts], up [experts,
// features, hidden], down [experts, hidden, features], relu between the two. Tokens are sent to
// experts and back by dots with one-hot tensors [groups, group_size, experts, capacity]: splitting
// the groups on one side and the experts on the other is expert parallelism.
ExpertsOutput MixtureOfExperts(const Scope& scope, Tensor x, const ExpertsOptions& options);

// 1 at the first of the largest elements of the last dimension, else 0; no gradient.
Tensor FirstLargest(Tensor x);

}  // namespace minka
