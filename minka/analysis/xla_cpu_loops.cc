#include "minka/analysis/xla_cpu_loops.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

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
    Computation out{.name = body_.name};
    std::vector<std::vector<Value>> now(body_.num_instructions());
    const auto append = [&](Instruction instruction) {
      out.instructions.push_back(std::move(instruction));
      return Value{out.num_instructions() - 1, 0};
    };
    const auto add_parameter = [&](const Shape& shape, const std::string& name) {
      const Value value = append({.opcode = Opcode::kParameter, .name = name, .results = {shape}});
      out.instructions.back().attributes =
          ParameterAttributes{static_cast<int64_t>(out.parameters.size())};
      out.parameters.push_back(value.instruction);
      return value;
    };
    for (size_t i = 0; i < body_.parameters.size(); ++i) {
      const InstructionId id = body_.parameters[i];
      if (is_kept_[i]) {
        now[id] = {add_parameter(body_.instructions[id].shape(), body_.instructions[id].name)};
      } else if (is_constant_[i]) {
        Instruction constant = outer_.instruction(loop_.operands[i]);
        if (constant.opcode == Opcode::kBroadcast) {
          Instruction scalar = outer_.instruction(constant.operands[0]);
          constant.operands = {append(std::move(scalar))};
        }
        now[id] = {append(std::move(constant))};
      }
    }
    std::vector<Value> results;
    for (const InstructionId id : carried_) {
      now[id] = {add_parameter(body_.instructions[id].shape(), body_.instructions[id].name)};
      results.push_back(now[id][0]);
    }
    for (InstructionId id = 0; id < body_.num_instructions(); ++id) {
      if (body_.instructions[id].opcode == Opcode::kParameter || !now[id].empty()) continue;
      if (place_[id] == Place::kInFront) continue;
      Instruction instruction = body_.instructions[id];
      bool is_dead = false;
      for (Value& operand : instruction.operands) {
        if (now[operand.instruction].empty()) {
          is_dead = true;
          break;
        }
        operand = now[operand.instruction][operand.result];
      }
      if (is_dead) continue;  // read in front of the loop alone
      const size_t num_results = instruction.results.size();
      const Value first = append(std::move(instruction));
      for (size_t i = 0; i < num_results; ++i) {
        now[id].push_back({first.instruction, static_cast<int32_t>(i)});
      }
    }
    for (size_t i = 0; i < body_.results.size(); ++i) {
      if (!is_kept_[i]) continue;
      const Value result = body_.results[i];
      out.results.push_back(now[result.instruction][result.result]);
    }
    out.results.insert(out.results.end(), results.begin(), results.end());
    return out;
  }

  Computation NewCondition() const {
    Computation out{.name = condition_.name};
    std::vector<InstructionId> now(condition_.num_instructions(), -1);
    for (size_t i = 0; i < condition_.parameters.size(); ++i) {
      if (!is_kept_[i]) continue;
      now[condition_.parameters[i]] = out.num_instructions();
      out.parameters.push_back(out.num_instructions());
      out.instructions.push_back(condition_.instructions[condition_.parameters[i]]);
    }
    for (const InstructionId id : carried_) {
      out.parameters.push_back(out.num_instructions());
      out.instructions.push_back({.opcode = Opcode::kParameter,
                                  .name = body_.instructions[id].name,
                                  .results = body_.instructions[id].results});
    }
    for (InstructionId id = 0; id < condition_.num_instructions(); ++id) {
      if (condition_.instructions[id].opcode == Opcode::kParameter) continue;
      Instruction instruction = condition_.instructions[id];
      for (Value& operand : instruction.operands) operand.instruction = now[operand.instruction];
      now[id] = out.num_instructions();
      out.instructions.push_back(std::move(instruction));
    }
    for (const Value result : condition_.results) {
      out.results.push_back({now[result.instruction], result.result});
    }
    return out;
  }

 private:
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
  Mover(Module& module, ComputationId id) : module_(module), source_(module.computations[id]) {}

  Computation Run() && {
    out_.name = source_.name;
    for (InstructionId id = 0; id < source_.num_instructions(); ++id) {
      Instruction instruction = source_.instructions[id];
      for (Value& operand : instruction.operands) operand = Now(operand);
      if (instruction.opcode == Opcode::kWhile) {
        now_.push_back(WriteLoop(source_.instructions[id], std::move(instruction)));
        continue;
      }
      std::vector<Value>& results = now_.emplace_back();
      for (size_t i = 0; i < instruction.results.size(); ++i) {
        results.push_back({out_.num_instructions(), static_cast<int32_t>(i)});
      }
      out_.instructions.push_back(std::move(instruction));
    }
    for (const InstructionId parameter : source_.parameters) {
      out_.parameters.push_back(now_[parameter][0].instruction);
    }
    for (const Value result : source_.results) out_.results.push_back(Now(result));
    return std::move(out_);
  }

 private:
  Value Now(Value value) const { return now_[value.instruction][value.result]; }

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
      in_front[id] = {out_.num_instructions(), 0};
      out_.instructions.push_back(std::move(instruction));
    }
    std::vector<Value> operands, results(loop.results.size());
    std::vector<Shape> shapes;
    const InstructionId place = out_.num_instructions();
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
    out_.instructions.push_back(std::move(written));
    module_.computations.push_back(moves.NewBody());
    module_.computations.push_back(moves.NewCondition());
    return results;
  }

  Module& module_;
  const Computation source_;
  Computation out_;
  std::vector<std::vector<Value>> now_;  // by value of the source
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
