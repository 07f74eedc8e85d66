#include "minka/ir/builder.h"

#include <algorithm>

#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/ir/call_graph.h"
#include "minka/ir/names.h"
#include "minka/ir/shape_inference.h"
#include "minka/ir/shape_inference_rules.h"
#include "minka/ir/verifier.h"

namespace minka {
namespace {

Instruction MakeInstruction(Opcode opcode, std::vector<Value> operands, Attributes attributes = {},
                            std::vector<Shape> results = {}) {
  return {.opcode = opcode,
          .operands = std::move(operands),
          .results = std::move(results),
          .attributes = std::move(attributes)};
}

std::vector<Value> ToVector(std::span<const Value> values) {
  return {values.begin(), values.end()};
}

std::vector<Value> Results(Value first, size_t count) {
  std::vector<Value> results;
  results.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    results.push_back({first.instruction, static_cast<int32_t>(i)});
  }
  return results;
}

bool IsKnown(const Computation& computation, Value value) {
  if (value.instruction < 0 || value.instruction >= computation.num_instructions()) return false;
  const auto num_results = computation.instructions[value.instruction].results.size();
  return value.result >= 0 && value.result < static_cast<int>(num_results);
}

absl::Status CheckInferred(const Instruction& instruction, const std::vector<Shape>& inferred) {
  if (instruction.results.size() != inferred.size()) {
    return InvalidArgument("{}: declares {} results, has {}", OpcodeName(instruction.opcode),
                           instruction.results.size(), inferred.size());
  }
  for (size_t i = 0; i < inferred.size(); ++i) {
    if (instruction.results[i] == inferred[i]) continue;
    return InvalidArgument("{}: result {} is {}, not {} as declared",
                           OpcodeName(instruction.opcode), i, ToString(inferred[i]),
                           ToString(instruction.results[i]));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Shape>> CheckedResults(const Module& module,
                                                  const Computation& computation,
                                                  const Instruction& instruction) {
  std::vector<Shape> operands;
  for (const Value operand : instruction.operands) {
    if (!IsKnown(computation, operand)) {
      return InvalidArgument("{}: operand {} is no value of this computation",
                             OpcodeName(instruction.opcode), operands.size());
    }
    operands.push_back(computation.shape(operand));
  }
  ASSIGN_OR_RETURN(std::vector<Shape> inferred, InferShapes(module, instruction, operands));
  if (!instruction.results.empty()) RETURN_IF_ERROR(CheckInferred(instruction, inferred));
  return inferred;
}

absl::Status RecordParameter(Computation& computation, const Instruction& instruction) {
  const int64_t number = instruction.As<ParameterAttributes>().number;
  const auto next = static_cast<int64_t>(computation.parameters.size());
  if (number != next) return InvalidArgument("parameter: number {}, expected {}", number, next);
  computation.parameters.push_back(computation.num_instructions());
  return absl::OkStatus();
}

// The given names are kept where they are unique; what has none is named after its opcode.
void NameInstructions(Computation& computation) {
  UniqueNames names;
  for (Instruction& instruction : computation.instructions) {
    if (!instruction.name.empty()) instruction.name = names.Take(SanitizedName(instruction.name));
  }
  for (Instruction& instruction : computation.instructions) {
    if (!instruction.name.empty()) continue;
    const auto* opaque = std::get_if<OpaqueAttributes>(&instruction.attributes);
    const std::string_view base = opaque != nullptr && instruction.opcode == Opcode::kOther
                                      ? std::string_view(opaque->name)
                                      : OpcodeName(instruction.opcode);
    instruction.name = names.Take(SanitizedName(base));
  }
}

void NameAll(Module& module) {
  UniqueNames names;
  for (Computation& computation : module.computations) {
    computation.name = names.Take(SanitizedName(computation.name));
    NameInstructions(computation);
  }
}

}  // namespace

Value ComputationBuilder::Append(Instruction instruction) {
  if (!module_->status_.ok()) return {};
  Computation& computation = module_->module_.computations[index_];
  auto results = CheckedResults(module_->module_, computation, instruction);
  absl::Status status = results.status();
  if (status.ok() && instruction.opcode == Opcode::kParameter) {
    status = RecordParameter(computation, instruction);
  }
  if (instruction.op_name.empty()) instruction.op_name = module_->op_names_[index_];
  instruction.part = module_->parts_[index_];
  if (!status.ok()) {
    const std::string place = instruction.op_name.empty() ? "" : ", " + instruction.op_name;
    module_->Fail(WithContext(status, "in '" + computation.name + "'" + place));
    return {};
  }
  instruction.results = *std::move(results);
  computation.instructions.push_back(std::move(instruction));
  return {computation.num_instructions() - 1, 0};
}

Value ComputationBuilder::Parameter(const Shape& shape, std::string_view name) {
  const auto number = static_cast<int64_t>(computation().parameters.size());
  Instruction instruction =
      MakeInstruction(Opcode::kParameter, {}, ParameterAttributes{number}, {shape});
  instruction.name = std::string(name);
  instruction.op_name = std::string(name);
  return Append(std::move(instruction));
}

Value ComputationBuilder::Constant(Literal literal) {
  return Append(
      MakeInstruction(Opcode::kConstant, {}, ConstantAttributes{.literal = std::move(literal)}));
}

Value ComputationBuilder::Scalar(ElementType type, double value) {
  return Constant(ScalarLiteral(type, value));
}

Value ComputationBuilder::FullLike(Value like, double value) {
  if (!module_->status_.ok()) return {};
  const Shape target = shape(like);
  const Value scalar = Scalar(target.type, value);
  return target.rank() == 0 ? scalar : Broadcast(scalar, target.dims, {});
}

Value ComputationBuilder::Iota(const Shape& shape, int64_t dimension) {
  return Append(MakeInstruction(Opcode::kIota, {}, DimensionsAttributes{{dimension}}, {shape}));
}

Value ComputationBuilder::Unary(Opcode opcode, Value x) {
  return Append(MakeInstruction(opcode, {x}));
}

Value ComputationBuilder::Binary(Opcode opcode, Value x, Value y) {
  return Append(MakeInstruction(opcode, {x, y}));
}

Value ComputationBuilder::Compare(CompareAttributes::Direction direction, Value x, Value y) {
  return Append(MakeInstruction(Opcode::kCompare, {x, y}, CompareAttributes{direction}));
}

Value ComputationBuilder::Select(Value predicate, Value on_true, Value on_false) {
  return Append(MakeInstruction(Opcode::kSelect, {predicate, on_true, on_false}));
}

Value ComputationBuilder::Clamp(Value low, Value x, Value high) {
  return Append(MakeInstruction(Opcode::kClamp, {low, x, high}));
}

Value ComputationBuilder::Convert(Value x, ElementType type) {
  if (shape(x).type == type) return x;
  return Append(MakeInstruction(Opcode::kConvert, {x}, {}, {{type, shape(x).dims}}));
}

Value ComputationBuilder::BitcastConvert(Value x, ElementType type) {
  const std::vector<int64_t> dims = BitcastDims(shape(x), type).value_or(shape(x).dims);
  return Append(MakeInstruction(Opcode::kBitcastConvert, {x}, {}, {{type, dims}}));
}

Value ComputationBuilder::Broadcast(Value x, std::vector<int64_t> dims,
                                    std::vector<int64_t> broadcast_dimensions) {
  return Append(MakeInstruction(Opcode::kBroadcast, {x},
                                DimensionsAttributes{std::move(broadcast_dimensions)},
                                {{shape(x).type, std::move(dims)}}));
}

Value ComputationBuilder::Reshape(Value x, std::vector<int64_t> dims) {
  return Append(MakeInstruction(Opcode::kReshape, {x}, {}, {{shape(x).type, std::move(dims)}}));
}

Value ComputationBuilder::Transpose(Value x, std::vector<int64_t> permutation) {
  return Append(
      MakeInstruction(Opcode::kTranspose, {x}, DimensionsAttributes{std::move(permutation)}));
}

Value ComputationBuilder::Slice(Value x, SliceAttributes attributes) {
  return Append(MakeInstruction(Opcode::kSlice, {x}, std::move(attributes)));
}

Value ComputationBuilder::Concatenate(std::span<const Value> operands, int64_t dimension) {
  return Append(
      MakeInstruction(Opcode::kConcatenate, ToVector(operands), DimensionsAttributes{{dimension}}));
}

Value ComputationBuilder::Pad(Value x, Value padding, PadAttributes attributes) {
  return Append(MakeInstruction(Opcode::kPad, {x, padding}, std::move(attributes)));
}

// The dims that the operands give, with the type that the caller wants.
Value ComputationBuilder::AppendTyped(Instruction instruction, ElementType type) {
  if (!module_->status_.ok() || type == ElementType::kInvalid) {
    return Append(std::move(instruction));
  }
  auto inferred = CheckedResults(module_->module_, computation(), instruction);
  if (inferred.ok()) instruction.results = {{type, (*inferred)[0].dims}};
  return Append(std::move(instruction));
}

Value ComputationBuilder::Dot(Value x, Value y, DotAttributes attributes, ElementType type) {
  return AppendTyped(MakeInstruction(Opcode::kDot, {x, y}, std::move(attributes)), type);
}

Value ComputationBuilder::Convolution(Value input, Value kernel, ConvolutionAttributes attributes,
                                      ElementType type) {
  return AppendTyped(MakeInstruction(Opcode::kConvolution, {input, kernel}, std::move(attributes)),
                     type);
}

Value ComputationBuilder::ReduceWindow(Value x, Value init, std::vector<WindowDim> window,
                                       Opcode reducer) {
  if (!module_->status_.ok()) return {};
  Instruction reduce =
      MakeInstruction(Opcode::kReduceWindow, {x, init}, WindowAttributes{std::move(window)});
  reduce.called = {module_->ScalarReducer(reducer, shape(x).type)};
  return Append(std::move(reduce));
}

Value ComputationBuilder::SelectAndScatterAdd(Value x, Value source, Value init,
                                              std::vector<WindowDim> window,
                                              CompareAttributes::Direction select) {
  if (!module_->status_.ok()) return {};
  const ElementType type = shape(x).type;
  ComputationBuilder prefer = module_->AddComputation("select");
  const Value first = prefer.Parameter({type, {}}, "x");
  const Value second = prefer.Parameter({type, {}}, "y");
  prefer.SetResults({prefer.Compare(select, first, second)});
  Instruction scatter = MakeInstruction(Opcode::kSelectAndScatter, {x, source, init},
                                        WindowAttributes{std::move(window)});
  scatter.called = {module_->id(prefer), module_->ScalarReducer(Opcode::kAdd, type)};
  return Append(std::move(scatter));
}

Value ComputationBuilder::Reduce(Value x, Value init, std::vector<int64_t> dims, Opcode reducer) {
  if (!module_->status_.ok()) return {};
  Instruction reduce =
      MakeInstruction(Opcode::kReduce, {x, init}, DimensionsAttributes{std::move(dims)});
  reduce.called = {module_->ScalarReducer(reducer, shape(x).type)};
  return Append(std::move(reduce));
}

Value ComputationBuilder::Gather(Value x, Value indices, GatherAttributes attributes) {
  return Append(MakeInstruction(Opcode::kGather, {x, indices}, std::move(attributes)));
}

Value ComputationBuilder::Scatter(Value x, Value indices, Value updates,
                                  ScatterAttributes attributes, Opcode combiner) {
  if (!module_->status_.ok()) return {};
  Instruction scatter =
      MakeInstruction(Opcode::kScatter, {x, indices, updates}, std::move(attributes));
  scatter.called = {module_->ScalarReducer(combiner, shape(x).type)};
  return Append(std::move(scatter));
}

std::vector<Value> ComputationBuilder::OptBarrier(std::span<const Value> values) {
  return Results(Append(MakeInstruction(Opcode::kOptBarrier, ToVector(values))), values.size());
}

Value ComputationBuilder::DynamicSlice(Value x, std::span<const Value> starts,
                                       std::vector<int64_t> sizes) {
  std::vector<Value> operands = {x};
  operands.insert(operands.end(), starts.begin(), starts.end());
  return Append(MakeInstruction(Opcode::kDynamicSlice, std::move(operands),
                                DynamicSliceAttributes{std::move(sizes)}));
}

Value ComputationBuilder::DynamicUpdateSlice(Value x, Value update, std::span<const Value> starts) {
  std::vector<Value> operands = {x, update};
  operands.insert(operands.end(), starts.begin(), starts.end());
  return Append(MakeInstruction(Opcode::kDynamicUpdateSlice, std::move(operands)));
}

Value ComputationBuilder::ReplicaId() { return Append(MakeInstruction(Opcode::kReplicaId, {})); }

std::vector<Value> ComputationBuilder::AllReduce(std::span<const Value> values, Opcode reducer,
                                                 std::vector<std::vector<int64_t>> groups) {
  if (!module_->status_.ok() || values.empty()) return std::vector<Value>(values.size());
  Instruction all_reduce = MakeInstruction(Opcode::kAllReduce, ToVector(values),
                                           CollectiveAttributes{.groups = std::move(groups)});
  all_reduce.called = {module_->ScalarReducer(reducer, shape(values[0]).type)};
  return Results(Append(std::move(all_reduce)), values.size());
}

Value ComputationBuilder::AllGather(Value x, int64_t dimension,
                                    std::vector<std::vector<int64_t>> groups) {
  return Append(
      MakeInstruction(Opcode::kAllGather, {x},
                      CollectiveAttributes{.groups = std::move(groups), .dimension = dimension}));
}

Value ComputationBuilder::ReduceScatter(Value x, int64_t dimension, Opcode reducer,
                                        std::vector<std::vector<int64_t>> groups) {
  if (!module_->status_.ok()) return {};
  Instruction reduce_scatter =
      MakeInstruction(Opcode::kReduceScatter, {x},
                      CollectiveAttributes{.groups = std::move(groups), .dimension = dimension});
  reduce_scatter.called = {module_->ScalarReducer(reducer, shape(x).type)};
  return Append(std::move(reduce_scatter));
}

Value ComputationBuilder::AllToAll(Value x, int64_t dimension,
                                   std::vector<std::vector<int64_t>> groups) {
  return Append(
      MakeInstruction(Opcode::kAllToAll, {x},
                      CollectiveAttributes{.groups = std::move(groups), .dimension = dimension}));
}

void ComputationBuilder::SetOpName(std::string_view op_name) {
  module_->op_names_[index_] = std::string(op_name);
}

void ComputationBuilder::SetPart(StepPart part) { module_->parts_[index_] = part; }

void ComputationBuilder::SetResults(std::vector<Value> results) {
  Computation& computation = module_->module_.computations[index_];
  for (size_t i = 0; i < results.size(); ++i) {
    if (IsKnown(computation, results[i])) continue;
    module_->Fail(
        InvalidArgument("result {} of '{}' is no value of this computation", i, computation.name));
    return;
  }
  computation.results = std::move(results);
}

const Shape& ComputationBuilder::shape(Value value) const {
  static const Shape kUnknown;
  return IsKnown(computation(), value) ? computation().shape(value) : kUnknown;
}

const Computation& ComputationBuilder::computation() const {
  return module_->module_.computations[index_];
}

ModuleBuilder::ModuleBuilder(std::string_view name) {
  module_.name = std::string(name);
  module_.entry = 0;
  AddComputation("main");
}

ComputationBuilder ModuleBuilder::Entry() { return {this, module_.entry}; }

ComputationBuilder ModuleBuilder::AddComputation(std::string_view name) {
  module_.computations.push_back({.name = std::string(name)});
  op_names_.emplace_back();
  parts_.emplace_back();
  return {this, static_cast<int>(module_.computations.size()) - 1};
}

ComputationId ModuleBuilder::ScalarReducer(Opcode opcode, ElementType type) {
  const auto key = std::make_pair(opcode, type);
  if (const auto found = reducers_.find(key); found != reducers_.end()) return found->second;
  ComputationBuilder reducer =
      AddComputation(fmt::format("{}_{}", OpcodeName(opcode), TypeName(type)));
  const Value x = reducer.Parameter({type, {}}, "x");
  const Value y = reducer.Parameter({type, {}}, "y");
  reducer.SetResults({reducer.Binary(opcode, x, y)});
  reducers_[key] = id(reducer);
  return id(reducer);
}

namespace {

ComputationId ImportOnce(Module& target, const Module& source, ComputationId id,
                         std::map<ComputationId, ComputationId>& imported) {
  if (const auto found = imported.find(id); found != imported.end()) return found->second;
  Computation copy = source.computations[id];
  for (Instruction& instruction : copy.instructions) {
    for (ComputationId& called : instruction.called) {
      called = ImportOnce(target, source, called, imported);
    }
  }
  target.computations.push_back(std::move(copy));
  const auto new_id = static_cast<ComputationId>(target.computations.size()) - 1;
  imported[id] = new_id;
  return new_id;
}

}  // namespace

ComputationId ModuleBuilder::Import(const Module& source, ComputationId computation) {
  MINKA_CHECK(0 <= computation && computation < static_cast<int>(source.computations.size()));
  std::map<ComputationId, ComputationId> imported;
  const ComputationId id = ImportOnce(module_, source, computation, imported);
  op_names_.resize(module_.computations.size());
  parts_.resize(module_.computations.size());
  return id;
}

ComputationId ModuleBuilder::id(const ComputationBuilder& builder) const { return builder.index_; }

void ModuleBuilder::AddAlias(Alias alias) { module_.aliases.push_back(alias); }

void ModuleBuilder::SetFrontendAttribute(std::string_view key, std::string_view value) {
  module_.frontend_attributes[std::string(key)] = std::string(value);
}

void ModuleBuilder::Fail(absl::Status status) {
  if (status_.ok()) status_ = std::move(status);
}

absl::StatusOr<Module> ModuleBuilder::Finish() && {
  RETURN_IF_ERROR(status_);
  ASSIGN_OR_RETURN(const std::vector<ComputationId> order, CalleesFirst(module_));
  Module module = KeepComputations(std::move(module_), order);
  NameAll(module);
  RETURN_IF_ERROR(Verify(module));
  return module;
}

}  // namespace minka
