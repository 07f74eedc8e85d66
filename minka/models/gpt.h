// A causal language model: pre-LN transformer with learned positions and an untied head without
// bias (Radford et al. 2019).
#pragma once

#include "minka/frontend/trace.h"

namespace minka {

struct GptConfig {
  int64_t batch = 32;
  int64_t sequence = 1024;
  int64_t vocabulary = 51200;
  int64_t hidden = 768;
  int64_t num_layers = 12;
  int64_t num_heads = 12;
  double dropout = 0;
};

// Inputs tokens and labels, s32[batch, sequence]; the loss is the mean cross entropy, the
// evaluation also returns "logits" [batch, sequence, vocabulary]. Parameters:
// embedding/{tokens,positions},
// layer_i/{attention_norm,attention/{query,key,value,output},mlp_norm,mlp/{up,down}}, final_norm,
// head. Kernels start with deviation sqrt(2 / (5 hidden)) (Nguyen and Salazar 2019,
// arXiv:1910.05895), those in front of the 2 num_layers residual additions divided by
// sqrt(2 num_layers).
Model Gpt(const GptConfig& config);

}  // namespace minka
