#include "minka/frontend/experts.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "minka/base/status.h"
#include "minka/frontend/nn.h"

namespace minka {
namespace {

constexpr double kMinGateSum = 1e-9;

// A tensor that lacks the dimension `dim` of the result, repeated along it.
Tensor Along(Tensor x, const std::vector<int64_t>& dims, int64_t dim) {
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < static_cast<int64_t>(dims.size()); ++i) {
    if (i != dim) positions.push_back(i);
  }
  return Broadcast(x, dims, positions);
}

// Tokens before each one that chose the same expert; choices [groups, tokens, experts].
Tensor NumBefore(Tensor choices) {
  const int64_t tokens = choices.dim(1);
  Graph& graph = choices.graph();
  const Shape square{ElementType::kS32, {tokens, tokens}};
  const Tensor before = Compare(Comparison::kLt, graph.Iota(square, 0), graph.Iota(square, 1));
  return Einsum("gse,st->gte", choices, Convert(before, choices.type()));
}

// The way of every token to one of its experts.
struct Route {
  Tensor experts;  // [groups, tokens, experts]: 1 at the expert if it has a place
  Tensor places;   // [groups, tokens, capacity]: 1 at the place
  Tensor gate;     // [groups, tokens]
};

// `taken` [groups, experts]: places that are gone already; invalid for none.
Route FindPlaces(Tensor choices, Tensor gate, Tensor taken, int64_t capacity) {
  Tensor before = NumBefore(choices);
  if (taken.valid()) before = before + Along(taken, choices.dims(), 1);
  const Tensor fits = Compare(Comparison::kLt, before, static_cast<double>(capacity));
  const Tensor place = Convert(Sum(before * choices, {2}), ElementType::kS32);
  return {Where(fits, choices, 0.0), OneHot(place, capacity, choices.type()), gate};
}

// [groups, tokens, experts, capacity]: the gate where a token goes.
Tensor Combination(const Route& route) {
  const Tensor gated = route.experts * Along(route.gate, route.experts.dims(), 2);
  std::vector<int64_t> dims = gated.dims();
  dims.push_back(route.places.dim(2));
  return Along(gated, dims, 3) * Along(route.places, dims, 2);
}

struct Gating {
  Tensor combination;
  Tensor auxiliary_loss;
};

// From gates [groups, tokens, experts] that sum to 1 over the experts.
Gating ChooseTwo(Tensor gates, int64_t capacity) {
  const Tensor first = FirstLargest(gates);
  const Tensor second = FirstLargest(
      Where(Compare(Comparison::kGt, first, 0.0), gates.graph().Full(gates.shape(), -1), gates));
  Tensor first_gate = Sum(gates * first, {2}), second_gate = Sum(gates * second, {2});
  const Tensor sum = first_gate + second_gate + kMinGateSum;
  const Route one = FindPlaces(first, first_gate / sum, Tensor(), capacity);
  const Route two = FindPlaces(second, second_gate / sum, Sum(one.experts, {1}), capacity);
  const auto num_experts = static_cast<double>(gates.dim(2));
  const Tensor balance = Mean(Mean(gates, {1}) * Mean(first, {1}));
  return {Combination(one) + Combination(two), balance * (num_experts * num_experts)};
}

absl::Status CheckOptions(const Scope& scope, Tensor x, const ExpertsOptions& options) {
  if (x.rank() != 3) {
    return InvalidArgument("{}: experts want [batch, sequence, features], not {}", scope.path(),
                           ToString(x.shape()));
  }
  const int64_t tokens = x.dim(0) * x.dim(1);
  if (options.num_experts < 2 || options.group_size < 1 || tokens % options.group_size != 0) {
    return InvalidArgument("{}: {} tokens cannot go to {} experts in groups of {}", scope.path(),
                           tokens, options.num_experts, options.group_size);
  }
  return absl::OkStatus();
}

Tensor ExpertKernel(const Scope& scope, std::string_view name, std::vector<int64_t> dims,
                    double stddev) {
  return scope.Parameter(name, std::move(dims),
                         {.initializer = {Initializer::Kind::kNormal, stddev}, .decays = true});
}

}  // namespace

Tensor FirstLargest(Tensor x) {
  if (!x.valid()) return x;
  const int last = x.rank() - 1;
  const std::vector<int64_t> dims = x.dims();
  const Tensor stopped = StopGradient(x);
  const Tensor is_largest =
      Compare(Comparison::kEq, stopped, Along(ReduceMax(stopped, {last}), dims, last));
  const Tensor index = x.graph().Iota({ElementType::kS32, dims}, last);
  const auto none = static_cast<double>(dims.back());
  const Tensor first = Reduce(Opcode::kMinimum, Where(is_largest, index, none), none, {last});
  return OneHot(first, dims.back(), x.type());
}

ExpertsOutput MixtureOfExperts(const Scope& scope, Tensor x, const ExpertsOptions& options) {
  if (!x.valid()) return {x, x};
  const ScopeName name(scope.graph(), scope.path());
  const absl::Status status = CheckOptions(scope, x, options);
  if (!status.ok()) {
    const Tensor failed = scope.graph().Fail(status);
    return {failed, failed};
  }
  const std::vector<int64_t> dims = x.dims();
  const int64_t experts = options.num_experts, features = dims[2];
  const auto capacity = static_cast<int64_t>(
      std::ceil(options.capacity_factor * static_cast<double>(options.group_size) /
                static_cast<double>(experts)));
  x = Reshape(x, {dims[0] * dims[1] / options.group_size, options.group_size, features});
  // Gates in f32: two experts that are almost equally good must be told apart.
  const Tensor gate =
      (scope / "gate")
          .Parameter(
              "kernel", {features, experts},
              {.initializer = {Initializer::Kind::kNormal, options.gate_stddev}, .master = true});
  const Tensor gates = Softmax(MatMul(Convert(x, gate.type()), gate));
  const Gating gating = ChooseTwo(gates, capacity);
  const Tensor combination = Convert(gating.combination, x.type());
  const Tensor dispatch = Convert(Compare(Comparison::kGt, combination, 0.0), x.type());
  const Tensor up =
      ExpertKernel(scope, "up", {experts, features, options.hidden}, options.up_stddev);
  const Tensor down =
      ExpertKernel(scope, "down", {experts, options.hidden, features}, options.down_stddev);
  const Tensor sent = Einsum("gsec,gsm->egcm", dispatch, x);
  const Tensor inner = Relu(Einsum("egcm,emh->egch", sent, up));
  const Tensor done = Einsum("egch,ehm->egcm", inner, down);
  const Tensor y = Einsum("gsec,egcm->gsm", combination, done);
  return {Reshape(y, dims), gating.auxiliary_loss};
}

}  // namespace minka
