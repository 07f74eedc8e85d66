#include "minka/lowering/rematerialize.h"

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "minka/analysis/layers.h"
#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/ir/call_graph.h"
#include "minka/ir/rewriter.h"
#include "minka/lowering/join_barriers.h"

namespace minka {
namespace {

// What does not depend on the choice.
class LayerFacts {
 public:
  explicit LayerFacts(const Step& step)
      : step_(step),
        entry_(step.module.entry_computation()),
        uses_(entry_),
        varies_(DependsOnMoreThanState(step)) {
    MINKA_CHECK(step.num_layers.has_value(), "a step without its structure");
    if (num_layers() == 0) return;
    FindLeaving();
    FindRepeatable();
    FindLevels();
    FindEnding();
    FindArriving();
  }

  const Computation& entry() const { return entry_; }
  int num_layers() const { return *step_.num_layers; }
  // Of forward operations that depend on inputs; -1: any other.
  int layer(InstructionId id) const {
    const Instruction& instruction = entry_.instructions[id];
    const bool is_operation = instruction.opcode != Opcode::kParameter && varies_[id];
    return is_operation && instruction.part.phase == Phase::kForward ? instruction.part.layer : -1;
  }
  bool varies(Value value) const { return varies_[value.instruction]; }
  std::span<const Use> uses(Value value) const { return uses_.uses(value); }
  bool IsBackward(InstructionId id) const {
    return entry_.instructions[id].part.phase == Phase::kBackward;
  }

  // The layer whose backward pass the backward operation is part of. Falls along every edge.
  int level(InstructionId id) const { return levels_[id]; }

  // A backward operation, such as a weight's gradient, that no operation of a lower layer reads.
  bool EndsHere(InstructionId id) const { return ends_here_[id]; }

  // Gradients that the layer's backward operations get from those of higher ones.
  const std::set<Value>& arriving(int layer) const { return arriving_[layer]; }

  // Would `policy` compute the value again?
  bool IsRepeated(Value value, RematPolicy policy) const {
    const InstructionId id = value.instruction;
    if (policy == RematPolicy::kNone || !repeatable_[id]) return false;
    return policy == RematPolicy::kAll || !IsKeptWithDots(entry_.instructions[id].opcode);
  }

 private:
  static bool IsKeptWithDots(Opcode opcode) {
    switch (opcode) {
      case Opcode::kConditional:
      case Opcode::kConvolution:
      case Opcode::kDot:
      case Opcode::kSort:
      case Opcode::kWhile:
        return true;
      default:
        return false;
    }
  }

  void FindLeaving() {
    leaves_layer_.assign(entry_.instructions.size(), false);
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      if (layer(id) < 0) continue;
      for (const Value operand : entry_.instructions[id].operands) {
        if (layer(operand.instruction) != layer(id)) leaves_layer_[operand.instruction] = true;
      }
    }
  }

  void FindRepeatable() {
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      repeatable_.push_back(layer(id) >= 0 && !leaves_layer_[id] && !IsResult(id) &&
                            GivesTheSameAgain(step_.module, entry_.instructions[id]));
    }
  }
  bool IsResult(InstructionId id) const {
    const auto num_results = static_cast<int32_t>(entry_.instructions[id].results.size());
    for (int32_t i = 0; i < num_results; ++i) {
      if (uses_.is_result({id, i})) return true;
    }
    return false;
  }

  // Where the step's structure has it, or in a lower layer: what reads a layer's copies waits for
  // the gradient that they wait for, and so does what reads its result.
  void FindLevels() {
    levels_.assign(entry_.instructions.size(), -1);
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      if (!IsBackward(id)) continue;
      const auto lower = [&](int layer) {
        if (layer >= 0) levels_[id] = levels_[id] < 0 ? layer : std::min(levels_[id], layer);
      };
      lower(entry_.instructions[id].part.layer);
      for (const Value operand : entry_.instructions[id].operands) {
        if (IsBackward(operand.instruction)) lower(level(operand.instruction));
        if (!leaves_layer_[operand.instruction]) lower(layer(operand.instruction));
      }
    }
  }

  // Backwards, because an operation ends here only if its readers do.
  void FindEnding() {
    ends_here_.assign(entry_.instructions.size(), false);
    for (InstructionId id = entry_.num_instructions() - 1; id >= 0; --id) {
      if (!IsBackward(id) || level(id) < 0) continue;
      bool ends = true;
      for (int32_t i = 0; i < static_cast<int32_t>(entry_.instructions[id].results.size()); ++i) {
        for (const Use& use : uses_.uses({id, i})) {
          if (!IsBackward(use.user)) continue;
          ends = ends && ends_here_[use.user] && level(use.user) == level(id);
        }
      }
      ends_here_[id] = ends;
    }
  }
  bool IsGradient(Value value) const {
    return IsBackward(value.instruction) && level(value.instruction) >= 0;
  }

  void FindArriving() {
    arriving_.resize(num_layers());
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      if (!IsBackward(id) || level(id) < 0) continue;
      for (const Value operand : entry_.instructions[id].operands) {
        if (IsGradient(operand) && level(operand.instruction) > level(id)) {
          arriving_[level(id)].insert(operand);
        }
      }
    }
  }

  const Step& step_;
  const Computation& entry_;
  const UseTable uses_;
  // By instruction:
  const std::vector<bool> varies_;
  std::vector<bool> leaves_layer_;  // read by forward operations of another layer
  std::vector<bool> repeatable_;
  std::vector<int> levels_;      // of backward operations; -1: reads and belongs to no layer
  std::vector<bool> ends_here_;  // by instruction: read by no lower layer
  std::vector<std::set<Value>> arriving_;  // by layer
};

// What a choice makes of each layer.
class Repetitions {
 public:
  Repetitions(const LayerFacts& facts, RematChoice policies)
      : facts_(facts), policies_(std::move(policies)), entering_(policies_.size()) {
    for (int layer = 0; layer < facts.num_layers(); ++layer) {
      if (facts.arriving(layer).empty()) policies_[layer] = RematPolicy::kNone;
    }
    for (InstructionId id = 0; id < facts.entry().num_instructions(); ++id) {
      if (!facts.IsBackward(id)) continue;
      for (const Value operand : facts.entry().instructions[id].operands) Need(operand);
    }
  }

  // The backward pass reads a copy of it.
  bool IsRepeated(Value value) const { return repeated_.contains(value.instruction); }
  bool RepeatsAnythingOf(int layer) const { return !entering_[layer].empty(); }
  // What the layer's copies are computed from.
  const std::set<Value>& entering(int layer) const { return entering_[layer]; }

 private:
  void Need(Value value) {
    const int layer = facts_.layer(value.instruction);
    if (layer < 0 || !facts_.IsRepeated(value, policies_[layer])) return;
    if (!repeated_.insert(value.instruction).second) return;
    for (const Value operand : facts_.entry().instruction(value).operands) {
      Need(operand);
      if (facts_.varies(operand) && !IsRepeated(operand)) entering_[layer].insert(operand);
    }
  }

  const LayerFacts& facts_;
  RematChoice policies_;
  std::set<InstructionId> repeated_;
  std::vector<std::set<Value>> entering_;  // by layer
};

// Writes the step anew, every instruction behind what it reads now.
class RematWriter {
 public:
  RematWriter(const Step& step, const LayerFacts& facts, const Repetitions& repetitions)
      : facts_(facts),
        repetitions_(repetitions),
        entry_(facts.entry()),
        rewriter_(entry_),
        lanes_(facts.num_layers()),
        waiting_for_barrier_(facts.num_layers()),
        out_(step) {
    FindWaiting();
  }

  Step Run() && {
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      if (waits_until_[id] < id) Write(id);
    }
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) Write(id);
    for (Mark& mark : out_.marks) mark.value = rewriter_.Now(mark.value);
    out_.module.entry_computation() = std::move(rewriter_).Finish();
    out_.marks.insert(out_.marks.end(), regions_.begin(), regions_.end());
    std::ranges::stable_sort(out_.marks, {}, &Mark::value);
    return std::move(out_);
  }

 private:
  // Some frontends put what the backward pass makes of forward values alone into the forward pass.
  // Where it reads copies it is written when it is needed, behind what the copies wait for.
  void FindWaiting() {
    std::vector<InstructionId> last_arriving(facts_.num_layers(), -1);
    for (int layer = 0; layer < facts_.num_layers(); ++layer) {
      for (const Value value : facts_.arriving(layer)) {
        last_arriving[layer] = std::max(last_arriving[layer], value.instruction);
      }
    }
    waits_until_.assign(entry_.instructions.size(), -1);
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      if (!facts_.IsBackward(id)) continue;
      InstructionId& until = waits_until_[id];
      for (const Value operand : entry_.instructions[id].operands) {
        until = std::max(until, waits_until_[operand.instruction]);
        if (!repetitions_.IsRepeated(operand)) continue;
        until = std::max(until, last_arriving[facts_.layer(operand.instruction)]);
      }
    }
  }

  void Write(InstructionId id) {
    const Instruction& original = entry_.instructions[id];
    if (!begun_.insert(id).second) {
      MINKA_CHECK(original.results.empty() || rewriter_.IsMapped(id),
                  "rematerialisation makes {} wait for itself", original.name);
      return;
    }
    Instruction instruction = original;
    for (Value& operand : instruction.operands) operand = ReadBy(id, operand);
    if (facts_.IsBackward(id)) {
      const int level = facts_.level(id);
      // Where the structure has it in a higher layer, which a pipeline may run before.
      if (level >= 0 && repetitions_.RepeatsAnythingOf(level)) instruction.part.layer = level;
    }
    rewriter_.Map(id, rewriter_.Append(std::move(instruction)));
    if (!facts_.IsBackward(id)) return;
    written_.push_back(id);
    WriteReady();
  }

  // Weights' gradients as soon as the gradients that they read are there: they free what their
  // layer's copies need. Modules may have them in any order behind. What waits for these gradients
  // may have begun to be written.
  void WriteReady() {
    if (std::exchange(writes_ready_, true)) return;
    while (!written_.empty() || !freed_.empty()) {
      for (const InstructionId id : std::exchange(freed_, {})) WriteIfReady(id);
      if (written_.empty()) continue;
      const InstructionId id = written_.back();
      written_.pop_back();
      const auto num_results = static_cast<int32_t>(entry_.instructions[id].results.size());
      for (int32_t i = 0; i < num_results; ++i) {
        for (const Use& use : facts_.uses({id, i})) WriteIfReady(use.user);
      }
    }
    writes_ready_ = false;
  }
  void WriteIfReady(InstructionId id) {
    if (!facts_.EndsHere(id) || begun_.contains(id)) return;
    const std::vector<Value>& operands = entry_.instructions[id].operands;
    const bool has_gradients = std::ranges::all_of(operands, [&](Value operand) {
      return !facts_.IsBackward(operand.instruction) || rewriter_.IsMapped(operand.instruction);
    });
    if (!has_gradients) return;
    for (const Value operand : operands) {
      const int layer = BarrierInFrontOf(id, operand);
      if (layer < 0 || BarrierMayStand(layer)) continue;
      waiting_for_barrier_[layer].push_back(id);
      return;
    }
    Write(id);
  }

  // The layer whose barrier the backward operation reads the value behind; -1: of none.
  int BarrierInFrontOf(InstructionId reader, Value value) const {
    if (repetitions_.IsRepeated(value)) return facts_.layer(value.instruction);
    const int level = facts_.level(reader);
    return level >= 0 && IsLane(level, value) ? level : -1;
  }
  // Without writing what gradients of higher layers wait for.
  bool BarrierMayStand(int layer) const {
    return !lanes_[layer].empty() || std::ranges::all_of(facts_.arriving(layer), [&](Value value) {
      return rewriter_.IsMapped(value.instruction);
    });
  }

  Value ReadBy(InstructionId reader, Value value) {
    if (facts_.IsBackward(reader)) {
      if (repetitions_.IsRepeated(value)) return Copy(value);
      const int level = facts_.level(reader);
      if (level >= 0 && IsLane(level, value)) {
        return Lane(level, value);
      }
    }
    Write(value.instruction);
    return rewriter_.Now(value);
  }

  bool IsLane(int layer, Value value) const {
    return repetitions_.RepeatsAnythingOf(layer) &&
           (repetitions_.entering(layer).contains(value) || facts_.arriving(layer).contains(value));
  }

  // The value behind the layer's barrier.
  Value Lane(int layer, Value value) {
    if (lanes_[layer].empty()) WriteBarrier(layer);
    return lanes_[layer].at(value);
  }

  void WriteBarrier(int layer) {
    std::set<Value> values = repetitions_.entering(layer);
    values.insert(facts_.arriving(layer).begin(), facts_.arriving(layer).end());
    for (const Value value : values) Write(value.instruction);
    if (!lanes_[layer].empty()) return;  // by a weight's gradient that one of these made ready
    for (const Value value : values) {
      const Instruction& producer = entry_.instruction(value);
      lanes_[layer][value] = rewriter_.AppendOne(
          {.opcode = Opcode::kOptBarrier,
           .name = rewriter_.NewName("remat"),
           .operands = {rewriter_.Now(value)},
           .results = {entry_.shape(value)},
           .op_name = "recompute/" + producer.op_name,
           .frontend_attributes = {{kBarrierAttribute, fmt::format("remat {}", layer)}},
           .part = {Phase::kBackward, layer}});
    }
    regions_.push_back(
        {.kind = MarkKind::kRematRegion, .value = lanes_[layer].begin()->second, .index = layer});
    for (const InstructionId id : waiting_for_barrier_[layer]) freed_.push_back(id);
  }

  Value Copy(Value value) {
    const int layer = facts_.layer(value.instruction);
    // First, as gradients that it waits for may make others ready, which read this copy.
    if (lanes_[layer].empty()) WriteBarrier(layer);
    const auto found = copies_.find(value.instruction);
    if (found != copies_.end()) return found->second[value.result];
    Instruction copy = entry_.instruction(value);
    for (Value& operand : copy.operands) {
      if (repetitions_.IsRepeated(operand)) {
        operand = Copy(operand);
      } else if (facts_.varies(operand)) {
        operand = Lane(layer, operand);
      } else {
        Write(operand.instruction);
        operand = rewriter_.Now(operand);
      }
    }
    copy.name = rewriter_.NewName(copy.name);
    copy.op_name = "recompute/" + copy.op_name;
    copy.part.phase = Phase::kBackward;
    return (copies_[value.instruction] = rewriter_.Append(std::move(copy)))[value.result];
  }

  const LayerFacts& facts_;
  const Repetitions& repetitions_;
  const Computation& entry_;
  std::vector<InstructionId> waits_until_;  // by instruction; -1: nothing
  Rewriter rewriter_;
  std::map<InstructionId, std::vector<Value>> copies_;
  std::vector<std::map<Value, Value>> lanes_;                    // by layer
  std::vector<std::vector<InstructionId>> waiting_for_barrier_;  // by layer
  std::vector<InstructionId> freed_;                             // by a barrier, since WriteReady
  std::set<InstructionId> begun_;
  std::vector<InstructionId> written_;  // of the backward pass, since WriteReady
  bool writes_ready_ = false;           // WriteReady runs
  std::vector<Mark> regions_;
  Step out_;
};

bool ChoosesNothing(const RematChoice& choice) {
  return std::ranges::all_of(choice,
                             [](RematPolicy policy) { return policy == RematPolicy::kNone; });
}

absl::StatusOr<RematChoice> ByLayer(const Step& step, const RematChoice& choice, int num_layers) {
  if (num_layers == 0 && !NamesLoss(step)) {
    return InvalidArgument(
        "the step does not say which result is its loss, so there is no telling what its backward "
        "pass could compute again; say so (--loss RESULT) or leave rematerialisation out");
  }
  if (num_layers == 0) {
    return InvalidArgument(
        "the step marks no layer boundaries in front of its loss, and none were found, so no layer "
        "can be rematerialised; mark the values between layers by opt-barriers with the frontend "
        "attribute minka.mark = \"layer_boundary N\", or leave rematerialisation out");
  }
  if (choice.size() == 1) return RematChoice(num_layers, choice.front());
  if (static_cast<int>(choice.size()) != num_layers) {
    return InvalidArgument(
        "rematerialisation is chosen for {} layers; the step has {} (those in front of the first "
        "and behind the last boundary count)",
        choice.size(), num_layers);
  }
  return choice;
}

}  // namespace

absl::StatusOr<RematChoice> EffectiveRemat(const Step& step, const RematChoice& choice) {
  if (ChoosesNothing(choice)) return RematChoice();
  const LayerFacts facts(step);
  ASSIGN_OR_RETURN(RematChoice policies, ByLayer(step, choice, facts.num_layers()));
  const Repetitions all(facts, RematChoice(policies.size(), RematPolicy::kAll));
  for (int layer = 0; layer < facts.num_layers(); ++layer) {
    if (!all.RepeatsAnythingOf(layer)) policies[layer] = RematPolicy::kNone;
  }
  if (!ChoosesNothing(policies)) return policies;
  return InvalidArgument(
      "rematerialisation was asked for, but the layers in question keep nothing for a backward "
      "pass; leave it out");
}

absl::StatusOr<Step> Rematerialize(const Step& step, const RematChoice& choice) {
  ASSIGN_OR_RETURN(RematChoice policies, EffectiveRemat(step, choice));
  if (policies.empty()) return step;
  const LayerFacts facts(step);
  const Repetitions repetitions(facts, std::move(policies));
  return RematWriter(step, facts, repetitions).Run();
}

}  // namespace minka
