#include "minka/frontend/gradient.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/frontend/gradient_rules.h"

namespace minka {
namespace {

bool IsDifferentiable(const Shape& shape) { return IsFloat(shape.type) || IsComplex(shape.type); }

// The backward pass over the instructions that the graph had when it began.
class Differentiator {
 public:
  Differentiator(Graph& graph, std::span<const Tensor> inputs)
      : graph_(graph), num_forward_(graph.computation().num_instructions()) {
    FindActive(inputs);
  }

  absl::Status Run(Tensor loss) {
    gradients_[loss.value()] = graph_.Full(loss.shape(), 1);
    for (InstructionId id = num_forward_ - 1; id >= 0; --id) {
      if (!HasGradient(id)) continue;
      RETURN_IF_ERROR(ApplyRule(id));
      RETURN_IF_ERROR(graph_.status());
    }
    return absl::OkStatus();
  }

  Tensor GradientOf(Tensor input) const {
    const auto found = gradients_.find(input.value());
    return found == gradients_.end() ? graph_.Full(input.shape(), 0) : found->second;
  }

 private:
  const Instruction& instruction(InstructionId id) const {
    return graph_.computation().instructions[id];
  }
  int num_results(InstructionId id) const {
    return static_cast<int>(instruction(id).results.size());
  }

  bool PassesGradient(InstructionId id, int operand) const {
    return active_.contains(instruction(id).operands[operand]) &&
           !graph_.stopped_uses().contains({id, operand});
  }

  // Values through which the loss depends smoothly on an input.
  void FindActive(std::span<const Tensor> inputs) {
    for (const Tensor& input : inputs) active_.insert(input.value());
    for (InstructionId id = 0; id < num_forward_; ++id) {
      const Instruction& current = instruction(id);
      if (GradientRuleFor(current.opcode).kind == GradientKind::kZero) continue;
      bool any = false;
      for (int i = 0; i < static_cast<int>(current.operands.size()); ++i) {
        if (!PassesGradient(id, i)) continue;
        any = true;
        if (current.opcode == Opcode::kOptBarrier) active_.insert({id, i});
      }
      if (!any || current.opcode == Opcode::kOptBarrier) continue;
      for (int result = 0; result < num_results(id); ++result) {
        if (IsDifferentiable(current.results[result])) active_.insert({id, result});
      }
    }
  }

  bool HasGradient(InstructionId id) const {
    const auto first = gradients_.lower_bound({id, 0});
    return first != gradients_.end() && first->first.instruction == id;
  }

  Adjoint MakeAdjoint(InstructionId id) {
    Adjoint adjoint{.graph = &graph_, .instruction = instruction(id), .result = {id, 0}};
    const size_t num_operands = adjoint.instruction.operands.size();
    for (size_t i = 0; i < num_operands; ++i) {
      adjoint.operand_shapes.push_back(graph_.computation().shape(adjoint.instruction.operands[i]));
      adjoint.wanted.push_back(PassesGradient(id, static_cast<int>(i)));
    }
    for (int i = 0; i < num_results(id); ++i) {
      const auto found = gradients_.find({id, i});
      adjoint.result_gradients.push_back(found == gradients_.end() ? Tensor() : found->second);
    }
    adjoint.gradients.resize(num_operands);
    adjoint.primal = [this](Value value) { return Tensor(&graph_, value); };
    return adjoint;
  }

  absl::Status ApplyRule(InstructionId id) {
    Adjoint adjoint = MakeAdjoint(id);
    if (std::ranges::find(adjoint.wanted, true) == adjoint.wanted.end()) return absl::OkStatus();
    const Instruction& current = adjoint.instruction;
    const GradientRule rule = GradientRuleFor(current.opcode);
    if (rule.kind == GradientKind::kZero) return absl::OkStatus();
    const std::string place = current.op_name.empty() ? "" : current.op_name + ": ";
    if (rule.kind == GradientKind::kRefused) {
      return Unimplemented("{}no gradient of \"{}\": {}", place, OpcodeName(current.opcode),
                           rule.reason);
    }
    const ScopeName name(graph_, "gradient/" + current.op_name);
    RETURN_IF_ERROR(WithContext(rule.apply(adjoint), place + "gradient"));
    for (size_t i = 0; i < adjoint.gradients.size(); ++i) {
      if (adjoint.wanted[i] && adjoint.gradients[i].valid()) {
        Accumulate(current.operands[i], adjoint.gradients[i]);
      }
    }
    return absl::OkStatus();
  }

  void Accumulate(Value value, Tensor gradient) {
    auto [it, is_new] = gradients_.try_emplace(value, gradient);
    if (!is_new) it->second = it->second + gradient;
  }

  Graph& graph_;
  const InstructionId num_forward_;
  std::set<Value> active_;
  std::map<Value, Tensor> gradients_;
};

}  // namespace

absl::StatusOr<std::vector<Tensor>> Gradients(Graph& graph, Tensor loss,
                                              std::span<const Tensor> inputs) {
  RETURN_IF_ERROR(graph.status());
  MINKA_CHECK(loss.valid());
  if (loss.rank() != 0 || !IsFloat(loss.type())) {
    return InvalidArgument("the loss must be a floating-point scalar, not {}; reduce it first",
                           ToString(loss.shape()));
  }
  Differentiator differentiator(graph, inputs);
  RETURN_IF_ERROR(differentiator.Run(loss));
  std::vector<Tensor> gradients;
  for (const Tensor& input : inputs) gradients.push_back(differentiator.GradientOf(input));
  RETURN_IF_ERROR(graph.status());
  return gradients;
}

}  // namespace minka
