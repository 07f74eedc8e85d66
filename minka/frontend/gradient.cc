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
  Differentiator(Graph& graph, std::span<const Tensor> inputs, const GradientOptions& options)
      : graph_(graph),
        options_(options),
        num_forward_(graph.computation().num_instructions()),
        recomputations_(options.remat_regions.size()) {
    FindActive(inputs);
    FindVarying(inputs);
  }

  absl::Status Run(Tensor loss) {
    gradients_[loss.value()] = graph_.Full(loss.shape(), 1);
    for (InstructionId id = num_forward_ - 1; id >= 0; --id) {
      if (!HasGradient(id)) continue;
      EnterRegionOf(id);
      RETURN_IF_ERROR(ApplyRule(id));
      RETURN_IF_ERROR(graph_.status());
    }
    return absl::OkStatus();
  }

  Tensor GradientOf(Tensor input) const {
    const auto found = gradients_.find(input.value());
    return found == gradients_.end() ? graph_.Full(input.shape(), 0) : found->second;
  }

  std::vector<Value> recomputations() const { return recomputations_; }

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

  // Instructions that depend on more than inputs and constants.
  void FindVarying(std::span<const Tensor> inputs) {
    varying_.assign(num_forward_, false);
    std::set<InstructionId> fixed;
    for (const Tensor& input : inputs) fixed.insert(input.value().instruction);
    for (InstructionId id = 0; id < num_forward_; ++id) {
      if (fixed.contains(id)) continue;
      varying_[id] = instruction(id).opcode == Opcode::kParameter;
      for (const Value operand : instruction(id).operands) {
        if (varying_[operand.instruction]) varying_[id] = true;
      }
    }
  }

  bool HasGradient(InstructionId id) const {
    const auto first = gradients_.lower_bound({id, 0});
    return first != gradients_.end() && first->first.instruction == id;
  }

  // Keeps up with the instruction at hand; a region's barrier is made when its first gradient
  // arrives.
  void EnterRegionOf(InstructionId id) {
    if (region_ >= 0 && id >= options_.remat_regions[region_].begin) return;
    region_ = -1;
    recomputed_.clear();
    for (size_t i = 0; i < options_.remat_regions.size(); ++i) {
      const RematRegion& region = options_.remat_regions[i];
      if (id >= region.begin && id < region.end) BeginRecomputation(static_cast<int>(i));
    }
  }

  void BeginRecomputation(int number) {
    region_ = number;
    const RematRegion& region = options_.remat_regions[number];
    std::set<Value> entering;
    for (InstructionId id = region.begin; id < region.end; ++id) {
      if (!varying_[id]) continue;
      for (const Value operand : instruction(id).operands) {
        if (operand.instruction < region.begin && varying_[operand.instruction]) {
          entering.insert(operand);
        }
      }
    }
    std::vector<Tensor> kept;
    kept.reserve(entering.size());
    for (const Value value : entering) kept.emplace_back(&graph_, value);
    std::vector<Value> arriving;
    const auto last = gradients_.lower_bound({region.end, 0});
    for (auto it = gradients_.lower_bound({region.begin, 0}); it != last; ++it) {
      arriving.push_back(it->first);
      kept.push_back(it->second);
    }
    const ScopeName name(graph_, "recompute/" + instruction(region.end - 1).op_name);
    const std::vector<Tensor> behind = OptBarrier(kept);
    size_t next = 0;
    for (const Value value : entering) recomputed_[value] = behind[next++].value();
    for (const Value value : arriving) gradients_[value] = behind[next++];
    recomputations_[number] = behind.front().value();
  }

  // The forward value as the backward pass may use it.
  Value Primal(Value value) {
    if (region_ < 0) return value;
    if (const auto found = recomputed_.find(value); found != recomputed_.end()) {
      return found->second;
    }
    const RematRegion& region = options_.remat_regions[region_];
    if (value.instruction < region.begin || value.instruction >= region.end ||
        !varying_[value.instruction]) {
      return value;
    }
    Instruction copy = instruction(value.instruction);
    for (Value& operand : copy.operands) operand = Primal(operand);
    copy.name.clear();
    copy.op_name = "recompute/" + copy.op_name;
    const auto count = static_cast<int32_t>(copy.results.size());
    const Value first = graph_.builder().Append(std::move(copy));
    for (int32_t i = 0; i < count; ++i) {
      recomputed_[{value.instruction, i}] = {first.instruction, i};
    }
    return recomputed_[value];
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
    adjoint.primal = [this](Value value) { return Tensor(&graph_, Primal(value)); };
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
  const GradientOptions& options_;
  const InstructionId num_forward_;
  std::set<Value> active_;
  std::vector<bool> varying_;
  std::map<Value, Tensor> gradients_;
  int region_ = -1;                    // of the instruction at hand
  std::map<Value, Value> recomputed_;  // inside that region
  std::vector<Value> recomputations_;
};

}  // namespace

absl::StatusOr<GradientResult> Gradients(Graph& graph, Tensor loss, std::span<const Tensor> inputs,
                                         const GradientOptions& options) {
  RETURN_IF_ERROR(graph.status());
  MINKA_CHECK(loss.valid());
  if (loss.rank() != 0 || !IsFloat(loss.type())) {
    return InvalidArgument("the loss must be a floating-point scalar, not {}; reduce it first",
                           ToString(loss.shape()));
  }
  Differentiator differentiator(graph, inputs, options);
  RETURN_IF_ERROR(differentiator.Run(loss));
  GradientResult result{.gradients = {}, .recomputations = differentiator.recomputations()};
  for (const Tensor& input : inputs) result.gradients.push_back(differentiator.GradientOf(input));
  RETURN_IF_ERROR(graph.status());
  return result;
}

}  // namespace minka
