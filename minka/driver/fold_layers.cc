#include "minka/driver/fold_layers.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>

#include "fmt/format.h"
#include "minka/base/hash.h"
#include "minka/driver/stage_hash.h"
#include "minka/ir/call_graph.h"
#include "minka/ir/rewriter.h"
#include "minka/ir/structure_key.h"

namespace minka {
namespace {

// So many layers may take turns, such as dense ones and mixtures of experts, and read each other.
constexpr int kMostTakingTurns = 2;

// Which instructions are of each layer, and in which order: those that stand in it, and those in no
// layer that read layered values of this one alone (what an optimizer reduces to a number).
class LayerOrder {
 public:
  explicit LayerOrder(const Step& step) : of_layer_(*step.num_layers) {
    for (const Instruction& instruction : step.module.entry_computation().instructions) {
      const int layer =
          instruction.part.layer >= 0 ? instruction.part.layer : OnlyLayerOf(instruction.operands);
      const auto id = static_cast<InstructionId>(layer_.size());
      layer_.push_back(layer);
      position_.push_back(layer < 0 ? -1 : static_cast<int>(of_layer_[layer].size()));
      if (layer >= 0) of_layer_[layer].push_back(id);
    }
  }

  int num_layers() const { return static_cast<int>(of_layer_.size()); }
  // -1, kOfSeveral: none.
  int LayerOf(InstructionId id) const { return layer_[id]; }
  bool ReadsSeveral(InstructionId id) const { return layer_[id] == kOfSeveral; }
  int PositionOf(InstructionId id) const { return position_[id]; }
  const std::vector<InstructionId>& InstructionsOf(int layer) const { return of_layer_[layer]; }

 private:
  static constexpr int kOfSeveral = -2;

  int OnlyLayerOf(const std::vector<Value>& operands) const {
    int only = -1;
    for (const Value operand : operands) {
      const int layer = layer_[operand.instruction];
      if (layer == kOfSeveral || (only >= 0 && layer >= 0 && layer != only)) return kOfSeveral;
      only = std::max(only, layer);
    }
    return only;
  }

  std::vector<std::vector<InstructionId>> of_layer_;
  std::vector<int> layer_, position_;  // by instruction, in its layer
};

// By layer hashes of its instructions, equal for equal layers.
class LayerHashes {
 public:
  LayerHashes(const Step& step, const LayerOrder& order)
      : step_(step),
        entry_(step.module.entry_computation()),
        order_(order),
        computations_(ComputationHashes(step.module)),
        is_free_(FindFreeValues(entry_)),
        shared_(entry_.instructions.size()),
        results_(entry_.instructions.size()) {}

  std::vector<std::vector<uint64_t>> Find() && {
    for (size_t i = 0; i < entry_.results.size(); ++i) {
      const Value result = entry_.results[i];
      results_[result.instruction] +=
          fmt::format(" {}{}", result.result, RoleName(step_.results[i].role));
    }
    std::vector<std::vector<uint64_t>> hashes(order_.num_layers());
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      const int layer = order_.LayerOf(id);
      if (layer >= 0) {
        hashes[layer].push_back(StableHash(TextOf(id, layer)));
      } else {
        shared_[id] = StandsForItself(id) ? HashOf({0, static_cast<uint64_t>(id)})
                                          : StableHash(TextOf(id, layer));
      }
    }
    return hashes;
  }

 private:
  // Of what stands in no layer: is it the same for all layers, rather than made for each?
  bool StandsForItself(InstructionId id) const {
    return entry_.instructions[id].opcode == Opcode::kParameter || order_.ReadsSeveral(id);
  }

  std::string TextOf(InstructionId id, int layer) const {
    const Instruction& instruction = entry_.instructions[id];
    const std::string text = PartText(instruction.part) + results_[id];
    if (is_free_[id]) return text + ToString(instruction.shape());
    if (instruction.opcode == Opcode::kParameter) {
      const ParameterInfo& info = step_.parameters[instruction.As<ParameterAttributes>().number];
      std::string out = text + ToString(instruction.shape()) + MeaningText(info);
      if (info.state_result >= 0)
        out += fmt::format(" {}", KeyOf(entry_.results[info.state_result], layer));
      return out;
    }
    return text + StructureKey(
                      instruction, [&](Value operand) { return KeyOf(operand, layer); },
                      [&](ComputationId called) { return computations_[called]; });
  }

  // What a layer reads: of itself and of those beside it by where it stands there.
  uint64_t KeyOf(Value value, int reader) const {
    const int layer = order_.LayerOf(value.instruction);
    const auto result = static_cast<uint64_t>(value.result);
    if (layer < 0) return HashOf({1, shared_[value.instruction], result});
    if (std::abs(layer - reader) > kMostTakingTurns)
      return HashOf({2, static_cast<uint64_t>(value.instruction), result});
    return HashOf({3, static_cast<uint64_t>(layer - reader + kMostTakingTurns),
                   static_cast<uint64_t>(order_.PositionOf(value.instruction)), result,
                   StableHash(ToString(entry_.shape(value)))});
  }

  const Step& step_;
  const Computation& entry_;
  const LayerOrder& order_;
  const std::vector<uint64_t> computations_;
  const std::vector<bool> is_free_;
  std::vector<uint64_t> shared_;      // by instruction in no layer
  std::vector<std::string> results_;  // by instruction: which of its results the step gives
};

// Equal layers, of which the first `num_kept` take turns to the end.
struct Row {
  int begin = 0, end = 0, num_kept = 1;
};

std::vector<Row> FindRows(const std::vector<std::vector<uint64_t>>& hashes) {
  const auto num_layers = static_cast<int>(hashes.size());
  std::vector<Row> rows;
  for (int begin = 0; begin < num_layers;) {
    Row longest{.begin = begin, .end = begin + 1};
    for (int turn = 1; turn <= kMostTakingTurns; ++turn) {
      int end = begin + turn;
      while (end < num_layers && hashes[end] == hashes[end - turn]) ++end;
      end -= (end - begin) % turn;
      const bool is_longer = end - begin - turn > longest.end - longest.begin - longest.num_kept;
      if (is_longer) longest = {.begin = begin, .end = end, .num_kept = turn};
    }
    rows.push_back(longest);
    begin = longest.end;
  }
  return rows;
}

class Folder {
 public:
  Folder(const Step& step, const LayerOrder& order, const std::vector<Row>& rows)
      : source_(step),
        entry_(step.module.entry_computation()),
        order_(order),
        row_of_(order.num_layers()),
        number_(order.num_layers(), -1),
        rewriter_(entry_) {
    int num_kept = 0;
    for (const Row& row : rows) {
      for (int layer = row.begin; layer < row.end; ++layer) row_of_[layer] = row;
      for (int i = 0; i < row.num_kept; ++i) number_[row.begin + i] = num_kept++;
    }
    out_.step.num_layers = num_kept;
    for (int layer = 0; layer < order.num_layers(); ++layer)
      out_.layer.push_back(number_[FirstEqual(layer)]);
  }

  std::optional<FoldedStep> Run() && {
    const std::vector<bool> is_kept = FindKept();
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      if (is_kept[id] && !Write(id)) return std::nullopt;
    }
    WriteResults();
    KeepMarks();
    Module module = WithEntry(source_.module, std::move(rewriter_).Finish(std::move(results_)));
    module.aliases.clear();
    for (const Alias& alias : source_.module.aliases) {
      const int result = result_now_[alias.result], parameter = parameter_now_[alias.parameter];
      if (result >= 0 && parameter >= 0)
        module.aliases.push_back({.result = result, .parameter = parameter});
    }
    const std::vector<ComputationId> reachable = ReachableComputations(module);
    out_.step.module = KeepComputations(std::move(module), reachable);
    return std::move(out_);
  }

 private:
  int FirstEqual(int layer) const {
    const Row& row = row_of_[layer];
    return row.begin + (layer - row.begin) % row.num_kept;
  }
  bool IsKept(int layer) const { return number_[layer] >= 0; }

  // By instruction; of those in no layer what others need.
  std::vector<bool> FindKept() const {
    std::vector<bool> is_kept(entry_.instructions.size());
    for (const Value result : entry_.results) is_kept[result.instruction] = true;
    for (InstructionId id = entry_.num_instructions() - 1; id >= 0; --id) {
      const int layer = order_.LayerOf(id);
      if (layer >= 0) is_kept[id] = IsKept(layer);
      if (!is_kept[id]) continue;
      for (const Value operand : entry_.instructions[id].operands)
        is_kept[operand.instruction] = true;
    }
    return is_kept;
  }

  // False: it reads what is left out, which nothing stands for. Sums over layers lose terms.
  bool Write(InstructionId id) {
    const Instruction& instruction = entry_.instructions[id];
    const int layer = order_.LayerOf(id);
    std::vector<Value> operands;
    for (const Value operand : instruction.operands) {
      const std::optional<Value> instead = InsteadOf(operand, layer);
      if (instead && rewriter_.IsMapped(instead->instruction))
        operands.push_back(rewriter_.Now(*instead));
    }
    if (operands.size() == instruction.operands.size()) {
      WriteFrom(id, std::move(operands));
      return true;
    }
    const bool is_sum = instruction.opcode == Opcode::kAdd || instruction.opcode == Opcode::kAnd;
    if (!is_sum || !order_.ReadsSeveral(id)) return false;
    // What is mapped to nothing is left out, too.
    if (!operands.empty()) rewriter_.Map({id, 0}, operands.front());
    return true;
  }

  void WriteFrom(InstructionId id, std::vector<Value> operands) {
    Instruction copy = entry_.instructions[id];
    copy.operands = std::move(operands);
    if (copy.part.layer >= 0) copy.part.layer = number_[copy.part.layer];
    if (copy.opcode == Opcode::kParameter) {
      int64_t& number = std::get<ParameterAttributes>(copy.attributes).number;
      parameters_.push_back(static_cast<int>(number));
      number = static_cast<int64_t>(parameters_.size()) - 1;
    }
    rewriter_.Map(id, rewriter_.Append(std::move(copy)));
  }

  // What an instruction of the layer reads for it; nullopt: nothing.
  std::optional<Value> InsteadOf(Value value, int reader) const {
    const int layer = order_.LayerOf(value.instruction);
    if (layer < 0 || IsKept(layer)) return value;
    const Row& row = row_of_[layer];
    const int behind = layer - row.begin - row.num_kept;  // those that stay
    int instead = -1;
    // What stays reads what is behind the row, as the last of it do; that reads what stays.
    if (row.begin <= reader && reader < row.begin + row.num_kept && behind < row.num_kept)
      instead = row.end + behind;
    if (reader >= row.end && layer >= row.end - row.num_kept) instead = FirstEqual(layer);
    if (instead < 0 || instead >= order_.num_layers() || !IsKept(instead)) return std::nullopt;
    const std::vector<InstructionId>& there = order_.InstructionsOf(instead);
    const auto position = static_cast<size_t>(order_.PositionOf(value.instruction));
    if (position >= there.size()) return std::nullopt;
    return Value{there[position], value.result};
  }

  void WriteResults() {
    result_now_.assign(entry_.results.size(), -1);
    for (size_t i = 0; i < entry_.results.size(); ++i) {
      if (!rewriter_.IsMapped(entry_.results[i].instruction)) continue;
      result_now_[i] = static_cast<int>(results_.size());
      results_.push_back(rewriter_.Now(entry_.results[i]));
      out_.step.results.push_back(source_.results[i]);
    }
    parameter_now_.assign(source_.parameters.size(), -1);
    for (size_t now = 0; now < parameters_.size(); ++now) {
      parameter_now_[parameters_[now]] = static_cast<int>(now);
      ParameterInfo& info = out_.step.parameters.emplace_back(source_.parameters[parameters_[now]]);
      if (info.state_result >= 0) info.state_result = result_now_[info.state_result];
    }
  }

  void KeepMarks() {
    for (Mark mark : source_.marks) {
      if (!rewriter_.IsMapped(mark.value.instruction)) continue;
      mark.value = rewriter_.Now(mark.value);
      if (mark.kind == MarkKind::kGradient) {
        mark.index = parameter_now_[mark.index];
        if (mark.index < 0) continue;
      }
      out_.step.marks.push_back(mark);
    }
    std::ranges::sort(out_.step.marks, {}, &Mark::value);
  }

  const Step& source_;
  const Computation& entry_;
  const LayerOrder& order_;
  std::vector<Row> row_of_;  // by layer
  std::vector<int> number_;  // by layer: among those that are kept; -1: it is not
  Rewriter rewriter_;
  std::vector<Value> results_;
  std::vector<int> parameters_;                  // by parameter written: that of the source
  std::vector<int> result_now_, parameter_now_;  // by that of the source; -1: left out
  FoldedStep out_;
};

}  // namespace

std::optional<FoldedStep> FoldLayers(const Step& simplified) {
  if (simplified.num_layers.value_or(0) == 0) return std::nullopt;
  const LayerOrder order(simplified);
  const std::vector<Row> rows = FindRows(LayerHashes(simplified, order).Find());
  const bool repeats =
      std::ranges::any_of(rows, [](const Row& row) { return row.end - row.begin > row.num_kept; });
  if (!repeats) return std::nullopt;
  return Folder(simplified, order, rows).Run();
}

}  // namespace minka
