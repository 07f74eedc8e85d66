#include "minka/analysis/phases.h"

#include <algorithm>
#include <span>

namespace minka {
namespace {

class Classifier {
 public:
  explicit Classifier(const Step& step)
      : step_(step),
        entry_(step.module.entry_computation()),
        uses_(entry_),
        is_state_result_(entry_.instructions.size()),
        is_other_result_(entry_.instructions.size()) {
    for (size_t i = 0; i < entry_.results.size(); ++i) {
      const bool is_state = i < step.results.size() && step.results[i].role == ResultRole::kState;
      (is_state ? is_state_result_ : is_other_result_)[entry_.results[i].instruction] = true;
    }
  }

  std::vector<Phase> Run() {
    const std::vector<bool> gradients = Marked(MarkKind::kGradient);
    const bool is_marked = Any(gradients);
    const std::vector<bool> losses = Losses();
    const std::vector<bool> forward = Ancestors(losses);
    std::vector<bool> apply = is_marked ? Behind(gradients) : OptimiserTail();
    const std::vector<bool> backward = Ancestors(is_marked ? gradients : ReadBy(apply));
    // A gradient may lead to others: a batch norm's bias has the sum that its input's gradient
    // reads.
    for (size_t id = 0; is_marked && id < apply.size(); ++id)
      apply[id] = apply[id] && !backward[id];
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      if (apply[id]) {
        phases_.push_back(Phase::kApply);
      } else if (forward[id]) {
        phases_.push_back(Phase::kForward);
      } else if (backward[id]) {
        phases_.push_back(Any(losses) ? Phase::kBackward : Phase::kForward);
      } else {
        phases_.push_back(PhaseOfOperands(id));
        undecided_.push_back(id);
      }
    }
    MoveBehindTheGradients();
    return std::move(phases_);
  }

 private:
  static bool Any(const std::vector<bool>& flags) {
    return std::ranges::find(flags, true) != flags.end();
  }

  std::vector<bool> Marked(MarkKind kind) const {
    std::vector<bool> marked(entry_.instructions.size());
    for (const Mark& mark : step_.marks) {
      if (mark.kind == kind) marked[mark.value.instruction] = true;
    }
    return marked;
  }

  std::vector<bool> Losses() const {
    std::vector<bool> losses = Marked(MarkKind::kLoss);
    for (size_t i = 0; i < step_.results.size() && i < entry_.results.size(); ++i) {
      if (step_.results[i].role == ResultRole::kLoss) losses[entry_.results[i].instruction] = true;
    }
    return losses;
  }

  // The flagged instructions and everything that they depend on.
  std::vector<bool> Ancestors(std::vector<bool> flags) const {
    for (InstructionId id = entry_.num_instructions() - 1; id >= 0; --id) {
      if (!flags[id]) continue;
      for (const Value operand : entry_.instructions[id].operands)
        flags[operand.instruction] = true;
    }
    return flags;
  }

  // Everything that depends on a marked gradient; other results of a marked instruction do not.
  std::vector<bool> Behind(const std::vector<bool>& gradients) const {
    std::vector<bool> behind(gradients.size());
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      behind[id] = std::ranges::any_of(entry_.instructions[id].operands, [&](Value operand) {
        return behind[operand.instruction] ||
               (gradients[operand.instruction] && IsGradient(operand));
      });
    }
    return behind;
  }

  bool IsGradient(Value value) const {
    return std::ranges::any_of(step_.marks, [&](const Mark& mark) {
      return mark.kind == MarkKind::kGradient && mark.value == value;
    });
  }

  enum class Reductions : uint8_t { kToScalars, kAll };

  static bool IsOptimiserOperation(const Instruction& instruction, Reductions reductions) {
    if (instruction.results.size() != 1) return false;
    switch (instruction.opcode) {
      case Opcode::kBroadcast:
      case Opcode::kConstant:
      case Opcode::kIota:
      case Opcode::kParameter:
        return true;
      case Opcode::kReduce:
      case Opcode::kReshape:
        return reductions == Reductions::kAll || instruction.shape().num_elements() == 1;
      default:
        return IsElementwise(instruction.opcode);
    }
  }

  std::vector<bool> OptimiserTail() const {
    std::vector<bool> tail = TailWith(Reductions::kToScalars);
    std::vector<bool> wide = TailWith(Reductions::kAll);
    for (size_t id = 0; id < tail.size(); ++id) wide[id] = wide[id] && !tail[id];
    KeepWhatReadsGradients(tail, wide);
    for (size_t id = 0; id < tail.size(); ++id) tail[id] = tail[id] || wide[id];
    return tail;
  }

  // What leads to new state only, through such operations.
  std::vector<bool> TailWith(Reductions reductions) const {
    std::vector<bool> tail(entry_.instructions.size());
    for (InstructionId id = entry_.num_instructions() - 1; id >= 0; --id) {
      if (is_other_result_[id] || !IsOptimiserOperation(entry_.instructions[id], reductions)) {
        continue;
      }
      const std::span<const Use> uses = uses_.uses({id, 0});
      tail[id] = (is_state_result_[id] || !uses.empty()) && IsReadOnlyBy(id, tail, tail);
    }
    return tail;
  }

  bool IsReadOnlyBy(InstructionId id, const std::vector<bool>& one,
                    const std::vector<bool>& other) const {
    return std::ranges::all_of(uses_.uses({id, 0}),
                               [&](const Use& use) { return one[use.user] || other[use.user]; });
  }

  // Drops from `wide` what is made of anything else than what the tail reads, too: a gradient's own
  // last reduction, in contrast to the means of a gradient.
  void KeepWhatReadsGradients(const std::vector<bool>& tail, std::vector<bool>& wide) const {
    const std::vector<bool> depends_on_batch_or_key = DependsOnBatchOrKey();
    const std::vector<bool> read_by_tail = ReadBy(tail);
    const auto is_gradient = [&](Value value) {
      const InstructionId id = value.instruction;
      return wide[id] || read_by_tail[id] || !depends_on_batch_or_key[id];
    };
    for (bool changed = true; changed;) {
      changed = false;
      for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
        if (!wide[id]) continue;
        const std::vector<Value>& operands = entry_.instructions[id].operands;
        const bool is_input = operands.empty() && depends_on_batch_or_key[id];
        wide[id] =
            !is_input && IsReadOnlyBy(id, tail, wide) && std::ranges::all_of(operands, is_gradient);
        changed = changed || !wide[id];
      }
    }
  }

  // Where new state comes from: what the tail reads, and state that has no tail.
  std::vector<bool> ReadBy(const std::vector<bool>& tail) const {
    std::vector<bool> read = is_state_result_;
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      if (!tail[id]) continue;
      read[id] = false;
      for (const Value operand : entry_.instructions[id].operands) {
        if (!tail[operand.instruction]) read[operand.instruction] = true;
      }
    }
    return read;
  }

  Phase PhaseOfOperands(InstructionId id) const {
    Phase latest = Phase::kForward;
    for (const Value operand : entry_.instructions[id].operands) {
      latest = std::max(latest, phases_[operand.instruction]);
    }
    return latest;
  }

  // Does it depend on a batch or key, and so on the forward pass?
  std::vector<bool> DependsOnBatchOrKey() const {
    std::vector<bool> depends(entry_.instructions.size());
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      const Instruction& instruction = entry_.instructions[id];
      if (instruction.opcode == Opcode::kParameter) {
        const auto number = static_cast<size_t>(instruction.As<ParameterAttributes>().number);
        depends[id] = number < step_.parameters.size() &&
                      (step_.parameters[number].role == ParameterRole::kBatch ||
                       step_.parameters[number].role == ParameterRole::kKey);
      }
      for (const Value operand : instruction.operands) {
        depends[id] = depends[id] || depends[operand.instruction];
      }
    }
    return depends;
  }

  void MoveBehindTheGradients() {
    const std::vector<bool> depends_on_batch_or_key = DependsOnBatchOrKey();
    for (auto id = undecided_.rbegin(); id != undecided_.rend(); ++id) {
      const Instruction& instruction = entry_.instructions[*id];
      if (depends_on_batch_or_key[*id] || is_other_result_[*id]) continue;
      bool is_read = is_state_result_[*id];
      bool only_by_apply = true;
      for (size_t result = 0; result < instruction.results.size(); ++result) {
        for (const Use& use : uses_.uses({*id, static_cast<int32_t>(result)})) {
          is_read = true;
          only_by_apply = only_by_apply && phases_[use.user] == Phase::kApply;
        }
      }
      if (is_read && only_by_apply) phases_[*id] = Phase::kApply;
    }
  }

  const Step& step_;
  const Computation& entry_;
  UseTable uses_;
  std::vector<bool> is_state_result_;
  std::vector<bool> is_other_result_;
  std::vector<Phase> phases_;
  std::vector<InstructionId> undecided_;
};

}  // namespace

std::vector<Phase> ClassifyPhases(const Step& step) { return Classifier(step).Run(); }

}  // namespace minka
