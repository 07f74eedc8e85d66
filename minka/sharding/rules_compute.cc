// Rules of elementwise operations, barriers, dot and reduce.
#include <algorithm>
#include <optional>
#include <utility>

#include "fmt/format.h"
#include "minka/sharding/rule_builder.h"

namespace minka {
namespace {

// Every value of `from` is one of `to`, so that converting a sum or its terms is the same.
bool IsWidening(ElementType from, ElementType to) {
  if (!IsFloat(from) || !IsFloat(to)) return false;
  return from == to || ElementBytes(to) > ElementBytes(from);
}

void AddSelectGroups(RuleBuilder& rule) {
  const bool zero_on_true = rule.IsZeroOperand(1);
  const bool zero_on_false = rule.IsZeroOperand(2);
  if (zero_on_false) rule.AddLinearGroup({1});
  if (zero_on_true) rule.AddLinearGroup({2});
  if (!zero_on_true && !zero_on_false) rule.AddLinearGroup({1, 2});
}

void AddElementwiseGroups(RuleBuilder& rule) {
  switch (rule.instruction().opcode) {
    case Opcode::kAdd:
    case Opcode::kSubtract:
    case Opcode::kComplex:
      rule.AddLinearGroup({0, 1});
      return;
    case Opcode::kSelect:
      AddSelectGroups(rule);
      return;
    case Opcode::kMultiply:
      rule.AddLinearGroup({0});
      rule.AddLinearGroup({1});
      return;
    case Opcode::kDivide:
      if (!IsInteger(rule.result().type)) rule.AddLinearGroup({0});
      return;
    case Opcode::kNegate:
    case Opcode::kCopy:
    case Opcode::kReal:
    case Opcode::kImag:
      rule.AddLinearGroup({0});
      return;
    case Opcode::kConvert:
      if (IsWidening(rule.operand(0).type, rule.result().type)) rule.AddLinearGroup({0});
      return;
    default:
      return;
  }
}

// "row", or "row 0", "row 1" where there are several.
std::string Numbered(std::string_view name, size_t index, size_t count) {
  return count == 1 ? std::string(name) : fmt::format("{} {}", name, index);
}

// The dimensions of a shape that are in neither list.
std::vector<int64_t> FreeDims(const Shape& shape, const std::vector<int64_t>& contracting,
                              const std::vector<int64_t>& batch) {
  std::vector<bool> used(shape.rank(), false);
  for (const int64_t dim : contracting) used[dim] = true;
  for (const int64_t dim : batch) used[dim] = true;
  std::vector<int64_t> free;
  for (int dim = 0; dim < shape.rank(); ++dim) {
    if (!used[dim]) free.push_back(dim);
  }
  return free;
}

// What a variadic reducer such as argmax's picks from the parts' results is what it picks from all.
Factor PickedDim() {
  return {.kind = FactorKind::kCombine, .local_form = LocalForm::kGatherAndReduce};
}

// Does the reducer (x0, x1, .., y0, y1, ..) -> (z0, z1, ..) give zi = xi or yi for every i? Then
// more runs of it, with the initial values again, change nothing.
bool PicksAnOperand(const Module& module, ComputationId id) {
  const Computation& reducer = module.computations[id];
  const size_t num_values = reducer.results.size();
  if (reducer.parameters.size() != 2 * num_values) return false;
  for (size_t i = 0; i < num_values; ++i) {
    const Instruction& root = reducer.instruction(reducer.results[i]);
    const Value x{reducer.parameters[i], 0};
    const Value y{reducer.parameters[num_values + i], 0};
    std::vector<Value> picked = root.operands;
    if (root.opcode == Opcode::kSelect) {
      picked.erase(picked.begin());
    } else if (root.opcode != Opcode::kMaximum && root.opcode != Opcode::kMinimum) {
      return false;
    }
    if (picked != std::vector<Value>{x, y} && picked != std::vector<Value>{y, x}) return false;
  }
  return true;
}

}  // namespace

std::optional<Factor> ReducedDim(Opcode reducer, ElementType type) {
  Factor factor;
  factor.kind = FactorKind::kCombine;
  factor.combiner = reducer;
  switch (reducer) {
    case Opcode::kAdd:
      if (!IsSummable(type)) return std::nullopt;
      factor.kind = FactorKind::kSum;
      factor.local_form = LocalForm::kInitOnFirst;
      return factor;
    case Opcode::kMultiply:
      if (!IsSummable(type)) return std::nullopt;
      factor.local_form = LocalForm::kInitOnFirst;
      return factor;
    case Opcode::kMaximum:
    case Opcode::kMinimum:
      return IsComplex(type) ? std::nullopt : std::optional(factor);
    case Opcode::kAnd:
    case Opcode::kOr:
      // XLA has no bitwise all-reduce of integers.
      return type == ElementType::kPred ? std::optional(factor) : std::nullopt;
    default:
      return std::nullopt;
  }
}

void AddFactorGroups(RuleBuilder& rule) {
  for (const int index : {0, 1}) {
    // A partial sum of a narrow integer wraps where its products in the wider result do not.
    const ElementType type = rule.operand(index).type;
    if (IsFloat(type) || IsComplex(type) ||
        ElementBytes(type) >= ElementBytes(rule.result().type)) {
      rule.AddLinearGroup({index});
    }
  }
}

OpRule ElementwiseRule(RuleBuilder rule) {
  for (int dim = 0; dim < rule.result().rank(); ++dim) {
    const int factor = rule.AddResultDim(dim);
    for (int i = 0; i < rule.num_operands(); ++i) {
      // Predicates of select and bounds of clamp may be scalars.
      if (rule.operand(i).rank() == rule.result().rank()) rule.MapOperand(i, dim, factor);
    }
  }
  AddElementwiseGroups(rule);
  return rule.Build();
}

OpRule BarrierRule(RuleBuilder rule) {
  for (int i = 0; i < rule.num_operands(); ++i) {
    const Shape& shape = rule.operand(i);
    for (int dim = 0; dim < shape.rank(); ++dim) {
      const int factor = rule.AddParallel(shape.dims[dim], fmt::format("dim {}", dim));
      rule.MapOperand(i, dim, factor);
      rule.MapResult(i, dim, factor);
    }
  }
  OpRule result = rule.Build();
  result.num_lanes = std::max(1, rule.num_operands());
  for (int i = 0; i < rule.num_operands(); ++i) {
    if (IsSummable(rule.operand(i).type)) result.linear_groups.push_back({i});
  }
  return result;
}

OpRule DotRule(RuleBuilder rule) {
  const auto& dot = rule.instruction().As<DotAttributes>();
  int64_t result_dim = 0;
  for (size_t i = 0; i < dot.lhs_batch.size(); ++i) {
    const int factor = rule.AddParallel(rule.operand(0).dims[dot.lhs_batch[i]],
                                        Numbered("batch", i, dot.lhs_batch.size()));
    rule.MapOperand(0, dot.lhs_batch[i], factor);
    rule.MapOperand(1, dot.rhs_batch[i], factor);
    rule.MapResult(0, result_dim++, factor);
  }
  const std::vector<int64_t> rows = FreeDims(rule.operand(0), dot.lhs_contracting, dot.lhs_batch);
  for (size_t i = 0; i < rows.size(); ++i) {
    const int factor =
        rule.AddParallel(rule.operand(0).dims[rows[i]], Numbered("row", i, rows.size()));
    rule.MapOperand(0, rows[i], factor);
    rule.MapResult(0, result_dim++, factor);
  }
  const std::vector<int64_t> columns =
      FreeDims(rule.operand(1), dot.rhs_contracting, dot.rhs_batch);
  for (size_t i = 0; i < columns.size(); ++i) {
    const int factor =
        rule.AddParallel(rule.operand(1).dims[columns[i]], Numbered("column", i, columns.size()));
    rule.MapOperand(1, columns[i], factor);
    rule.MapResult(0, result_dim++, factor);
  }
  if (!IsSummable(rule.result().type)) return rule.Build();
  for (size_t i = 0; i < dot.lhs_contracting.size(); ++i) {
    const int factor =
        rule.AddFactor(FactorKind::kSum, rule.operand(0).dims[dot.lhs_contracting[i]],
                       Numbered("contraction", i, dot.lhs_contracting.size()));
    rule.MapOperand(0, dot.lhs_contracting[i], factor);
    rule.MapOperand(1, dot.rhs_contracting[i], factor);
  }
  AddFactorGroups(rule);
  return rule.Build();
}

OpRule SortRule(RuleBuilder rule) {
  const bool is_sort = rule.instruction().opcode == Opcode::kSort;
  const int sorted = is_sort
                         ? static_cast<int>(rule.instruction().As<DimensionsAttributes>().dims[0])
                         : rule.result().rank() - 1;
  for (int dim = 0; dim < rule.result().rank(); ++dim) {
    if (dim == sorted) continue;
    const int factor = rule.AddResultDim(dim);
    for (int i = 0; i < rule.num_operands(); ++i) rule.MapOperand(i, dim, factor);
    for (int i = 0; i < static_cast<int>(rule.instruction().results.size()); ++i) {
      rule.MapResult(i, dim, factor);
    }
  }
  return rule.Build();
}

OpRule ReduceRule(RuleBuilder rule, const Module& module) {
  const int num_inputs = rule.num_operands() / 2;
  const Shape& input = rule.operand(0);
  // kOther: reduced dimensions must be whole.
  const Opcode reducer =
      num_inputs == 1 ? BinaryReducer(module, rule.instruction().called[0]).value_or(Opcode::kOther)
                      : Opcode::kOther;
  const bool picks = num_inputs > 1 && PicksAnOperand(module, rule.instruction().called[0]);
  std::vector<bool> reduced(input.rank(), false);
  for (const int64_t dim : rule.instruction().As<DimensionsAttributes>().dims) reduced[dim] = true;
  int result_dim = 0;
  for (int dim = 0; dim < input.rank(); ++dim) {
    std::optional<Factor> factor = Factor{};
    if (reduced[dim]) factor = picks ? PickedDim() : ReducedDim(reducer, input.type);
    if (factor) {
      const int index = rule.AddFactor(factor->kind, input.dims[dim], fmt::format("dim {}", dim));
      rule.factor(index).combiner = factor->combiner;
      rule.factor(index).local_form = factor->local_form;
      for (int i = 0; i < num_inputs; ++i) {
        rule.MapOperand(i, dim, index);
        if (!reduced[dim]) rule.MapResult(i, result_dim, index);
      }
    }
    if (!reduced[dim]) ++result_dim;
  }
  if (reducer == Opcode::kAdd) rule.AddLinearGroup({0});
  return rule.Build();
}

}  // namespace minka
