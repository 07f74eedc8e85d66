#include "minka/lowering/sum_on_stages.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "minka/ir/micro_loop.h"
#include "minka/ir/rewriter.h"

namespace minka {
namespace {

// A tree of one operation.
struct SumTree {
  std::map<int, std::vector<Value>> terms;  // by stage
  std::vector<InstructionId> inner;         // without the last operation of a tree of scalars
};

class StageSumWriter {
 public:
  StageSumWriter(const Step& step, std::span<const int> stage_of)
      : step_(step),
        entry_(step.module.entry_computation()),
        stage_of_(stage_of),
        loop_(FindMicroLoop(step.module)),
        uses_(entry_),
        rewriter_(entry_) {
    for (const Mark& mark : step.marks) marked_.insert(mark.value);
  }

  Step Run() && {
    FindTrees();
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      if (id == loop_.end) WriteTotals();
      if (is_replaced_.contains(id)) continue;
      const auto found = trees_.find(id);
      if (found == trees_.end()) {
        rewriter_.Copy(id);
      } else if (loop_.IsInside(id)) {
        accumulators_[id] = WriteAccumulators(id, found->second);
      } else {
        rewriter_.Map({id}, Joined(instruction(id), WriteTerms(instruction(id), found->second)));
      }
    }
    if (loop_.end == entry_.num_instructions()) WriteTotals();
    return Finish();
  }

 private:
  const Instruction& instruction(InstructionId id) const { return entry_.instructions[id]; }

  // Those of several stages, by the sum over micro-batches that they are for, or by the last
  // operation of a tree of scalars.
  void FindTrees() {
    std::set<InstructionId> is_inner;
    for (InstructionId id = entry_.num_instructions() - 1; id >= 0; --id) {
      const bool is_accumulator = loop_.IsSum(id);
      if (is_inner.contains(id) || !(is_accumulator || IsSumOfScalars(id))) continue;
      SumTree tree;
      AddTerms(instruction(id), is_accumulator ? Opcode::kAdd : instruction(id).opcode,
               is_accumulator, tree);
      is_inner.insert(tree.inner.begin(), tree.inner.end());
      if (tree.terms.size() < 2) continue;
      is_replaced_.insert(tree.inner.begin(), tree.inner.end());
      trees_.emplace(id, std::move(tree));
    }
  }

  bool IsSumOfScalars(InstructionId id) const {
    const Opcode opcode = instruction(id).opcode;
    return !loop_.IsInside(id) && (opcode == Opcode::kAdd || opcode == Opcode::kAnd) &&
           instruction(id).shape().rank() == 0;
  }

  // What is made wherever it is read counts to stage 0.
  void AddTerms(const Instruction& reader, Opcode opcode, bool is_inside, SumTree& tree) const {
    for (const Value term : reader.operands) {
      const InstructionId id = term.instruction;
      const bool is_inner = instruction(id).opcode == opcode && loop_.IsInside(id) == is_inside &&
                            uses_.uses(term).size() == 1 && !uses_.is_result(term) &&
                            !marked_.contains(term);
      if (is_inner) {
        tree.inner.push_back(id);
        AddTerms(instruction(id), opcode, is_inside, tree);
      } else {
        tree.terms[std::max(stage_of_[id], 0)].push_back(term);
      }
    }
  }

  Value Joined(Instruction like, const std::vector<Value>& values) {
    Value joined = values[0];
    const std::string name = like.name;
    for (size_t i = 1; i < values.size(); ++i) {
      like.name = rewriter_.NewName(name);
      like.operands = {joined, values[i]};
      joined = rewriter_.AppendOne(like);
    }
    return joined;
  }

  // What the terms of every stage are together; it stands where the first of them does.
  std::vector<Value> WriteTerms(const Instruction& like, const SumTree& tree) {
    std::vector<Value> sums;
    for (const auto& [stage, terms] : tree.terms) {
      std::vector<Value> now;
      for (const Value term : terms) now.push_back(rewriter_.Now(term));
      Instruction add = like;
      add.part.layer = entry_.instruction(terms[0]).part.layer;
      sums.push_back(Joined(std::move(add), now));
    }
    return sums;
  }

  std::vector<Value> WriteAccumulators(InstructionId id, const SumTree& tree) {
    std::vector<Value> sums;
    for (const Value term : WriteTerms(instruction(tree.inner[0]), tree)) {
      Instruction sum = instruction(id);
      sum.name = rewriter_.NewName(sum.name);
      sum.operands = {term};
      sum.part.layer = rewriter_.copy().instruction(term).part.layer;
      sums.push_back(rewriter_.AppendOne(std::move(sum)));
    }
    return sums;
  }

  void WriteTotals() {
    for (const auto& [id, sums] : accumulators_) {
      const Instruction& sum = instruction(id);
      Instruction add{.opcode = Opcode::kAdd,
                      .name = sum.name,
                      .results = sum.results,
                      .op_name = sum.op_name,
                      .part = sum.part};
      add.part.loop = LoopRole::kOutside;
      rewriter_.Map({id}, Joined(add, sums));
    }
  }

  Step Finish() {
    Step step{.parameters = step_.parameters,
              .results = step_.results,
              .marks = step_.marks,
              .num_layers = step_.num_layers};
    for (Mark& mark : step.marks) mark.value = rewriter_.Now(mark.value);
    std::ranges::sort(step.marks, {}, &Mark::value);
    step.module = WithEntry(step_.module, std::move(rewriter_).Finish());
    return step;
  }

  const Step& step_;
  const Computation& entry_;
  const std::span<const int> stage_of_;
  const MicroLoop loop_;
  const UseTable uses_;
  std::set<Value> marked_;
  std::map<InstructionId, SumTree> trees_;
  std::set<InstructionId> is_replaced_;
  std::map<InstructionId, std::vector<Value>>
      accumulators_;  // by the sum that they are in place of
  Rewriter rewriter_;
};

}  // namespace

Step SumOnStages(const Step& step, std::span<const int> stage_of) {
  return StageSumWriter(step, stage_of).Run();
}

}  // namespace minka
