#include "minka/analysis/layer_starts.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "minka/base/status.h"

namespace minka {
namespace {

std::optional<int> NumberOf(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

class StartedLayers {
 public:
  StartedLayers(const Step& step, const std::vector<Phase>& phases,
                const std::vector<std::string>& starts)
      : step_(step),
        entry_(step.module.entry_computation()),
        starts_(starts),
        is_forward_(ForwardOperations(step, phases)),
        found_(FindLayers(step, phases)),
        is_used_(starts.size()) {}

  absl::StatusOr<Layers> Run() && {
    RETURN_IF_ERROR(CheckNumbers());
    layers_.layer.assign(entry_.instructions.size(), -1);
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) Place(id);
    MoveToReaders();
    RETURN_IF_ERROR(CheckEveryLayer());
    layers_.count = static_cast<int>(starts_.size()) + 1;
    if (!HasLayer(0)) DropFirst();
    return std::move(layers_);
  }

 private:
  absl::Status CheckNumbers() const {
    for (const std::string& start : starts_) {
      const std::optional<int> number = NumberOf(start);
      if (!number || (*number >= 0 && *number < std::max(found_.count, 1))) continue;
      return InvalidArgument("a layer shall begin with layer {}, but {} has {} between boundaries",
                             *number, step_.module.name, found_.count);
    }
    return absl::OkStatus();
  }

  // The layer that begins with the instruction; 0: none does.
  int LayerBegunBy(InstructionId id) {
    int layer = 0;
    for (size_t i = 0; i < starts_.size(); ++i) {
      if (!Names(starts_[i], id)) continue;
      layer = static_cast<int>(i) + 1;
    }
    return layer;
  }

  bool Names(const std::string& start, InstructionId id) const {
    const Instruction& instruction = entry_.instructions[id];
    if (const std::optional<int> number = NumberOf(start)) {
      return is_forward_[id] && found_.layer[id] >= *number;
    }
    if (instruction.opcode != Opcode::kParameter) {
      return MatchesGlob(start, instruction.name) || MatchesGlob(start, instruction.op_name);
    }
    const auto number = static_cast<size_t>(instruction.As<ParameterAttributes>().number);
    return number < step_.parameters.size() && MatchesGlob(start, step_.parameters[number].name);
  }

  // What is made of state alone hands on what it begins.
  void Place(InstructionId id) {
    int layer = LayerBegunBy(id);
    const int own = layer;
    bool depends_on_state = false;
    for (const Value operand : entry_.instructions[id].operands) {
      layer = std::max(layer, begun_[operand.instruction]);
      depends_on_state = depends_on_state || depends_on_state_[operand.instruction];
    }
    if (IsState(id)) depends_on_state = true;
    begun_.push_back(layer);
    depends_on_state_.push_back(depends_on_state);
    if (!is_forward_[id]) return;
    layers_.layer[id] = layer;
    for (const Value operand : entry_.instructions[id].operands) {
      if (!is_forward_[operand.instruction]) MarkUsed(begun_[operand.instruction]);
    }
    MarkUsed(own);
  }

  void MarkUsed(int layer) {
    if (layer > 0) is_used_[layer - 1] = true;
  }

  bool IsState(InstructionId id) const {
    if (entry_.instructions[id].opcode != Opcode::kParameter) return false;
    const auto number =
        static_cast<size_t>(entry_.instructions[id].As<ParameterAttributes>().number);
    return number < step_.parameters.size() &&
           step_.parameters[number].role == ParameterRole::kState;
  }

  void MoveToReaders() {
    const UseTable uses(entry_);
    for (InstructionId id = entry_.num_instructions() - 1; id >= 0; --id) {
      if (layers_.layer[id] < 0 || depends_on_state_[id]) continue;
      int first = std::numeric_limits<int>::max();
      for (int32_t i = 0; i < static_cast<int32_t>(entry_.instructions[id].results.size()); ++i) {
        for (const Use& use : uses.uses({id, i})) {
          if (layers_.layer[use.user] >= 0) first = std::min(first, layers_.layer[use.user]);
        }
      }
      if (first != std::numeric_limits<int>::max()) layers_.layer[id] = first;
    }
  }

  bool HasLayer(int layer) const { return std::ranges::count(layers_.layer, layer) > 0; }

  absl::Status CheckEveryLayer() const {
    for (size_t i = 0; i < starts_.size(); ++i) {
      if (!is_used_[i]) {
        return InvalidArgument(
            "a layer shall begin at \"{}\", which names nothing in the forward pass of {}; there "
            "are names of operations, their names in the model and names of parameters",
            starts_[i], step_.module.name);
      }
      if (HasLayer(static_cast<int>(i) + 1)) continue;
      return InvalidArgument(
          "nothing is left for the layer that begins at \"{}\": all of it depends on what a later "
          "layer begins with; name them in the order of the forward pass of {}",
          starts_[i], step_.module.name);
    }
    return absl::OkStatus();
  }

  // Nothing lies in front of the first start.
  void DropFirst() {
    --layers_.count;
    for (int& layer : layers_.layer) layer = std::max(layer - 1, -1);
  }

  const Step& step_;
  const Computation& entry_;
  const std::vector<std::string>& starts_;
  const std::vector<bool> is_forward_;
  const Layers found_;
  std::vector<bool> is_used_;  // by start: it names something of the forward pass
  // By instruction: the last layer that began with it or what it depends on.
  std::vector<int> begun_;
  std::vector<bool> depends_on_state_;
  Layers layers_;
};

}  // namespace

absl::StatusOr<Layers> LayersFrom(const Step& step, const std::vector<Phase>& phases,
                                  const std::vector<std::string>& starts) {
  return StartedLayers(step, phases, starts).Run();
}

}  // namespace minka
