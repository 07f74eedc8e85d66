// Builds a module instruction by instruction, inferring shapes.
//
//   ModuleBuilder module("step");
//   ComputationBuilder b = module.Entry();
//   Value x = b.Parameter({ElementType::kF32, {8, 16}}, "x");
//   b.SetResults({b.Binary(Opcode::kAdd, x, x)});
//   ASSIGN_OR_RETURN(Module m, module.Finish());
//
// The first mistake (shapes that do not fit, an unknown value) is remembered with its operation and
// returned by Finish(); what is built after it is ignored. Not thread-safe.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/ir/module.h"

namespace minka {

class ModuleBuilder;

// A cheap handle on a computation under construction; valid as long as its ModuleBuilder.
class ComputationBuilder {
 public:
  Value Parameter(const Shape& shape, std::string_view name);
  Value Constant(Literal literal);
  Value Scalar(ElementType type, double value);
  // A scalar broadcast to the dims of `like`, in its type.
  Value FullLike(Value like, double value);
  Value Iota(const Shape& shape, int64_t dimension);

  Value Unary(Opcode opcode, Value x);
  Value Binary(Opcode opcode, Value x, Value y);  // same shape; no implicit broadcasting
  Value Compare(CompareAttributes::Direction direction, Value x, Value y);
  Value Select(Value predicate, Value on_true, Value on_false);
  Value Clamp(Value low, Value x, Value high);
  Value Convert(Value x, ElementType type);  // x itself where it has the type
  Value BitcastConvert(Value x, ElementType type);
  Value Broadcast(Value x, std::vector<int64_t> dims, std::vector<int64_t> broadcast_dimensions);
  Value Reshape(Value x, std::vector<int64_t> dims);
  Value Transpose(Value x, std::vector<int64_t> permutation);
  Value Slice(Value x, SliceAttributes attributes);
  Value Concatenate(std::span<const Value> operands, int64_t dimension);
  Value Pad(Value x, Value padding, PadAttributes attributes);
  // The result has the operands' type unless `type` says otherwise (f32 accumulation of bf16
  // operands).
  Value Dot(Value x, Value y, DotAttributes attributes, ElementType type = ElementType::kInvalid);
  // Reduces with a binary opcode (add, maximum, ...); the scalar reducer is made once per module
  // and type.
  Value Reduce(Value x, Value init, std::vector<int64_t> dims, Opcode reducer);
  // As dot, the result has the operands' type unless `type` says otherwise.
  Value Convolution(Value input, Value kernel, ConvolutionAttributes attributes,
                    ElementType type = ElementType::kInvalid);
  // Reduces the elements under each position of the window.
  Value ReduceWindow(Value x, Value init, std::vector<WindowDim> window, Opcode reducer);
  // Per position of the window on x, the element that `select` prefers gets `source` added.
  Value SelectAndScatterAdd(Value x, Value source, Value init, std::vector<WindowDim> window,
                            CompareAttributes::Direction select);
  Value Gather(Value x, Value indices, GatherAttributes attributes);
  Value Scatter(Value x, Value indices, Value updates, ScatterAttributes attributes,
                Opcode combiner);
  std::vector<Value> OptBarrier(std::span<const Value> values);
  Value DynamicSlice(Value x, std::span<const Value> starts, std::vector<int64_t> sizes);
  Value DynamicUpdateSlice(Value x, Value update, std::span<const Value> starts);

  Value ReplicaId();
  std::vector<Value> AllReduce(std::span<const Value> values, Opcode reducer,
                               std::vector<std::vector<int64_t>> groups);
  Value AllGather(Value x, int64_t dimension, std::vector<std::vector<int64_t>> groups);
  Value ReduceScatter(Value x, int64_t dimension, Opcode reducer,
                      std::vector<std::vector<int64_t>> groups);
  // One dimension is cut into group-size blocks and the received blocks are concatenated along the
  // same dimension.
  Value AllToAll(Value x, int64_t dimension, std::vector<std::vector<int64_t>> groups);

  // Appends any instruction; results left empty are inferred (shape_inference.h). Returns result 0;
  // the others are {id, 1}, {id, 2}, ...
  Value Append(Instruction instruction);

  // Metadata for what is built from now on.
  void SetOpName(std::string_view op_name);
  // What is built from now on stands there in the step.
  void SetPart(StepPart part);
  void SetResults(std::vector<Value> results);
  const Shape& shape(Value value) const;
  const Computation& computation() const;
  ModuleBuilder& module() { return *module_; }

 private:
  friend class ModuleBuilder;
  ComputationBuilder(ModuleBuilder* module, int index) : module_(module), index_(index) {}
  Value AppendTyped(Instruction instruction, ElementType type);
  ModuleBuilder* module_;
  int index_;
};

class ModuleBuilder {
 public:
  explicit ModuleBuilder(std::string_view name);
  ComputationBuilder Entry();
  ComputationBuilder AddComputation(std::string_view name);
  // The computation (x, y) -> opcode(x, y) on scalars of the type.
  ComputationId ScalarReducer(Opcode opcode, ElementType type);
  // Copies a computation of another module with everything it calls; returns its id here.
  ComputationId Import(const Module& source, ComputationId computation);
  ComputationId id(const ComputationBuilder& builder) const;
  const Computation& computation(ComputationId id) const { return module_.computations[id]; }

  void AddAlias(Alias alias);
  void SetFrontendAttribute(std::string_view key, std::string_view value);
  const absl::Status& status() const { return status_; }
  // The module with callees before callers, unique names, verified (verifier.h).
  absl::StatusOr<Module> Finish() &&;

 private:
  friend class ComputationBuilder;
  void Fail(absl::Status status);
  Module module_;
  absl::Status status_;
  // Per computation, for what is appended next.
  std::vector<std::string> op_names_;
  std::vector<StepPart> parts_;
  std::map<std::pair<Opcode, ElementType>, ComputationId> reducers_;
};

}  // namespace minka
