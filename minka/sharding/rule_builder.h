// Internal to sharding/: writes a rule, and the families of rules that RuleFor() chooses from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "minka/ir/module.h"
#include "minka/sharding/op_rule.h"

namespace minka {

// Starts with every dimension whole, no factor and no linear group.
class RuleBuilder {
 public:
  RuleBuilder(const Computation& computation, const Instruction& instruction);

  int AddFactor(FactorKind kind, int64_t size, std::string name,
                LocalForm local_form = LocalForm::kPlain);
  int AddParallel(int64_t size, std::string name, LocalForm local_form = LocalForm::kPlain) {
    return AddFactor(FactorKind::kParallel, size, std::move(name), local_form);
  }
  // A parallel factor named "dim <result_dim>" that the result dimension maps to.
  int AddResultDim(int result_dim, LocalForm local_form = LocalForm::kPlain);
  void MapOperand(int operand, int64_t dim, int factor) {
    rule_.operand_dims[operand][dim] = factor;
  }
  void MapResult(int result, int64_t dim, int factor) { rule_.result_dims[result][dim] = factor; }
  Factor& factor(int index) { return rule_.factors[index]; }
  void AddLinearGroup(std::vector<int> operands);

  const Shape& operand(int index) const { return computation_.shape(instruction_.operands[index]); }
  const Shape& result() const { return instruction_.shape(); }
  int num_operands() const { return static_cast<int>(instruction_.operands.size()); }
  bool IsZeroOperand(int index) const { return IsZero(computation_, instruction_.operands[index]); }
  const Instruction& instruction() const { return instruction_; }
  OpRule Build() { return std::move(rule_); }

 private:
  const Computation& computation_;
  const Instruction& instruction_;
  OpRule rule_;
};

// Can a value of the type be a sum of what devices hold? Predicates and tokens cannot.
bool IsSummable(ElementType type);

// What splitting a reduced dimension means; nullopt: it must be whole.
std::optional<Factor> ReducedDim(Opcode reducer, ElementType type);
// The linear groups of a product: operand 0, or operand 1.
void AddFactorGroups(RuleBuilder& rule);

OpRule ElementwiseRule(RuleBuilder rule);  // also map
OpRule BarrierRule(RuleBuilder rule);
OpRule DotRule(RuleBuilder rule);
OpRule ReduceRule(RuleBuilder rule, const Module& module);
OpRule DataMovementRule(RuleBuilder rule);  // what creates or moves data without looking at it
OpRule GatherRule(RuleBuilder rule);
OpRule ScatterRule(RuleBuilder rule, const Module& module);
OpRule ConvolutionRule(RuleBuilder rule);
OpRule ReduceWindowRule(RuleBuilder rule, const Module& module);
OpRule SelectAndScatterRule(RuleBuilder rule, const Module& module);
OpRule BatchNormRule(RuleBuilder rule);
OpRule DynamicSliceRule(RuleBuilder rule);
OpRule DynamicUpdateSliceRule(RuleBuilder rule);
OpRule WhileRule(RuleBuilder rule, const Module& module);
OpRule ConditionalRule(RuleBuilder rule, const Module& module);
OpRule SortRule(RuleBuilder rule);  // also topk

// Of operations that have no opcode here, is it one of those that do the same to each matrix, or
// each array, of a batch? cholesky, triangular-solve and fft; and the custom calls that XLA writes
// out by itself on every platform: Qr (a -> reflectors and their factors),
// ProductOfElementaryHouseholderReflectors (those -> q), Eigh (a -> vectors, values).
bool IsBatched(const Instruction& instruction);
OpRule BatchedRule(RuleBuilder rule);

// The opcode of a computation (x, y) -> opcode(x, y) on scalars; nullopt for anything else.
std::optional<Opcode> BinaryReducer(const Module& module, ComputationId id);

}  // namespace minka
