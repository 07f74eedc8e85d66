#include "minka/lowering/release_operands.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "minka/ir/rewriter.h"
#include "minka/lowering/join_barriers.h"
#include "minka/lowering/last_reads.h"

namespace minka {
namespace {

// Makes one value of another one that frees as much when it is dropped.
bool IsStep(const Instruction& instruction) {
  return IsElementwise(instruction.opcode) || IsView(instruction) ||
         (Family(instruction.opcode) == OpFamily::kCollective && instruction.results.size() == 1);
}

// `last` are done before `next`.
struct Wait {
  std::vector<Value> last;
  InstructionId next = -1;
  int operand = 0;  // of `next`: what passes the barrier with `last`
};

class Waits {
 public:
  explicit Waits(const Computation& computation)
      : computation_(computation), uses_(computation), reads_(computation, uses_) {}

  std::vector<Wait> Find() const {
    std::vector<Wait> waits;
    std::vector<InstructionId> since;  // what may free memory, from the last heavy instruction on
    for (InstructionId id = 0; id < computation_.num_instructions(); ++id) {
      const Instruction& instruction = computation_.instructions[id];
      if (const auto value = GatheredFor(id)) waits.push_back({.last = {*value}, .next = id});
      if (IsHeavy(instruction)) {
        if (auto wait = Between(since, id)) waits.push_back(*std::move(wait));
        since.clear();
      }
      if (IsHeavy(instruction) || instruction.opcode == Opcode::kReduce) since.push_back(id);
    }
    return waits;
  }

 private:
  // What the first of several dots multiplies a gather of state with, which the gather can wait
  // for: as it depends on nothing, it would be the first that is done.
  std::optional<Value> GatheredFor(InstructionId id) const {
    const Instruction& gather = computation_.instructions[id];
    if (gather.opcode != Opcode::kAllGather) return std::nullopt;
    const Value state = reads_.Source(gather.operands[0]);
    if (computation_.instruction(state).opcode != Opcode::kParameter) return std::nullopt;
    std::set<InstructionId> readers;
    AddHeavyReaders({id, 0}, readers);
    if (readers.size() < 2) return std::nullopt;
    for (const Value operand : computation_.instructions[*readers.begin()].operands) {
      const Value source = reads_.Source(operand);
      if (source.instruction < id && !IsFree(computation_.instruction(source))) return source;
    }
    return std::nullopt;
  }

  void AddHeavyReaders(Value value, std::set<InstructionId>& readers) const {
    for (const Use& use : uses_.uses(value)) {
      const Instruction& user = computation_.instructions[use.user];
      if (IsHeavy(user)) readers.insert(use.user);
      if (IsView(user) || user.opcode == Opcode::kOptBarrier) {
        AddHeavyReaders({use.user, 0}, readers);
      }
    }
  }

  std::optional<Wait> Between(const std::vector<InstructionId>& since, InstructionId next) const {
    Wait wait{.next = next};
    for (const InstructionId id : since) {
      if (reads_.Demand(id) <= next || !reads_.FreesMemory(id)) continue;
      if (const auto value = ReadLater(id, next)) wait.last.push_back(*value);
    }
    const std::vector<Value>& operands = computation_.instructions[next].operands;
    for (; wait.operand < static_cast<int>(operands.size()); ++wait.operand) {
      if (IsFree(computation_.instruction(reads_.Source(operands[wait.operand])))) continue;
      if (wait.last.empty()) break;
      return wait;
    }
    return std::nullopt;
  }

  // What `next` can wait for: the result, or the end of the chain of single readers in front of
  // `next`, such as the reduce-scatter of a gradient; nullopt if nobody reads it afterwards.
  std::optional<Value> ReadLater(InstructionId id, InstructionId next) const {
    Value value{id, 0};
    while (!uses_.is_result(value) && uses_.uses(value).size() == 1) {
      const InstructionId user = uses_.uses(value).front().user;
      const Instruction& instruction = computation_.instructions[user];
      if (user > next || !IsStep(instruction)) break;
      value = {user, 0};
    }
    const auto is_later = [&](const Use& use) { return use.user > next; };
    if (uses_.is_result(value) || std::ranges::any_of(uses_.uses(value), is_later)) return value;
    return std::nullopt;
  }

  const Computation& computation_;
  const UseTable uses_;
  const LastReads reads_;
};

// Writes the computation with its waits.
class WaitWriter {
 public:
  explicit WaitWriter(const Computation& computation)
      : source_(computation), rewriter_(computation) {}

  Computation Write(const std::vector<Wait>& waits) && {
    auto wait = waits.begin();
    for (InstructionId id = 0; id < source_.num_instructions(); ++id) {
      if (wait == waits.end() || wait->next != id) {
        rewriter_.Copy(id);
        continue;
      }
      const Value passed = WriteBarrier(*wait);
      Instruction instruction = rewriter_.Translated(id);
      instruction.operands[(wait++)->operand] = passed;
      rewriter_.Map(id, rewriter_.Append(std::move(instruction)));
    }
    return std::move(rewriter_).Finish();
  }

 private:
  // What reads `wait.last` from now on reads it behind the barrier; returns the operand of
  // `wait.next`, behind it as well.
  Value WriteBarrier(const Wait& wait) {
    const std::string tag = fmt::format("last use {}", num_barriers_++);
    for (const Value value : wait.last) rewriter_.Map(value, Lane(rewriter_.Now(value), tag));
    return Behind(source_.instructions[wait.next].operands[wait.operand], tag);
  }

  Value Behind(Value value, const std::string& tag) {
    Instruction view = source_.instruction(value);
    if (!IsView(view)) return Lane(rewriter_.Now(value), tag);
    view.operands[0] = Behind(view.operands[0], tag);
    view.name = rewriter_.NewName(view.name);
    return rewriter_.AppendOne(std::move(view));
  }

  Value Lane(Value value, const std::string& tag) {
    const Instruction& producer = rewriter_.copy().instruction(value);
    return rewriter_.AppendOne({.opcode = Opcode::kOptBarrier,
                                .name = rewriter_.NewName("last_use"),
                                .operands = {value},
                                .results = {rewriter_.copy().shape(value)},
                                .op_name = producer.op_name,
                                .frontend_attributes = {{kBarrierAttribute, tag}}});
  }

  const Computation& source_;
  Rewriter rewriter_;
  int num_barriers_ = 0;
};

}  // namespace

Module ReleaseOperands(const Module& module) {
  Module out = module;
  for (Computation& computation : out.computations) {
    const Computation source = computation;
    const std::vector<Wait> waits = Waits(source).Find();
    if (!waits.empty()) computation = WaitWriter(source).Write(waits);
  }
  return out;
}

}  // namespace minka
