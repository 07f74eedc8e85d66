#include "minka/analysis/structure.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "minka/analysis/layer_cut.h"
#include "minka/analysis/layer_starts.h"
#include "minka/analysis/layers.h"
#include "minka/analysis/part_into_layers.h"
#include "minka/analysis/phases.h"
#include "minka/base/status.h"
#include "minka/ir/call_graph.h"

namespace minka {
namespace {

// Layers of what stands in none (StepPart::layer) and of what several contribute to.
constexpr int kNone = -1;
constexpr int kSeveral = -2;

// Gradients of weights are made where the weights are updated, unless so many times their bytes had
// to cross: elsewhere they take memory all the time, and layers that are else equal differ. Those
// of embeddings are smaller than what they are made of, of a large batch.
constexpr int64_t kGradientOfWeights = 256;

int Joined(int layer, int other) {
  if (layer == kNone || layer == other) return other;
  return other == kNone ? layer : kSeveral;
}

// The layers of everything but the forward pass.
class LayerSpreader {
 public:
  LayerSpreader(const Step& step, const std::vector<Phase>& phases, const Layers& forward)
      : step_(step),
        entry_(step.module.entry_computation()),
        uses_(entry_),
        phases_(phases),
        depends_on_inputs_(DependsOnMoreThanState(step)),
        num_layers_(forward.count),
        layers_(forward.layer) {
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      is_forward_.push_back(layers_[id] >= 0);
      is_backward_.push_back(phases[id] == Phase::kBackward && depends_on_inputs_[id]);
    }
  }

  std::vector<int> Run() && {
    FindMadeAnywhere();
    FindHomes();
    FindApply();
    CutBackward();
    for (int& layer : layers_) layer = std::max(layer, kNone);
    return std::move(layers_);
  }

 private:
  const Instruction& instruction(InstructionId id) const { return entry_.instructions[id]; }

  template <typename Visit>
  void VisitReaders(InstructionId id, const Visit& visit) const {
    for (int32_t i = 0; i < static_cast<int32_t>(instruction(id).results.size()); ++i) {
      for (const Use& use : uses_.uses({id, i})) visit(use.user);
    }
  }

  // What is computed from constants, keys, whole numbers of the batch and scalar state, such as a
  // step counter: sent nowhere, but made again.
  void FindMadeAnywhere() {
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      bool is_made_anywhere = GivesTheSameAgain(step_.module, instruction(id)) &&
                              std::ranges::all_of(instruction(id).operands, [&](Value value) {
                                return made_anywhere_[value.instruction];
                              });
      if (instruction(id).opcode == Opcode::kParameter) {
        const auto number = static_cast<size_t>(instruction(id).As<ParameterAttributes>().number);
        const ParameterRole role = number < step_.parameters.size() ? step_.parameters[number].role
                                                                    : ParameterRole::kConstant;
        is_made_anywhere =
            role == ParameterRole::kKey ||
            (!IsFloat(instruction(id).shape().type) &&
             (role == ParameterRole::kBatch || instruction(id).shape().num_elements() == 1));
      }
      made_anywhere_.push_back(is_made_anywhere);
    }
  }

  // Of parameters, and of what depends on state and constants: the layer of its forward readers,
  // else of the state.
  void FindHomes() {
    const auto is_of_state = [&](InstructionId id) {
      const bool is_parameter = instruction(id).opcode == Opcode::kParameter;
      return (is_parameter || !depends_on_inputs_[id]) && !made_anywhere_[id] &&
             phases_[id] != Phase::kApply;
    };
    for (InstructionId id = entry_.num_instructions() - 1; id >= 0; --id) {
      if (!is_of_state(id)) continue;
      VisitReaders(id, [&](InstructionId reader) {
        if (is_forward_[reader] || is_of_state(reader)) {
          layers_[id] = Joined(layers_[id], layers_[reader]);
        }
      });
    }
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      if (!is_of_state(id) || layers_[id] != kNone) continue;
      for (const Value operand : instruction(id).operands) {
        layers_[id] = Joined(layers_[id], layers_[operand.instruction]);
      }
    }
  }

  // Operations that pass tensors to each other update the same weights. Scalars, and what is made
  // of them, such as a learning rate, are for all.
  void FindApply() {
    std::vector<int> group(entry_.instructions.size());
    std::iota(group.begin(), group.end(), 0);
    const auto find = [&](int id) {
      while (group[id] != id) id = group[id] = group[group[id]];
      return id;
    };
    std::vector<bool> is_scalar;  // or made of scalars alone
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      const std::vector<Value>& operands = instruction(id).operands;
      is_scalar.push_back(
          std::ranges::all_of(instruction(id).results,
                              [](const Shape& shape) { return shape.num_elements() <= 1; }) ||
          (!operands.empty() && std::ranges::all_of(operands, [&](Value operand) {
            return is_scalar[operand.instruction];
          })));
      if (phases_[id] != Phase::kApply) continue;
      for (const Value operand : operands) {
        const InstructionId read = operand.instruction;
        const bool is_own =
            phases_[read] == Phase::kApply || instruction(read).opcode == Opcode::kParameter;
        if (is_own && !is_scalar[read] && !is_scalar[id]) group[find(read)] = find(id);
      }
    }
    std::vector<int> layer_of_group(group.size(), kNone);
    const auto join_all = [&](const auto& layer_of) {
      for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
        int& layer = layer_of_group[find(id)];
        layer = Joined(layer, layer_of(id));
      }
    };
    join_all([&](InstructionId id) {
      return instruction(id).opcode == Opcode::kParameter ? layers_[id] : kNone;
    });
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      const bool is_optimizer_state =
          instruction(id).opcode == Opcode::kParameter && layers_[id] == kNone;
      if (phases_[id] == Phase::kApply || is_optimizer_state) {
        layers_[id] = layer_of_group[find(id)];
      }
    }
  }

  void CutBackward() {
    LayerCutProblem problem{.num_layers = num_layers_};
    std::vector<int> variables(entry_.instructions.size(), -1);
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      if (is_backward_[id]) variables[id] = problem.num_variables++;
    }
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      for (int32_t i = 0; i < static_cast<int32_t>(instruction(id).results.size()); ++i) {
        AddShared({id, i}, variables, problem);
      }
      if (!is_backward_[id]) continue;
      std::set<int> before;
      for (const Value operand : instruction(id).operands) {
        if (is_backward_[operand.instruction]) before.insert(variables[operand.instruction]);
      }
      for (const int variable : before) problem.orders.push_back({variable, variables[id]});
    }
    const std::vector<int> found = SolveLayerCut(problem);
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      if (is_backward_[id]) layers_[id] = found[variables[id]];
    }
  }

  // Does the update of one layer read it?
  bool IsGradientOfWeights(Value value) const {
    if (!is_backward_[value.instruction]) return false;
    return std::ranges::any_of(uses_.uses(value), [&](const Use& use) {
      return phases_[use.user] == Phase::kApply && layers_[use.user] >= 0;
    });
  }

  void AddShared(Value value, const std::vector<int>& variables, LayerCutProblem& problem) const {
    if (layers_[value.instruction] == kSeveral) return;
    // Of equal bytes, gradients cross rather than what the forward pass has made.
    LayerCutProblem::Shared shared{.bytes = made_anywhere_[value.instruction]
                                                ? 1
                                                : 2 * entry_.shape(value).num_bytes() +
                                                      (is_backward_[value.instruction] ? 0 : 1)};
    std::set<int> holders;
    const auto hold = [&](InstructionId id) {
      if (is_backward_[id]) {
        holders.insert(variables[id]);
      } else if (layers_[id] >= 0) {
        shared.lowest = shared.lowest < 0 ? layers_[id] : std::min(shared.lowest, layers_[id]);
        shared.highest = std::max(shared.highest, layers_[id]);
      }
    };
    hold(value.instruction);
    for (const Use& use : uses_.uses(value)) hold(use.user);
    if (IsGradientOfWeights(value)) shared.bytes *= kGradientOfWeights;
    if (holders.empty()) return;
    if (holders.size() == 1 && shared.lowest < 0) return;
    shared.variables.assign(holders.begin(), holders.end());
    problem.shared.push_back(std::move(shared));
  }

  const Step& step_;
  const Computation& entry_;
  const UseTable uses_;
  const std::vector<Phase>& phases_;
  const std::vector<bool> depends_on_inputs_;
  const int num_layers_;
  // By instruction:
  std::vector<bool> is_forward_, is_backward_;  // and depends on inputs
  std::vector<bool> made_anywhere_;
  std::vector<int> layers_;
};

Step WithLayers(Step step, const std::vector<Phase>& phases, const Layers& forward) {
  const std::vector<int> layers = forward.count > 0 ? LayerSpreader(step, phases, forward).Run()
                                                    : std::vector<int>(phases.size(), kNone);
  Computation& entry = step.module.entry_computation();
  for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
    entry.instructions[id].part = {phases[id], layers[id]};
  }
  step.num_layers = forward.count;
  return step;
}

}  // namespace

Step WithStructure(Step step) {
  const std::vector<Phase> phases = ClassifyPhases(step);
  const Layers layers = FindLayers(step, phases);
  return WithLayers(std::move(step), phases, layers);
}

absl::StatusOr<Step> WithStructure(Step step, const LayerChoice& choice) {
  const std::vector<Phase> phases = ClassifyPhases(step);
  Layers layers;
  if (const auto* const automatic = std::get_if<AutoLayers>(&choice)) {
    layers = PartIntoLayers(step, phases, automatic->num_layers);
  } else if (const auto* const manual = std::get_if<ManualLayers>(&choice)) {
    ASSIGN_OR_RETURN(layers, LayersFrom(step, phases, manual->starts));
  } else {
    layers = FindLayers(step, phases);
  }
  return WithLayers(std::move(step), phases, layers);
}

}  // namespace minka
