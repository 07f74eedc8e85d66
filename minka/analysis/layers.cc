#include "minka/analysis/layers.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>

namespace minka {
namespace {

class LayerFinder {
 public:
  LayerFinder(const Step& step, const std::vector<Phase>& phases)
      : step_(step),
        entry_(step.module.entry_computation()),
        uses_(entry_),
        phases_(phases),
        is_forward_(ForwardOperations(step, phases)) {}

  Layers Run() && {
    FindMarked();
    if (boundaries_.empty()) {
      FindCuts();
      FindBehindBoundaries();
      JoinRecomputed();
    }
    FindBehindBoundaries();
    if (boundaries_.empty()) return std::move(layers_);
    layers_.count = boundaries_.rbegin()->second + 1;
    MoveToReaders();
    return std::move(layers_);
  }

  std::vector<int> Recomputed() && {
    FindCuts();
    FindBehindBoundaries();
    std::vector<bool> is_recomputed(boundaries_.size() + 1, HasBackward());
    VisitKept([&](Value value) {
      if (!boundaries_.contains(value)) is_recomputed[layers_.layer[value.instruction]] = false;
    });
    const std::vector<int> found = layers_.layer;
    JoinRecomputed();
    FindBehindBoundaries();
    for (size_t id = 0; id < found.size(); ++id) {
      if (found[id] < 0 || !is_recomputed[found[id]]) layers_.layer[id] = -1;
    }
    return std::move(layers_.layer);
  }

 private:
  // The marks by their numbers; one on a backward value is what a frontend made of another one.
  void FindMarked() {
    std::set<int> numbers;
    const auto is_boundary = [&](const Mark& mark) {
      return mark.kind == MarkKind::kLayerBoundary && is_forward_[mark.value.instruction];
    };
    for (const Mark& mark : step_.marks) {
      if (is_boundary(mark)) numbers.insert(mark.index);
    }
    for (const Mark& mark : step_.marks) {
      if (!is_boundary(mark)) continue;
      const auto before = std::distance(numbers.begin(), numbers.find(mark.index));
      boundaries_[mark.value] = static_cast<int>(before) + 1;
    }
  }

  // A value is a cut if no operation behind it reads one in front of it, as far as both are what
  // inputs and weights contribute to the loss. In any order in which operands come first.
  void FindCuts() {
    const std::vector<bool> contributes = ContributionsToLoss(step_, phases_);
    Value cut;
    InstructionId read_until = -1;
    bool behind_first = false;
    int number = 0;
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      if (!contributes[id]) continue;
      const Instruction& instruction = entry_.instructions[id];
      const bool is_heavy = instruction.opcode == Opcode::kDot ||
                            instruction.opcode == Opcode::kConvolution ||
                            instruction.opcode == Opcode::kWhile;
      const bool begins = std::ranges::none_of(
          instruction.operands, [&](Value operand) { return contributes[operand.instruction]; });
      // What begins behind a cut shows that it was none.
      if (begins && behind_first) boundaries_.clear();
      if (begins) cut = Value();
      behind_first = true;
      if (is_heavy && cut.instruction >= 0) boundaries_.try_emplace(cut, 0);
      if (read_until <= id && instruction.results.size() == 1) cut = {id, 0};
      for (int32_t i = 0; i < static_cast<int32_t>(instruction.results.size()); ++i) {
        for (const Use& use : uses_.uses({id, i})) {
          if (contributes[use.user]) read_until = std::max(read_until, use.user);
        }
      }
    }
    for (auto& [boundary, layer] : boundaries_) layer = ++number;
  }

  // Drops cuts within what the step's author has rematerialised. The backward pass computes all of
  // that again and reads nothing of it but what it begins with.
  void JoinRecomputed() {
    if (!HasBackward()) return;
    std::vector<bool> is_read(boundaries_.size() + 1);
    VisitKept([&](Value value) {
      const auto begins = boundaries_.find(value);
      is_read[begins != boundaries_.end() ? begins->second : layers_.layer[value.instruction]] =
          true;
    });
    int number = 0;
    std::erase_if(boundaries_, [&](const auto& boundary) { return !is_read[boundary.second]; });
    for (auto& [boundary, layer] : boundaries_) layer = ++number;
  }

  bool HasBackward() const { return std::ranges::find(phases_, Phase::kBackward) != phases_.end(); }

  // Calls `visit` with every forward value that a backward operation reads.
  template <typename Visit>
  void VisitKept(Visit visit) const {
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      if (phases_[id] != Phase::kBackward) continue;
      for (const Value operand : entry_.instructions[id].operands) {
        if (layers_.layer[operand.instruction] >= 0) visit(operand);
      }
    }
  }

  void FindBehindBoundaries() {
    layers_.layer.assign(entry_.instructions.size(), -1);
    if (boundaries_.empty()) return;
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      if (!is_forward_[id]) continue;
      int& layer = layers_.layer[id];
      layer = 0;
      for (const Value operand : entry_.instructions[id].operands) {
        layer = std::max(layer, layers_.layer[operand.instruction]);
        const auto boundary = boundaries_.find(operand);
        if (boundary != boundaries_.end()) layer = std::max(layer, boundary->second);
      }
    }
  }

  bool IsBoundary(InstructionId id) const {
    const auto first = boundaries_.lower_bound({id, 0});
    return first != boundaries_.end() && first->first.instruction == id;
  }

  void MoveToReaders() {
    for (InstructionId id = entry_.num_instructions() - 1; id >= 0; --id) {
      if (layers_.layer[id] != 0 || IsBoundary(id)) continue;
      int first = std::numeric_limits<int>::max();
      VisitForwardReaders(id, [&](int layer) { first = std::min(first, layer); });
      if (first < layers_.count) layers_.layer[id] = first;
    }
  }

  // Calls `visit` with the layer of each.
  template <typename Visit>
  void VisitForwardReaders(InstructionId id, Visit visit) const {
    for (int32_t i = 0; i < static_cast<int32_t>(entry_.instructions[id].results.size()); ++i) {
      for (const Use& use : uses_.uses({id, i})) {
        if (layers_.layer[use.user] >= 0) visit(layers_.layer[use.user]);
      }
    }
  }

  const Step& step_;
  const Computation& entry_;
  const UseTable uses_;
  const std::vector<Phase>& phases_;
  const std::vector<bool> is_forward_;
  std::map<Value, int> boundaries_;  // the layer behind each
  Layers layers_;
};

std::vector<bool> ReachesLoss(const Step& step) {
  const Computation& entry = step.module.entry_computation();
  std::vector<bool> reaches_loss(entry.instructions.size());
  for (const Mark& mark : step.marks) {
    if (mark.kind == MarkKind::kLoss) reaches_loss[mark.value.instruction] = true;
  }
  for (size_t i = 0; i < step.results.size() && i < entry.results.size(); ++i) {
    const bool is_loss = step.results[i].role == ResultRole::kLoss;
    if (is_loss) reaches_loss[entry.results[i].instruction] = true;
  }
  for (InstructionId id = entry.num_instructions() - 1; id >= 0; --id) {
    if (!reaches_loss[id]) continue;
    for (const Value operand : entry.instructions[id].operands) {
      reaches_loss[operand.instruction] = true;
    }
  }
  return reaches_loss;
}

}  // namespace

std::vector<bool> DependsOnMoreThanState(const Step& step) {
  const Computation& entry = step.module.entry_computation();
  std::vector<bool> depends(entry.instructions.size());
  for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
    const Instruction& instruction = entry.instructions[id];
    if (instruction.opcode == Opcode::kParameter) {
      const auto number = static_cast<size_t>(instruction.As<ParameterAttributes>().number);
      depends[id] =
          number >= step.parameters.size() || step.parameters[number].role != ParameterRole::kState;
    }
    for (const Value operand : instruction.operands) {
      depends[id] = depends[id] || depends[operand.instruction];
    }
  }
  return depends;
}

std::vector<bool> ForwardOperations(const Step& step, const std::vector<Phase>& phases) {
  const Computation& entry = step.module.entry_computation();
  std::vector<bool> is_forward = DependsOnMoreThanState(step);
  for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
    is_forward[id] = is_forward[id] && phases[id] == Phase::kForward &&
                     entry.instructions[id].opcode != Opcode::kParameter;
  }
  return is_forward;
}

std::vector<bool> ContributionsToLoss(const Step& step, const std::vector<Phase>& phases) {
  const Computation& entry = step.module.entry_computation();
  const std::vector<bool> depends_on_inputs = DependsOnMoreThanState(step);
  const std::vector<bool> is_forward = ForwardOperations(step, phases);
  const std::vector<bool> reaches_loss = ReachesLoss(step);
  std::vector<bool> contributes(entry.instructions.size());
  for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
    const Instruction& instruction = entry.instructions[id];
    if (instruction.opcode == Opcode::kParameter) {
      contributes[id] = !depends_on_inputs[id] && IsFloat(instruction.shape().type);
    }
    // A custom call may have no results.
    const bool makes_floats =
        !instruction.results.empty() && IsFloat(instruction.results.front().type);
    for (const Value operand : instruction.operands) {
      contributes[id] = contributes[id] || (contributes[operand.instruction] && makes_floats);
    }
  }
  for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
    contributes[id] = contributes[id] && reaches_loss[id] && is_forward[id];
  }
  return contributes;
}

Layers FindLayers(const Step& step, const std::vector<Phase>& phases) {
  return LayerFinder(step, phases).Run();
}

std::vector<int> RecomputedRegions(const Step& step, const std::vector<Phase>& phases) {
  return LayerFinder(step, phases).Recomputed();
}

}  // namespace minka
