// What XLA:GPU runs as one kernel, as far as its passes (priority fusion, multi-output fusion,
// fusion of row normalisations by Triton) tell without their cost model:
//   - an elementwise or data-moving producer is computed again by every reader, however expensive,
//     where reading what it reads again moves no more bytes than writing and reading its result;
//   - else, and where a dot or another library call reads it, it is written by the kernel of a
//     reader of the same size: kernels have several results;
//   - reductions of the same value are one kernel;
//   - a reduction of rows is inside the kernel of its readers where these read its rows, too: the
//     kernel holds a whole row.
#include <algorithm>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "minka/analysis/fusion_groups.h"
#include "minka/analysis/fusion_parts.h"

namespace minka {
namespace {

// Elements of a row that one kernel holds: vocabularies are reduced in two kernels.
constexpr int64_t kMostElementsOfRow = 16384;

bool IsProducer(const Instruction& instruction) {
  return MakesElementByElement(instruction) ||
         (instruction.opcode == Opcode::kGather && instruction.results.size() == 1);
}

bool TakesProducersIn(const Instruction& reader, int operand) {
  switch (reader.opcode) {
    case Opcode::kReduce:
      return operand < static_cast<int>(reader.results.size());
    case Opcode::kDynamicUpdateSlice:
    case Opcode::kGather:
    case Opcode::kScatter:
      return operand > 0;  // an array is updated in place, a table looked up, in memory
    default:
      return IsProducer(reader);
  }
}

class CudaPartitioner {
 public:
  CudaPartitioner(const Computation& computation, FusionRules rules)
      : computation_(computation),
        rules_(rules),
        uses_(computation),
        group_(computation.instructions.size()),
        repeated_(computation.instructions.size()),
        copies_(computation.instructions.size()),
        elements_(computation.instructions.size()) {}

  FusionPartition Run() && {
    for (InstructionId id = computation_.num_instructions() - 1; id >= 0; --id) {
      group_[id] = id;
      Place(id);
      elements_[group_[id]] = std::max(elements_[group_[id]], NumElements(id));
    }
    JoinViews(computation_, repeated_, group_);
    FusionPartition partition;
    NumberGroups(group_, copies_, partition);
    partition.repeated = std::move(repeated_);
    partition.also_repeated.resize(group_.size());
    return partition;
  }

 private:
  using Groups = std::set<InstructionId>;

  // The elements that its kernel walks over.
  int64_t NumElements(InstructionId id) const {
    const Instruction& instruction = computation_.instructions[id];
    if (instruction.opcode == Opcode::kReduce) {
      return computation_.shape(instruction.operands[0]).num_elements();
    }
    return instruction.results.empty() ? 0 : instruction.results[0].num_elements();
  }

  // Groups are named by the last instruction in them until they are numbered.
  void Place(InstructionId id) {
    const Instruction& instruction = computation_.instructions[id];
    if (instruction.opcode == Opcode::kReduce) {
      PlaceReduction(id);
      return;
    }
    if (instruction.results.size() != 1) return;
    const std::span<const Use> uses = uses_.uses({id, 0});
    if (uses.empty()) return;
    if (instruction.opcode == Opcode::kConstant) {
      Repeat(id, GroupsOf(uses));
      return;
    }
    if (!IsProducer(instruction)) return;
    std::vector<Use> takers;
    for (const Use& use : uses) {
      if (IsTakenIn(instruction, use)) takers.push_back(use);
    }
    if (takers.empty()) return;
    const Groups readers = GroupsOf(takers);
    const bool vanishes = takers.size() == uses.size() && !uses_.is_result({id, 0});
    if (vanishes && readers.size() == 1) {
      group_[id] = *readers.begin();
    } else if (vanishes && RepeatingMovesLess(instruction, readers)) {
      Repeat(id, readers);
    } else {
      JoinAsResult(id, readers);
    }
  }

  void Repeat(InstructionId id, const Groups& readers) {
    repeated_[id] = true;
    copies_[id] = readers;
    group_[id] = *readers.begin();
  }

  // As one more result of the first reader's kernel that walks over as many elements.
  void JoinAsResult(InstructionId id, const Groups& readers) {
    const int64_t elements = NumElements(id);
    const auto alike = std::ranges::find_if(
        readers, [&](InstructionId group) { return elements_[group] == elements; });
    if (alike != readers.end()) group_[id] = *alike;
  }

  void PlaceReduction(InstructionId id) {
    const Instruction& reduction = computation_.instructions[id];
    const Value reduced = reduction.operands[0];
    if (reduction.results.size() == 1 && HoldsRows(reduction)) {
      const std::span<const Use> uses = uses_.uses({id, 0});
      const Groups readers = GroupsOf(uses);
      const bool is_inside =
          readers.size() == 1 && !uses_.is_result({id, 0}) &&
          std::ranges::all_of(uses, [&](const Use& use) { return IsTakenIn(reduction, use); }) &&
          elements_[*readers.begin()] == NumElements(id);
      if (is_inside) {
        group_[id] = *readers.begin();
        return;
      }
    }
    for (const Use& use : uses_.uses(reduced)) {
      const Instruction& other = computation_.instructions[use.user];
      const bool is_same_kernel =
          use.user > id && other.opcode == Opcode::kReduce && use.operand == 0 &&
          other.As<DimensionsAttributes>().dims == reduction.As<DimensionsAttributes>().dims &&
          RunTogether(reduction, other);
      if (is_same_kernel) {
        group_[id] = group_[use.user];
        return;
      }
    }
  }

  bool HoldsRows(const Instruction& reduction) const {
    const Shape& shape = computation_.shape(reduction.operands[0]);
    const std::vector<int64_t>& dims = reduction.As<DimensionsAttributes>().dims;
    return dims.size() == 1 && dims[0] == shape.rank() - 1 &&
           shape.dims[dims[0]] <= kMostElementsOfRow;
  }

  // A reader that is itself repeated stands in several groups.
  Groups GroupsOf(std::span<const Use> uses) const {
    Groups groups;
    for (const Use& use : uses) {
      if (repeated_[use.user]) {
        groups.insert(copies_[use.user].begin(), copies_[use.user].end());
      } else {
        groups.insert(group_[use.user]);
      }
    }
    return groups;
  }

  bool RunTogether(const Instruction& a, const Instruction& b) const {
    return !rules_.keeps_programs || RunAsOne(a.part, b.part);
  }

  bool IsTakenIn(const Instruction& producer, const Use& use) const {
    const Instruction& reader = computation_.instructions[use.user];
    return RunTogether(producer, reader) && TakesProducersIn(reader, use.operand);
  }

  bool RepeatingMovesLess(const Instruction& instruction, const Groups& readers) const {
    int64_t read_bytes = 0;
    for (const Value operand : instruction.operands) {
      const Opcode producer = computation_.instruction(operand).opcode;
      const bool is_made_there = producer == Opcode::kBroadcast || producer == Opcode::kIota ||
                                 producer == Opcode::kConstant;
      const int64_t bytes = computation_.shape(operand).num_bytes();
      if (!is_made_there) read_bytes += std::min(bytes, 2 * instruction.shape().num_bytes());
    }
    const auto num_readers = static_cast<int64_t>(readers.size());
    return num_readers * read_bytes <=
           read_bytes + (num_readers + 1) * instruction.shape().num_bytes();
  }

  const Computation& computation_;
  const FusionRules rules_;
  UseTable uses_;
  std::vector<InstructionId> group_;
  std::vector<bool> repeated_;
  std::vector<Groups> copies_;     // the groups that a repeated instruction stands in
  std::vector<int64_t> elements_;  // by group: most that one of its members walks over
};

}  // namespace

FusionPartition PartitionForCuda(const Computation& computation, FusionRules rules) {
  return CudaPartitioner(computation, rules).Run();
}

}  // namespace minka
