// Which values of a step are stacked for its layers, and what is computed row by row of them.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "minka/ir/step.h"

namespace minka {

// By operand: does row i of the results depend on row i of it alone, or on all of it? nullopt: rows
// of the results are made of other rows.
std::optional<std::vector<bool>> ReadsByRow(const Computation& entry,
                                            const Instruction& instruction);

// All rows of it are equal, or are cheap to make.
bool IsMadeForEachReader(const Instruction& instruction);

// The row that the operation takes out of its operand, if it does nothing else.
std::optional<int64_t> RowTaken(const Computation& entry, const Instruction& instruction);

// Does the operation make a stack of its operands, one row each?
bool PutsRowsTogether(const Computation& entry, const Instruction& instruction);

// Parts the values of a step into stacks: those that hang together by operations on rows, which are
// taken apart together.
class Stacks {
 public:
  // Of the entry computation, in which loops over layers are written out. The step must outlive it.
  explicit Stacks(const Step& step);

  // Stands for all values that it hangs together with.
  int StackOf(Value value);

  // Can its rows be had without the whole? Of a value of a stack that is taken apart.
  bool IsMadeByRow(Value value) const;

  // By number, parameters of the stacks that layers read or write row by row.
  std::set<int> ParametersOfLayers();

 private:
  bool IsResident(InstructionId parameter) const;
  void Join(Value a, Value b);
  void Connect(InstructionId id);
  std::set<int> StacksOfLayers();
  bool IsUpdatedByRow(int parameter);

  const Step& step_;
  const Computation& entry_;
  std::vector<int> first_;    // by instruction: its first result, in parents_
  std::vector<int> parents_;  // by value, a forest whose trees are the stacks
};

}  // namespace minka
