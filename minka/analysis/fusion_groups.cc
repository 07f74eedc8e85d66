#include "minka/analysis/fusion_groups.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <span>

#include "minka/analysis/flops.h"
#include "minka/analysis/fusion_parts.h"

namespace minka {
namespace {

// Division counts as cheap for floats only, as in XLA.
bool IsCheap(const Instruction& instruction) {
  switch (instruction.opcode) {
    case Opcode::kReduce:
      return false;
    case Opcode::kDivide:
    case Opcode::kRemainder:
      return IsFloat(instruction.shape().type);
    default:
      return ElementWeight(instruction.opcode) < 4;
  }
}

// May be computed element by element inside its reader's loop.
bool CanBeProducer(const Instruction& instruction) {
  return MakesElementByElement(instruction) ||
         (instruction.opcode == Opcode::kReduce && instruction.results.size() == 1);
}

// What a reduce takes in.
bool IsSimpleProducer(Opcode opcode) {
  return IsElementwise(opcode) || opcode == Opcode::kBroadcast || opcode == Opcode::kIota ||
         opcode == Opcode::kReshape;
}

// At most one of its operands has as many dimensions as its result, those aside that are made
// where they are read. Repeating such an instruction reads about as much as it writes.
bool IsAboutUnary(const Computation& computation, const Instruction& instruction) {
  return std::ranges::count_if(instruction.operands, [&](Value operand) {
           const Instruction& producer = computation.instruction(operand);
           const Shape& shape = computation.shape(operand);
           const bool is_made_there =
               producer.opcode == Opcode::kBroadcast || producer.opcode == Opcode::kIota ||
               (producer.opcode == Opcode::kConstant && shape.num_elements() == 1);
           return !is_made_there && shape.rank() >= instruction.shape().rank();
         }) <= 1;
}

}  // namespace

bool TakesIn(const Instruction& reader, int operand, Opcode producer) {
  switch (reader.opcode) {
    case Opcode::kReduce:
      return operand < static_cast<int>(reader.results.size()) && IsSimpleProducer(producer);
    case Opcode::kDynamicUpdateSlice:
      return operand > 0;  // the array itself is updated in place
    default:
      return CanBeProducer(reader);
  }
}

namespace {

class Partitioner {
 public:
  Partitioner(const Computation& computation, FusionRules rules)
      : computation_(computation),
        rules_(rules),
        uses_(computation),
        group_(computation.instructions.size()),
        read_repeatedly_(computation.instructions.size()),
        repeated_(computation.instructions.size()),
        also_repeated_(computation.instructions.size()),
        copies_(computation.instructions.size()) {}

  FusionPartition Run() && {
    for (InstructionId id = computation_.num_instructions() - 1; id >= 0; --id) Place(id);
    JoinViews(computation_, repeated_, group_);
    FusionPartition partition;
    NumberGroups(group_, copies_, partition);
    partition.repeated = std::move(repeated_);
    partition.also_repeated = std::move(also_repeated_);
    return partition;
  }

 private:
  // Groups are named by the last instruction in them until they are numbered.
  void Place(InstructionId id) {
    const Instruction& instruction = computation_.instructions[id];
    group_[id] = id;
    if (instruction.results.size() != 1) return;
    const std::span<const Use> uses = uses_.uses({id, 0});
    if (uses.empty() || uses_.is_result({id, 0})) return;
    const std::set<InstructionId> readers = ReadingGroups(uses);
    if (instruction.opcode == Opcode::kConstant) {
      repeated_[id] = true;
      copies_[id] = readers;
    } else if (!CanBeProducer(instruction)) {
      return;
    } else if (!AllTakeIn(instruction, uses)) {
      if (rules_.repeats_for_some) RepeatWhereTakenIn(id, uses);
      return;
    } else if (readers.size() > 1) {
      if (!MayRepeat(instruction, readers.size())) return;
      repeated_[id] = true;
      copies_[id] = readers;
    }
    group_[id] = group_[uses.front().user];
    read_repeatedly_[id] =
        std::ranges::any_of(uses, [&](const Use& use) { return ReadsRepeatedly(use); });
  }

  // What some readers cannot take in is written for them; others compute it again.
  void RepeatWhereTakenIn(InstructionId id, std::span<const Use> uses) {
    const Instruction& instruction = computation_.instructions[id];
    if (!IsCheap(instruction) || !IsAboutUnary(computation_, instruction)) return;
    std::vector<Use> takers;
    std::ranges::copy_if(uses, std::back_inserter(takers),
                         [&](const Use& use) { return IsTakenIn(instruction, use); });
    if (takers.empty()) return;
    const std::set<InstructionId> readers = ReadingGroups(takers);
    if (!MayRepeat(instruction, readers.size())) return;
    also_repeated_[id] = true;
    copies_[id] = readers;
    copies_[id].insert(id);
  }

  // A reader that is itself repeated stands in several groups.
  std::set<InstructionId> ReadingGroups(std::span<const Use> uses) const {
    std::set<InstructionId> groups;
    for (const Use& use : uses) {
      if (repeated_[use.user] || also_repeated_[use.user]) {
        groups.insert(copies_[use.user].begin(), copies_[use.user].end());
      } else {
        groups.insert(group_[use.user]);
      }
    }
    return groups;
  }

  bool MayRepeat(const Instruction& instruction, size_t num_copies) const {
    if (!IsCheap(instruction)) return false;
    return num_copies <= static_cast<size_t>(rules_.max_copies) ||
           instruction.opcode == Opcode::kBroadcast || instruction.opcode == Opcode::kIota;
  }

  bool ReadsRepeatedly(const Use& use) const {
    const Instruction& reader = computation_.instructions[use.user];
    const bool widens =
        reader.opcode == Opcode::kBroadcast &&
        computation_.shape(reader.operands[0]).num_elements() < reader.shape().num_elements();
    return widens || read_repeatedly_[use.user];
  }

  bool IsTakenIn(const Instruction& producer, const Use& use) const {
    const Instruction& reader = computation_.instructions[use.user];
    if (rules_.keeps_programs && !RunAsOne(producer.part, reader.part)) return false;
    return TakesIn(reader, use.operand, producer.opcode);
  }

  bool AllTakeIn(const Instruction& producer, std::span<const Use> uses) const {
    return std::ranges::all_of(uses, [&](const Use& use) {
      return IsTakenIn(producer, use) && (IsCheap(producer) || !ReadsRepeatedly(use));
    });
  }

  const Computation& computation_;
  const FusionRules rules_;
  UseTable uses_;
  std::vector<InstructionId> group_;
  std::vector<bool> read_repeatedly_;  // its elements are needed several times inside its group
  std::vector<bool> repeated_, also_repeated_;
  std::vector<std::set<InstructionId>> copies_;  // the groups that a repeated instruction stands in
};

}  // namespace

bool MakesElementByElement(const Instruction& instruction) {
  if (instruction.results.size() != 1) return false;
  switch (instruction.opcode) {
    case Opcode::kBitcastConvert:
    case Opcode::kBroadcast:
    case Opcode::kConcatenate:
    case Opcode::kDynamicSlice:
    case Opcode::kIota:
    case Opcode::kPad:
    case Opcode::kReshape:
    case Opcode::kReverse:
    case Opcode::kSlice:
    case Opcode::kTranspose:
      return true;
    default:
      return IsElementwise(instruction.opcode);
  }
}

void JoinViews(const Computation& computation, const std::vector<bool>& repeated,
               std::vector<InstructionId>& group) {
  for (InstructionId id = 0; id < computation.num_instructions(); ++id) {
    const Instruction& instruction = computation.instructions[id];
    if (instruction.opcode != Opcode::kReshape || group[id] != id) continue;
    const InstructionId viewed = instruction.operands[0].instruction;
    if (!repeated[viewed]) group[id] = group[viewed];
  }
}

void NumberGroups(const std::vector<InstructionId>& group,
                  const std::vector<std::set<InstructionId>>& copies, FusionPartition& partition) {
  std::vector<int> numbers(group.size(), -1);
  for (const InstructionId name : group) {
    int& number = numbers[name];
    if (number < 0) number = partition.num_groups++;
    partition.group.push_back(number);
  }
  for (const std::set<InstructionId>& names : copies) {
    std::vector<int>& numbered = partition.copies.emplace_back();
    for (const InstructionId name : names) numbered.push_back(numbers[name]);
  }
}

bool FusionPartition::IsMaterialised(const UseTable& uses, Value value) const {
  if (uses.is_result(value)) return true;
  if (repeated[value.instruction]) return false;
  return std::ranges::any_of(uses.uses(value), [&](const Use& use) {
    return repeated[use.user] || group[use.user] != group[value.instruction];
  });
}

bool RunAsOne(const StepPart& a, const StepPart& b) {
  const bool is_inside = a.loop != LoopRole::kOutside;
  return a.program == b.program && is_inside == (b.loop != LoopRole::kOutside);
}

FusionPartition PartitionIntoFusions(const Computation& computation, FusionRules rules) {
  if (rules.platform == Platform::kCuda) return PartitionForCuda(computation, rules);
  return Partitioner(computation, rules).Run();
}

}  // namespace minka
