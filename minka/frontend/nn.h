// Layers and losses. Each makes its parameters below the scope it is given.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "minka/frontend/parameters.h"
#include "minka/frontend/tensor.h"

namespace minka {

struct DenseOptions {
  // Dims that replace the last `num_input_dims` dims of x.
  std::vector<int64_t> features;
  int num_input_dims = 1;
  bool bias = true;
  // Of the kernel; without it normal with variance 1 / inputs.
  std::optional<double> stddev;
};
// x times kernel [inputs..., features...], plus bias [features...].
Tensor Dense(const Scope& scope, Tensor x, const DenseOptions& options);

enum class LookUp {
  kGather,  // backward: scatter-add
  kOneHot,  // a dot with one-hot rows, forward and backward
};
struct EmbeddingOptions {
  int64_t num_rows = 0;
  int64_t features = 0;
  double stddev = 0.02;
};
// The table [num_rows, features] of a scope in the type that it is kept in, so that the gradients
// of frequent rows add up in full precision.
Tensor EmbeddingTable(const Scope& scope, const EmbeddingOptions& options);
// Rows of the table: dims of ids, then features; in the type.
Tensor EmbeddingRows(Tensor table, Tensor ids, ElementType type, LookUp look_up = LookUp::kGather);

// Over the last dimension, with scale and bias; statistics in f32.
Tensor LayerNorm(const Scope& scope, Tensor x, double epsilon = 1e-6);

// x / (1 - rate) where kept, else 0. Off in evaluation and for rate 0. The scope must be used for
// one dropout only.
Tensor Dropout(const Scope& scope, Tensor x, double rate);

// x Phi(x), Phi the normal distribution function, by erf.
Tensor Gelu(Tensor x);
// Hendrycks and Gimpel's approximation by tanh (arXiv:1606.08415).
Tensor GeluTanh(Tensor x);
Tensor Relu(Tensor x);
// Over the last dimension, in f32; the result has x's type.
Tensor Softmax(Tensor x);

// What is added to attention scores [batch, heads, queries, keys]: 0 where attention is allowed,
// else a large negative number.
struct AttentionBias {
  Tensor values;
  std::vector<int64_t> positions;  // dimensions of the scores that the values have
};
AttentionBias CausalBias(Graph& graph, ElementType type, int64_t sequence);
// Allows the keys whose mask, integers [batch, keys], is above 0.
AttentionBias MaskBias(Tensor mask, ElementType type);

struct AttentionOptions {
  int64_t num_heads = 1;
  double dropout = 0;
  double kernel_stddev = 0.02;
  double output_stddev = 0.02;
};
// Multi-head self-attention of x [batch, sequence, features], with output projection. The kernels
// of query, key and value are [features, heads, size], the output's [heads, size, features], so
// that splitting the heads splits everything between.
Tensor Attention(const Scope& scope, Tensor x, const AttentionBias& bias,
                 const AttentionOptions& options);
// The middle of it: query, key, value [batch, sequence, heads, size] to the same dims. Queries may
// have another sequence than keys and values. A bias without positions is none.
Tensor AttentionContext(const Scope& scope, Tensor query, Tensor key, Tensor value,
                        const AttentionBias& bias, double dropout);

// Per element of labels: -log softmax(logits)[label], in f32. logits [..., classes], labels [...].
// Only elementwise operations and reductions, so that classes may be split over devices.
Tensor CrossEntropy(Tensor logits, Tensor labels);
// Averages: over all elements; over the labels above 0.
Tensor MeanCrossEntropy(Tensor logits, Tensor labels);
Tensor MaskedCrossEntropy(Tensor logits, Tensor labels);
Tensor MeanSquaredError(Tensor x, Tensor target);

}  // namespace minka
