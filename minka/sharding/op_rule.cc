#include "minka/sharding/op_rule.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "fmt/format.h"
#include "minka/base/check.h"
#include "minka/sharding/rule_builder.h"

namespace minka {
namespace {

OpRule Unsupported(RuleBuilder builder) {
  OpRule rule = builder.Build();
  rule.supported = false;
  return rule;
}

OpRule ParameterRule(RuleBuilder rule) {
  for (int dim = 0; dim < rule.result().rank(); ++dim) rule.AddResultDim(dim);
  return rule.Build();
}

bool IsUnconstrained(Opcode opcode) {
  switch (opcode) {
    case Opcode::kConstant:
    case Opcode::kIota:
    case Opcode::kBroadcast:
    case Opcode::kReshape:
    case Opcode::kTranspose:
    case Opcode::kSlice:
    case Opcode::kPad:
    case Opcode::kConcatenate:
    case Opcode::kReverse:
    case Opcode::kDynamicSlice:
    case Opcode::kBitcastConvert:
    case Opcode::kRngBitGenerator:
    case Opcode::kWhile:
      return true;
    default:
      return IsElementwise(opcode);
  }
}

bool NeedsNoCollective(const OpRule& rule) {
  return std::all_of(rule.factors.begin(), rule.factors.end(), [](const Factor& factor) {
    return factor.local_form == LocalForm::kPlain && factor.partial_results.empty();
  });
}

}  // namespace

RuleBuilder::RuleBuilder(const Computation& computation, const Instruction& instruction)
    : computation_(computation), instruction_(instruction) {
  for (const Value operand : instruction.operands) {
    rule_.operand_dims.emplace_back(computation.shape(operand).rank(), kWholeDim);
  }
  for (const Shape& result : instruction.results) {
    rule_.result_dims.emplace_back(result.rank(), kWholeDim);
  }
}

int RuleBuilder::AddFactor(FactorKind kind, int64_t size, std::string name, LocalForm local_form) {
  rule_.factors.push_back(
      {.kind = kind, .size = size, .local_form = local_form, .name = std::move(name)});
  return static_cast<int>(rule_.factors.size()) - 1;
}

int RuleBuilder::AddResultDim(int result_dim, LocalForm local_form) {
  const int factor =
      AddParallel(result().dims[result_dim], fmt::format("dim {}", result_dim), local_form);
  MapResult(0, result_dim, factor);
  return factor;
}

void RuleBuilder::AddLinearGroup(std::vector<int> operands) {
  for (const Shape& result : instruction_.results) {
    if (!IsSummable(result.type)) return;
  }
  for (const int index : operands) {
    if (!IsSummable(operand(index).type)) return;
  }
  rule_.linear_groups.push_back(std::move(operands));
}

bool IsSummable(ElementType type) { return IsFloat(type) || IsInteger(type) || IsComplex(type); }

std::optional<Opcode> BinaryReducer(const Module& module, ComputationId id) {
  const Computation& reducer = module.computations[id];
  if (reducer.parameters.size() != 2 || reducer.results.size() != 1) return std::nullopt;
  const Instruction& root = reducer.instruction(reducer.results[0]);
  if (Family(root.opcode) != OpFamily::kBinary) return std::nullopt;
  const Value x{reducer.parameters[0], 0};
  const Value y{reducer.parameters[1], 0};
  const std::vector<Value> in_order = {x, y};
  const std::vector<Value> swapped = {y, x};
  if (root.operands != in_order && root.operands != swapped) return std::nullopt;
  return root.opcode;
}

OpRule RuleFor(const Module& module, const Computation& computation, InstructionId id) {
  const Instruction& instruction = computation.instructions[id];
  RuleBuilder rule(computation, instruction);
  switch (instruction.opcode) {
    case Opcode::kParameter:
      return ParameterRule(std::move(rule));
    case Opcode::kConstant:
    case Opcode::kIota:
    case Opcode::kBroadcast:
    case Opcode::kReshape:
    case Opcode::kTranspose:
    case Opcode::kSlice:
    case Opcode::kPad:
    case Opcode::kConcatenate:
    case Opcode::kReverse:
    case Opcode::kBitcastConvert:
      return DataMovementRule(std::move(rule));
    case Opcode::kDynamicSlice:
      return DynamicSliceRule(std::move(rule));
    case Opcode::kDynamicUpdateSlice:
      return DynamicUpdateSliceRule(std::move(rule));
    case Opcode::kGather:
      return GatherRule(std::move(rule));
    case Opcode::kScatter:
      return ScatterRule(std::move(rule), module);
    case Opcode::kDot:
      return DotRule(std::move(rule));
    case Opcode::kReduce:
      return ReduceRule(std::move(rule), module);
    case Opcode::kConvolution:
      return ConvolutionRule(std::move(rule));
    case Opcode::kReduceWindow:
      return ReduceWindowRule(std::move(rule), module);
    case Opcode::kSelectAndScatter:
      return SelectAndScatterRule(std::move(rule), module);
    case Opcode::kBatchNormGrad:
    case Opcode::kBatchNormInference:
    case Opcode::kBatchNormTraining:
      return BatchNormRule(std::move(rule));
    case Opcode::kMap:
      return ElementwiseRule(std::move(rule));
    case Opcode::kOptBarrier:
      return BarrierRule(std::move(rule));
    case Opcode::kWhile:
      return WhileRule(std::move(rule), module);
    case Opcode::kConditional:
      return ConditionalRule(std::move(rule), module);
    case Opcode::kSort:
    case Opcode::kTopK:
      return SortRule(std::move(rule));
    case Opcode::kCustomCall:
    case Opcode::kOther:
      return IsBatched(instruction) ? BatchedRule(std::move(rule)) : Unsupported(std::move(rule));
    case Opcode::kRngBitGenerator:
      return rule.Build();
    default:
      return IsElementwise(instruction.opcode) ? ElementwiseRule(std::move(rule))
                                               : Unsupported(std::move(rule));
  }
}

OpRule LaneRule(const OpRule& rule, int lane) {
  MINKA_CHECK(lane < rule.num_lanes, "lane {} of {}", lane, rule.num_lanes);
  if (rule.num_lanes == 1) return rule;
  OpRule result;
  const std::vector<int>& dims = rule.operand_dims[lane];
  for (const int factor : dims) result.factors.push_back(rule.factors[factor]);
  std::vector<int> own(dims.size());
  for (size_t dim = 0; dim < dims.size(); ++dim) own[dim] = static_cast<int>(dim);
  result.operand_dims = {own};
  result.result_dims = {own};
  for (const std::vector<int>& group : rule.linear_groups) {
    if (group[0] == lane) result.linear_groups = {{0}};
  }
  return result;
}

bool IsZero(const Computation& computation, Value value) {
  const Instruction& instruction = computation.instruction(value);
  switch (instruction.opcode) {
    case Opcode::kConstant: {
      // Minus zero does not count: minus zero plus zero is not what was there.
      const std::string& bytes = *instruction.As<ConstantAttributes>().literal.bytes;
      return std::all_of(bytes.begin(), bytes.end(), [](char byte) { return byte == 0; });
    }
    case Opcode::kBroadcast:
    case Opcode::kReshape:
    case Opcode::kConvert:
    case Opcode::kCopy:
    case Opcode::kTranspose:
      return IsZero(computation, instruction.operands[0]);
    default:
      return false;
  }
}

std::vector<bool> FreeToProduce(const Module& module, const Computation& computation,
                                std::span<const int> key_parameters) {
  std::vector<bool> is_free(computation.instructions.size(), false);
  for (const int parameter : key_parameters) is_free[computation.parameters[parameter]] = true;
  for (InstructionId id = 0; id < computation.num_instructions(); ++id) {
    const Instruction& instruction = computation.instructions[id];
    if (!IsUnconstrained(instruction.opcode)) continue;
    bool all_free = true;
    for (const Value operand : instruction.operands) all_free &= is_free[operand.instruction];
    is_free[id] = all_free && (instruction.opcode != Opcode::kWhile ||
                               NeedsNoCollective(RuleFor(module, computation, id)));
  }
  return is_free;
}

}  // namespace minka
