// A causal language model: pre-LN transformer with learned positions and an untied head without
// bias (Radford et al. 2019), optionally with a mixture of experts in every other layer.
#pragma once

#include <optional>

#include "minka/frontend/nn.h"
#include "minka/frontend/trace.h"

namespace minka {

struct GptExperts {
  int64_t num_experts = 8;
  int64_t group_size = 2048;       // tokens; at most those of a batch
  double auxiliary_weight = 0.01;  // of the loss for uneven use of the experts
};

struct GptConfig {
  int64_t batch = 32;
  int64_t sequence = 1024;
  int64_t vocabulary = 51200;
  int64_t hidden = 768;
  int64_t num_layers = 12;
  int64_t num_heads = 12;
  double dropout = 0;
  LookUp look_up = LookUp::kGather;  // of tokens
  int64_t mlp_factor = 4;  // features inside feed-forward networks and experts, over hidden
  // In layers 0, 2, 4 ... "experts" (frontend/experts.h) stand in place of "mlp".
  std::optional<GptExperts> experts;
};

// Inputs tokens and labels, s32[batch, sequence]; the loss is the mean cross entropy, the
// evaluation also returns "logits" [batch, sequence, vocabulary]. With experts the training loss
// has the weighted mean of their auxiliary losses added, and both parts are metrics:
// "cross_entropy", "auxiliary_loss". Parameters:
// embedding/{tokens,positions},
// layer_i/{attention_norm,attention/{query,key,value,output},mlp_norm,mlp/{up,down}}, final_norm,
// head. Kernels start with deviation sqrt(2 / (5 hidden)) (Nguyen and Salazar 2019,
// arXiv:1910.05895), those in front of the 2 num_layers residual additions divided by
// sqrt(2 num_layers).
Model Gpt(const GptConfig& config);

}  // namespace minka
