#include "minka/analysis/xla_cpu_loops.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "minka/ir/rewriter.h"

namespace minka {
namespace {

enum class Place : uint8_t {
  kInside,   // changes from turn to turn
  kEither,   // does not, and is made inside
  kInFront,  // does not, and is worth moving
};

bool IsWorthMoving(Opcode opcode) {
  switch (opcode) {
    case Opcode::kBroadcast:
    case Opcode::kIota:
    case Opcode::kReshape:
    case Opcode::kReverse:
    case Opcode::kSlice:
    case Opcode::kTranspose:
      return false;
    default:
      return true;
  }
}

bool CanMove(const Instruction& instruction) {
  switch (instruction.opcode) {
    case Opcode::kAllGather:
    case Opcode::kAllReduce:
    case Opcode::kBitcastConvert:
    case Opcode::kBroadcast:
    case Opcode::kConcatenate:
    case Opcode::kConvolution:
    case Opcode::kDot:
    case Opcode::kDynamicSlice:
    case Opcode::kDynamicUpdateSlice:
    case Opcode::kGather:
    case Opcode::kIota:
    case Opcode::kOptBarrier:
    case Opcode::kPad:
    case Opcode::kReduce:
    case Opcode::kReduceScatter:
    case Opcode::kReshape:
    case Opcode::kReverse:
    case Opcode::kSlice:
    case Opcode::kTranspose:
      return instruction.results.size() == 1;
    default:
      return IsElementwise(instruction.opcode);
  }
}

// A loop and what moves.
class LoopMoves {
 public:
  LoopMoves(const Computation& outer, const Instruction& loop, const Computation& body,
            const Computation& condition)
      : outer_(outer), loop_(loop), body_(body), condition_(condition), uses_(body) {
    for (size_t i = 0; i < body.parameters.size(); ++i) {
      const bool never_changes = body.results[i] == Value{body.parameters[i], 0};
      is_invariant_.push_back(never_changes);
      is_constant_.push_back(never_changes && IsConstant(loop.operands[i]));
    }
    FindPlaces();
    const std::vector<bool> read_inside = ReadInside();
    for (InstructionId id = 0; id < body.num_instructions(); ++id) {
      if (place_[id] == Place::kInFront && read_inside[id]) carried_.push_back(id);
    }
    const UseTable condition_uses(condition);
    for (size_t i = 0; i < body.parameters.size(); ++i) {
      bool is_read = !condition_uses.uses({condition.parameters[i], 0}).empty();
      for (const Use& use : uses_.uses({body.parameters[i], 0})) {
        is_read =
            is_read || place_[use.user] == Place::kInside || place_[use.user] == Place::kEither;
      }
      is_kept_.push_back(!is_invariant_[i] || (is_read && !is_constant_[i]));
    }
  }

  bool is_invariant(size_t i) const { return is_invariant_[i]; }
  bool is_kept(size_t i) const { return is_kept_[i]; }
  const std::vector<InstructionId>& carried() const { return carried_; }

  // What is moved in front of the loop, in order.
  std::vector<InstructionId> InFront() const {
    std::set<InstructionId> needed;
    std::vector<InstructionId> open = carried_;
    while (!open.empty()) {
      const InstructionId id = open.back();
      open.pop_back();
      if (body_.instructions[id].opcode == Opcode::kParameter || !needed.insert(id).second)
        continue;
      for (const Value operand : body_.instructions[id].operands)
        open.push_back(operand.instruction);
    }
    return {needed.begin(), needed.end()};
  }

  Computation NewBody() const {
    Rewriter rewriter(body_);
    int64_t number = 0;
    for (size_t i = 0; i < body_.parameters.size(); ++i) {
      const InstructionId id = body_.parameters[i];
      if (is_kept_[i]) {
        rewriter.Map({id, 0}, AddParameter(rewriter, body_.instructions[id], number++));
      } else if (is_constant_[i]) {
        Instruction constant = outer_.instruction(loop_.operands[i]);
        if (constant.opcode == Opcode::kBroadcast) {
          constant.operands = {rewriter.AppendOne(outer_.instruction(constant.operands[0]))};
        }
        rewriter.Map({id, 0}, rewriter.AppendOne(std::move(constant)));
      }
    }
    std::vector<Value> moved;
    for (const InstructionId id : carried_) {
      moved.push_back(AddParameter(rewriter, body_.instructions[id], number++));
      rewriter.Map({id, 0}, moved.back());
    }
    for (InstructionId id = 0; id < body_.num_instructions(); ++id) {
      const Instruction& instruction = body_.instructions[id];
      if (instruction.opcode == Opcode::kParameter || rewriter.IsMapped(id)) continue;
      const bool is_read_in_front_alone =
          place_[id] == Place::kInFront ||
          std::ranges::any_of(instruction.operands, [&](Value operand) {
            return !rewriter.IsMapped(operand.instruction);
          });
      if (!is_read_in_front_alone) rewriter.Copy(id);
    }
    std::vector<Value> results;
    for (size_t i = 0; i < body_.results.size(); ++i) {
      if (is_kept_[i]) results.push_back(rewriter.Now(body_.results[i]));
    }
    results.insert(results.end(), moved.begin(), moved.end());
    return std::move(rewriter).Finish(std::move(results));
  }

  Computation NewCondition() const {
    Rewriter rewriter(condition_);
    int64_t number = 0;
    for (size_t i = 0; i < condition_.parameters.size(); ++i) {
      const InstructionId id = condition_.parameters[i];
      if (!is_kept_[i]) continue;
      rewriter.Map({id, 0}, AddParameter(rewriter, condition_.instructions[id], number++));
    }
    for (const InstructionId id : carried_) {
      AddParameter(rewriter, body_.instructions[id], number++);
    }
    for (InstructionId id = 0; id < condition_.num_instructions(); ++id) {
      if (condition_.instructions[id].opcode != Opcode::kParameter) rewriter.Copy(id);
    }
    return std::move(rewriter).Finish();
  }

 private:
  static Value AddParameter(Rewriter& rewriter, const Instruction& like, int64_t number) {
    return rewriter.AppendOne({.opcode = Opcode::kParameter,
                               .name = like.name,
                               .results = like.results,
                               .attributes = ParameterAttributes{number}});
  }

  bool IsConstant(Value value) const {
    const Instruction* instruction = &outer_.instruction(value);
    if (instruction->opcode == Opcode::kBroadcast) {
      instruction = &outer_.instruction(instruction->operands[0]);
    }
    return instruction->opcode == Opcode::kConstant;
  }

  void FindPlaces() {
    place_.assign(body_.num_instructions(), Place::kInside);
    for (size_t i = 0; i < body_.parameters.size(); ++i) {
      if (is_invariant_[i]) place_[body_.parameters[i]] = Place::kEither;
    }
    for (InstructionId id = 0; id < body_.num_instructions(); ++id) {
      const Instruction& instruction = body_.instructions[id];
      if (instruction.opcode == Opcode::kParameter) continue;
      if (instruction.opcode == Opcode::kConstant) {
        place_[id] = Place::kEither;
        continue;
      }
      const bool stays =
          !CanMove(instruction) || std::ranges::any_of(instruction.operands, [&](Value operand) {
            return place_[operand.instruction] == Place::kInside;
          });
      if (stays) continue;
      place_[id] = IsWorthMoving(instruction.opcode) ? Place::kInFront : Place::kEither;
    }
  }

  // By instruction: is a result read in the loop, by itself or through what is made there anyway?
  std::vector<bool> ReadInside() const {
    std::vector<bool> read(body_.num_instructions());
    for (InstructionId id = body_.num_instructions(); id-- > 0;) {
      for (int32_t i = 0; i < static_cast<int32_t>(body_.instructions[id].results.size()); ++i) {
        read[id] = read[id] || uses_.is_result({id, i});
        for (const Use& use : uses_.uses({id, i})) {
          const bool is_here = place_[use.user] == Place::kInside ||
                               (place_[use.user] == Place::kEither && read[use.user]);
          read[id] = read[id] || is_here;
        }
      }
    }
    return read;
  }

  const Computation& outer_;
  const Instruction& loop_;
  const Computation& body_;
  const Computation& condition_;
  const UseTable uses_;
  std::vector<bool> is_invariant_, is_constant_, is_kept_;  // by carried value
  std::vector<Place> place_;                                // by instruction of the body
  std::vector<InstructionId> carried_;                      // moved in front and read inside
};

class Mover {
 public:
  Mover(Module& module, ComputationId id)
      : module_(module), source_(module.computations[id]), rewriter_(source_) {}

  Computation Run() && {
    for (InstructionId id = 0; id < source_.num_instructions(); ++id) {
      if (source_.instructions[id].opcode == Opcode::kWhile) {
        rewriter_.Map(id, WriteLoop(source_.instructions[id], rewriter_.Translated(id)));
      } else {
        rewriter_.Copy(id);
      }
    }
    return std::move(rewriter_).Finish();
  }

 private:
  std::vector<Value> WriteLoop(const Instruction& loop, Instruction written) {
    const Computation body = module_.computations[loop.called[0]];
    const Computation condition = module_.computations[loop.called[1]];
    const LoopMoves moves(source_, loop, body, condition);
    std::map<InstructionId, Value> in_front;
    for (size_t i = 0; i < body.parameters.size(); ++i) {
      in_front[body.parameters[i]] = written.operands[i];
    }
    for (const InstructionId id : moves.InFront()) {
      Instruction instruction = body.instructions[id];
      for (Value& operand : instruction.operands) operand = in_front.at(operand.instruction);
      in_front[id] = rewriter_.AppendOne(std::move(instruction));
    }
    std::vector<Value> operands, results(loop.results.size());
    std::vector<Shape> shapes;
    const InstructionId place = rewriter_.copy().num_instructions();
    for (size_t i = 0; i < loop.results.size(); ++i) {
      results[i] = moves.is_invariant(i) ? written.operands[i]
                                         : Value{place, static_cast<int32_t>(operands.size())};
      if (!moves.is_kept(i)) continue;
      operands.push_back(written.operands[i]);
      shapes.push_back(loop.results[i]);
    }
    for (const InstructionId id : moves.carried()) {
      operands.push_back(in_front.at(id));
      shapes.push_back(body.instructions[id].shape());
    }
    written.operands = std::move(operands);
    written.results = std::move(shapes);
    // Another loop may have the same body and carry other values.
    written.called = {static_cast<ComputationId>(module_.computations.size()),
                      static_cast<ComputationId>(module_.computations.size() + 1)};
    rewriter_.AppendOne(std::move(written));
    module_.computations.push_back(moves.NewBody());
    module_.computations.push_back(moves.NewCondition());
    return results;
  }

  Module& module_;
  const Computation source_;
  Rewriter rewriter_;
};

}  // namespace

Module MoveLoopInvariants(const Module& module) {
  Module out = module;
  for (ComputationId id = 0; id < static_cast<ComputationId>(out.computations.size()); ++id) {
    const bool has_loops = std::ranges::any_of(
        out.computations[id].instructions,
        [](const Instruction& instruction) { return instruction.opcode == Opcode::kWhile; });
    if (has_loops) out.computations[id] = Mover(out, id).Run();
  }
  return out;
}

}  // namespace minka
