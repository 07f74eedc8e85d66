// BERT (Devlin et al. 2018): post-LN transformer with fused query-value-key projections. The
// structure is that of the models that Alpa (OSDI'22) tests and benchmarks with.
#pragma once

#include "minka/frontend/nn.h"
#include "minka/frontend/trace.h"

namespace minka {

struct BertConfig {
  int64_t batch = 32;
  int64_t sequence = 512;
  int64_t vocabulary = 30592;  // 30522 words, padded to a multiple of 128
  int64_t num_types = 2;
  int64_t hidden = 768;
  int64_t num_layers = 12;
  int64_t num_heads = 12;
  double dropout = 0.1;
  LookUp look_up = LookUp::kOneHot;
  double loss_scale = 1;
};

// Masked language model: word, position and type embeddings summed, LayerNorm, dropout, the layers,
// Dense, GELU, LayerNorm; logits through the tied word embedding, plus bias; cross entropy averaged
// over labels above 0. Inputs input_ids, mask, type_ids, position_ids, labels: s32[batch,
// sequence].
Model BertMaskedLanguageModel(const BertConfig& config);

// The layers alone: inputs x [batch, sequence, hidden], mask s32[batch, sequence] and a target y of
// x's shape; mean squared error. The vocabulary is not used.
Model BertLayers(const BertConfig& config);

}  // namespace minka
