// Tensors that record what is done with them: the C++ way to write a step.
//
//   Graph graph("step");
//   Tensor x = graph.Parameter({ElementType::kF32, {8, 16}}, "x");
//   Tensor w = graph.Parameter({ElementType::kF32, {16, 4}}, "w");
//   Tensor loss = Mean(Tanh(MatMul(x, w)));
//
// A mistake (shapes that do not fit, mixed types) is remembered by the graph, with the name of the
// scope it was made in, and gives an invalid tensor; what is computed from an invalid tensor is
// invalid, too. status() returns the first mistake. Element types are never converted silently.
// Elementwise operations broadcast as numpy does. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "minka/ir/builder.h"

namespace minka {

class Graph;

// A value of a graph; a cheap handle, valid as long as the graph. Default-constructed: invalid.
class Tensor {
 public:
  Tensor() = default;
  Tensor(Graph* graph, Value value) : graph_(graph), value_(value) {}

  bool valid() const { return graph_ != nullptr && value_.instruction >= 0; }
  // Precondition: valid().
  Graph& graph() const { return *graph_; }
  Value value() const { return value_; }
  // The empty shape for an invalid tensor.
  Shape shape() const;
  ElementType type() const { return shape().type; }
  std::vector<int64_t> dims() const { return shape().dims; }
  int rank() const { return shape().rank(); }
  // Negative: from the end. 1 where there is no such dimension, which is a mistake of the graph.
  int64_t dim(int index) const;

  // Is this handle one that StopGradient returned?
  bool stops_gradient() const { return stops_gradient_; }
  friend Tensor StopGradient(Tensor x);

 private:
  Graph* graph_ = nullptr;
  Value value_;
  bool stops_gradient_ = false;
};

// A module under construction with one entry computation.
class Graph {
 public:
  explicit Graph(std::string_view name);
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  Tensor Parameter(const Shape& shape, std::string_view name);
  Tensor Constant(Literal literal);
  // Equal scalars, and equal arrays filled with a scalar, are made once.
  Tensor Scalar(ElementType type, double value);
  Tensor Full(const Shape& shape, double value);
  Tensor Iota(const Shape& shape, int dimension);

  // Wraps a value made with builder(). `operands` in the order of the instruction's operands.
  Tensor Record(Value value, std::span<const Tensor> operands);
  // Remembers the first mistake, prefixed by the scope; returns an invalid tensor.
  Tensor Fail(const absl::Status& status);
  absl::Status status() const;

  // The name of what is recorded next (metadata of its instructions). Returns the former one.
  std::string SetScope(std::string_view scope);
  const std::string& scope() const { return scope_; }

  ComputationBuilder& builder() { return entry_; }
  ModuleBuilder& module() { return module_; }
  const Computation& computation() const { return entry_.computation(); }
  // Operands through which StopGradient lets no gradient pass.
  const std::set<Use>& stopped_uses() const { return stopped_uses_; }

 private:
  ModuleBuilder module_;
  ComputationBuilder entry_;
  std::string scope_;
  absl::Status status_;
  std::set<Use> stopped_uses_;
  std::map<std::pair<ElementType, double>, Value> scalars_;
  std::map<std::pair<Value, std::vector<int64_t>>, Value> filled_;
};

// Names what is recorded while it lives, then restores the former name.
class ScopeName {
 public:
  ScopeName(Graph& graph, std::string_view name) : graph_(graph), former_(graph.SetScope(name)) {}
  ~ScopeName() { graph_.SetScope(former_); }
  ScopeName(const ScopeName&) = delete;
  ScopeName& operator=(const ScopeName&) = delete;

 private:
  Graph& graph_;
  std::string former_;
};

// Elementwise, on one operand.
Tensor Unary(Opcode opcode, Tensor x);
inline Tensor Abs(Tensor x) { return Unary(Opcode::kAbs, x); }
inline Tensor Cosine(Tensor x) { return Unary(Opcode::kCosine, x); }
inline Tensor Erf(Tensor x) { return Unary(Opcode::kErf, x); }
inline Tensor Exp(Tensor x) { return Unary(Opcode::kExponential, x); }
inline Tensor Floor(Tensor x) { return Unary(Opcode::kFloor, x); }
inline Tensor IsFinite(Tensor x) { return Unary(Opcode::kIsFinite, x); }
inline Tensor Log(Tensor x) { return Unary(Opcode::kLog, x); }
inline Tensor Logistic(Tensor x) { return Unary(Opcode::kLogistic, x); }
inline Tensor Not(Tensor x) { return Unary(Opcode::kNot, x); }
inline Tensor Rsqrt(Tensor x) { return Unary(Opcode::kRsqrt, x); }
inline Tensor Sign(Tensor x) { return Unary(Opcode::kSign, x); }
inline Tensor Sine(Tensor x) { return Unary(Opcode::kSine, x); }
inline Tensor Sqrt(Tensor x) { return Unary(Opcode::kSqrt, x); }
inline Tensor Tanh(Tensor x) { return Unary(Opcode::kTanh, x); }
inline Tensor operator-(Tensor x) { return Unary(Opcode::kNegate, x); }

// Elementwise, on two operands of one type, broadcast to common dims.
Tensor Binary(Opcode opcode, Tensor x, Tensor y);
inline Tensor operator+(Tensor x, Tensor y) { return Binary(Opcode::kAdd, x, y); }
inline Tensor operator-(Tensor x, Tensor y) { return Binary(Opcode::kSubtract, x, y); }
inline Tensor operator*(Tensor x, Tensor y) { return Binary(Opcode::kMultiply, x, y); }
inline Tensor operator/(Tensor x, Tensor y) { return Binary(Opcode::kDivide, x, y); }
inline Tensor Max(Tensor x, Tensor y) { return Binary(Opcode::kMaximum, x, y); }
inline Tensor Min(Tensor x, Tensor y) { return Binary(Opcode::kMinimum, x, y); }
inline Tensor Power(Tensor x, Tensor y) { return Binary(Opcode::kPower, x, y); }
inline Tensor And(Tensor x, Tensor y) { return Binary(Opcode::kAnd, x, y); }
inline Tensor Or(Tensor x, Tensor y) { return Binary(Opcode::kOr, x, y); }
inline Tensor Xor(Tensor x, Tensor y) { return Binary(Opcode::kXor, x, y); }
// The same with a number, which takes x's type and dims.
Tensor Binary(Opcode opcode, Tensor x, double y);
inline Tensor operator+(Tensor x, double y) { return Binary(Opcode::kAdd, x, y); }
inline Tensor operator-(Tensor x, double y) { return Binary(Opcode::kSubtract, x, y); }
inline Tensor operator*(Tensor x, double y) { return Binary(Opcode::kMultiply, x, y); }
inline Tensor operator/(Tensor x, double y) { return Binary(Opcode::kDivide, x, y); }
inline Tensor Max(Tensor x, double y) { return Binary(Opcode::kMaximum, x, y); }
inline Tensor Min(Tensor x, double y) { return Binary(Opcode::kMinimum, x, y); }
inline Tensor operator+(double x, Tensor y) { return y + x; }
inline Tensor operator*(double x, Tensor y) { return y * x; }
Tensor operator-(double x, Tensor y);
Tensor operator/(double x, Tensor y);

using Comparison = CompareAttributes::Direction;
Tensor Compare(Comparison direction, Tensor x, Tensor y);
Tensor Compare(Comparison direction, Tensor x, double y);
// predicate ? on_true : on_false.
Tensor Where(Tensor predicate, Tensor on_true, Tensor on_false);
Tensor Where(Tensor predicate, Tensor on_true, double on_false);
Tensor Clamp(Tensor low, Tensor x, Tensor high);

Tensor Convert(Tensor x, ElementType type);
// x, but what is computed from the returned handle gives x no gradient.
Tensor StopGradient(Tensor x);

// numpy's rule: dims are aligned at the end, size 1 is repeated.
Tensor BroadcastTo(Tensor x, std::vector<int64_t> dims);
// HLO's rule: dimension i of x becomes dimension `dimensions[i]` of the result.
Tensor Broadcast(Tensor x, std::vector<int64_t> dims, std::vector<int64_t> dimensions);
Tensor Reshape(Tensor x, std::vector<int64_t> dims);
Tensor Transpose(Tensor x, std::vector<int64_t> permutation);
Tensor Slice(Tensor x, std::vector<int64_t> starts, std::vector<int64_t> limits,
             std::vector<int64_t> strides = {});
Tensor Concatenate(std::span<const Tensor> operands, int dimension);
Tensor Pad(Tensor x, Tensor value, PadAttributes attributes);

// The dims in `dims` are dropped; no dims given: all.
Tensor Reduce(Opcode reducer, Tensor x, double init, std::vector<int64_t> dims);
Tensor Sum(Tensor x, std::vector<int64_t> dims);
Tensor Sum(Tensor x);
Tensor Mean(Tensor x, std::vector<int64_t> dims);
Tensor Mean(Tensor x);
Tensor ReduceMax(Tensor x, std::vector<int64_t> dims);

// One letter per dimension, "bsh,hnd->bsnd": letters missing in the result are summed over, letters
// in both operands and the result are batch dimensions.
Tensor Einsum(std::string_view equation, Tensor x, Tensor y);
// The last dimension of x with the one before the last of y; leading dimensions of y, if any, are
// batch dimensions equal to those of x.
Tensor MatMul(Tensor x, Tensor y);
Tensor Dot(Tensor x, Tensor y, DotAttributes attributes);

// Rows of the table: result dims = dims of indices, then the table's dims but the first. Indices
// must be in range (XLA clamps them).
Tensor Take(Tensor table, Tensor indices);
Tensor Gather(Tensor x, Tensor indices, GatherAttributes attributes);
Tensor Scatter(Tensor x, Tensor indices, Tensor updates, ScatterAttributes attributes,
               Opcode combiner);
Tensor DynamicSlice(Tensor x, std::span<const Tensor> starts, std::vector<int64_t> sizes);
Tensor DynamicUpdateSlice(Tensor x, Tensor update, std::span<const Tensor> starts);
// 1 where the last, new dimension's index equals the index, else 0.
Tensor OneHot(Tensor indices, int64_t depth, ElementType type);
std::vector<Tensor> OptBarrier(std::span<const Tensor> operands);

}  // namespace minka
