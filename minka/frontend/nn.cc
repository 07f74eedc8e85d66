#include "minka/frontend/nn.h"

#include <cmath>
#include <numbers>
#include <numeric>

#include "minka/base/status.h"

namespace minka {
namespace {

constexpr Initializer kZeros = {Initializer::Kind::kZeros};
constexpr Initializer kOnes = {Initializer::Kind::kOnes};

Initializer Normal(double stddev) { return {Initializer::Kind::kNormal, stddev}; }

// A tensor over the last dimension, repeated over the leading dims of `dims`.
Tensor OverLast(Tensor x, const std::vector<int64_t>& dims) {
  return Broadcast(x, dims, {static_cast<int64_t>(dims.size()) - 1});
}

// A tensor without the last dimension, repeated over it.
Tensor AlongLast(Tensor x, const std::vector<int64_t>& dims) {
  std::vector<int64_t> positions(dims.size() - 1);
  std::iota(positions.begin(), positions.end(), 0);
  return Broadcast(x, dims, positions);
}

double MaskValue(ElementType type) { return type == ElementType::kF16 ? -3e4 : -1e9; }

}  // namespace

Tensor Dense(const Scope& scope, Tensor x, const DenseOptions& options) {
  if (!x.valid()) return x;
  const ScopeName name(scope.graph(), scope.path());
  const int first = x.rank() - options.num_input_dims;
  if (first < 0 || options.num_input_dims < 1) {
    return scope.graph().Fail(InvalidArgument("dense: {} has no {} input dimensions",
                                              ToString(x.shape()), options.num_input_dims));
  }
  const std::vector<int64_t> dims = x.dims();
  std::vector<int64_t> kernel_dims(dims.begin() + first, dims.end());
  const double inputs = std::accumulate(kernel_dims.begin(), kernel_dims.end(), 1.0,
                                        [](double a, int64_t b) { return a * double(b); });
  DotAttributes dot;
  for (int i = 0; i < options.num_input_dims; ++i) {
    dot.lhs_contracting.push_back(first + i);
    dot.rhs_contracting.push_back(i);
  }
  kernel_dims.insert(kernel_dims.end(), options.features.begin(), options.features.end());
  const double stddev = options.stddev.value_or(1 / std::sqrt(inputs));
  const Tensor kernel =
      scope.Parameter("kernel", kernel_dims, {.initializer = Normal(stddev), .decays = true});
  const Tensor y = Dot(x, kernel, dot);
  if (!options.bias) return y;
  return y + scope.Parameter("bias", options.features, {.initializer = kZeros});
}

Tensor EmbeddingTable(const Scope& scope, const EmbeddingOptions& options) {
  const ScopeName name(scope.graph(), scope.path());
  return scope.Parameter("embedding", {options.num_rows, options.features},
                         {.initializer = Normal(options.stddev), .decays = true, .master = true});
}

Tensor EmbeddingRows(Tensor table, Tensor ids, ElementType type, LookUp look_up) {
  if (look_up == LookUp::kGather) return Convert(Take(table, ids), type);
  return MatMul(OneHot(ids, table.dim(0), type), Convert(table, type));
}

Tensor LayerNorm(const Scope& scope, Tensor x, double epsilon) {
  if (!x.valid()) return x;
  const ScopeName name(scope.graph(), scope.path());
  const ElementType type = x.type();
  const std::vector<int64_t> dims = x.dims();
  const int64_t last = static_cast<int64_t>(dims.size()) - 1;
  x = Convert(x, ElementType::kF32);
  const Tensor centered = x - AlongLast(Mean(x, {last}), dims);
  const Tensor variance = Mean(centered * centered, {last});
  const Tensor normal = centered * AlongLast(Rsqrt(variance + epsilon), dims);
  const Tensor scale = scope.Parameter("scale", {dims.back()}, {.initializer = kOnes});
  const Tensor bias = scope.Parameter("bias", {dims.back()}, {.initializer = kZeros});
  return Convert(normal, type) * OverLast(scale, dims) + OverLast(bias, dims);
}

Tensor Dropout(const Scope& scope, Tensor x, double rate) {
  if (!x.valid() || rate == 0) return x;
  const ScopeName name(scope.graph(), scope.path());
  if (rate < 0 || rate >= 1) {
    return scope.graph().Fail(InvalidArgument("dropout rate {} is not in [0, 1)", rate));
  }
  const Tensor kept = scope.RandomMask(x.dims(), 1 - rate);
  return kept.valid() ? Where(kept, x * (1 / (1 - rate)), 0.0) : x;
}

Tensor Gelu(Tensor x) { return x * 0.5 * (Erf(x * (1 / std::numbers::sqrt2)) + 1.0); }

Tensor GeluTanh(Tensor x) {
  const Tensor inner = (x + x * x * x * 0.044715) * std::sqrt(2 / std::numbers::pi);
  return x * 0.5 * (Tanh(inner) + 1.0);
}

Tensor Relu(Tensor x) { return Max(x, 0.0); }

Tensor Softmax(Tensor x) {
  if (!x.valid()) return x;
  const ElementType type = x.type();
  const std::vector<int64_t> dims = x.dims();
  const int64_t last = static_cast<int64_t>(dims.size()) - 1;
  x = Convert(x, ElementType::kF32);
  const Tensor largest = ReduceMax(StopGradient(x), {last});
  const Tensor exponential = Exp(x - AlongLast(largest, dims));
  return Convert(exponential / AlongLast(Sum(exponential, {last}), dims), type);
}

AttentionBias CausalBias(Graph& graph, ElementType type, int64_t sequence) {
  const ScopeName name(graph, "causal_bias");
  const Shape shape{ElementType::kS32, {sequence, sequence}};
  const Tensor allowed = Compare(Comparison::kGe, graph.Iota(shape, 0), graph.Iota(shape, 1));
  const Shape bias{type, shape.dims};
  return {Where(allowed, graph.Full(bias, 0), graph.Full(bias, MaskValue(type))), {2, 3}};
}

AttentionBias MaskBias(Tensor mask, ElementType type) {
  if (!mask.valid()) return {};
  const Shape bias{type, mask.dims()};
  return {Where(Compare(Comparison::kGt, mask, 0.0), mask.graph().Full(bias, 0),
                mask.graph().Full(bias, MaskValue(type))),
          {0, 3}};
}

Tensor AttentionContext(const Scope& scope, Tensor query, Tensor key, Tensor value,
                        const AttentionBias& bias, double dropout) {
  const bool is_biased = !bias.positions.empty();
  if (!query.valid() || (is_biased && !bias.values.valid())) return Tensor();
  const ScopeName name(scope.graph(), scope.path());
  query = query * (1 / std::sqrt(static_cast<double>(query.dim(-1))));
  Tensor scores = Einsum("bqhd,bkhd->bhqk", query, key);
  if (is_biased) scores = scores + Broadcast(bias.values, scores.dims(), bias.positions);
  Tensor weights = Softmax(scores);
  weights = Dropout(scope / "dropout", weights, dropout);
  return Einsum("bhqk,bkhd->bqhd", weights, value);
}

Tensor Attention(const Scope& scope, Tensor x, const AttentionBias& bias,
                 const AttentionOptions& options) {
  if (!x.valid()) return x;
  const int64_t features = x.dim(-1);
  if (options.num_heads < 1 || features % options.num_heads != 0) {
    return scope.graph().Fail(InvalidArgument("{}: {} features cannot be cut into {} heads",
                                              scope.path(), features, options.num_heads));
  }
  const DenseOptions projection{.features = {options.num_heads, features / options.num_heads},
                                .stddev = options.kernel_stddev};
  const Tensor query = Dense(scope / "query", x, projection);
  const Tensor key = Dense(scope / "key", x, projection);
  const Tensor value = Dense(scope / "value", x, projection);
  const Tensor context = AttentionContext(scope, query, key, value, bias, options.dropout);
  return Dense(scope / "output", context,
               {.features = {features}, .num_input_dims = 2, .stddev = options.output_stddev});
}

Tensor CrossEntropy(Tensor logits, Tensor labels) {
  if (!logits.valid() || !labels.valid()) return Tensor();
  Graph& graph = logits.graph();
  const ScopeName name(graph, "cross_entropy");
  const std::vector<int64_t> dims = logits.dims();
  const int last = static_cast<int>(dims.size()) - 1;
  if (labels.dims() != std::vector<int64_t>(dims.begin(), dims.end() - 1)) {
    return graph.Fail(InvalidArgument("labels {} do not fit logits {}", ToString(labels.shape()),
                                      ToString(logits.shape())));
  }
  logits = Convert(logits, ElementType::kF32);
  const Tensor largest = ReduceMax(StopGradient(logits), {last});
  const Tensor shifted = logits - AlongLast(largest, dims);
  const Tensor classes = graph.Iota({labels.type(), dims}, last);
  const Tensor is_label = Compare(Comparison::kEq, classes, AlongLast(labels, dims));
  return Log(Sum(Exp(shifted), {last})) - Sum(Where(is_label, shifted, 0.0), {last});
}

Tensor MeanCrossEntropy(Tensor logits, Tensor labels) { return Mean(CrossEntropy(logits, labels)); }

Tensor MaskedCrossEntropy(Tensor logits, Tensor labels) {
  const Tensor losses = CrossEntropy(logits, labels);
  if (!losses.valid()) return losses;
  const ScopeName name(losses.graph(), "masked_mean");
  const Tensor counted = Compare(Comparison::kGt, labels, 0.0);
  return Sum(Where(counted, losses, 0.0)) / Max(Sum(Convert(counted, losses.type())), 1.0);
}

Tensor MeanSquaredError(Tensor x, Tensor target) {
  const Tensor difference = x - target;
  return Mean(difference * difference);
}

}  // namespace minka
