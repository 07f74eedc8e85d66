// Copies a computation instruction by instruction, so that a rewrite only says what it does
// differently.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "minka/ir/module.h"
#include "minka/ir/names.h"

namespace minka {

// Knows what every value of the source has become in the copy; operands, parameters and results
// follow. The source must live as long.
//
//   Rewriter rewriter(source);
//   for (InstructionId id = 0; id < source.num_instructions(); ++id) {
//     if (IsGood(source.instructions[id])) {
//       rewriter.Copy(id);
//     } else {
//       rewriter.Map(id, WriteBetter(rewriter, rewriter.Translated(id)));
//     }
//   }
//   return std::move(rewriter).Finish();
class Rewriter {
 public:
  explicit Rewriter(const Computation& source) : Rewriter(source, source.instructions.size()) {}
  // Has room for so many instructions from the start.
  Rewriter(const Computation& source, size_t num_instructions);

  const Computation& source() const { return source_; }
  // As far as it is written.
  const Computation& copy() const { return copy_; }

  // What the value has become. Precondition: it was mapped.
  Value Now(Value value) const { return now_[value.instruction][value.result]; }
  // What is written from now on reads `now` for the value.
  void Map(Value value, Value now);
  void Map(InstructionId id, const std::vector<Value>& results) {
    now_[id].assign(results.begin(), results.end());
  }
  bool IsMapped(InstructionId id) const { return !now_[id].empty(); }

  // The instruction with what its operands have become, not part of the copy yet.
  Instruction Translated(InstructionId id) const;
  // Returns its results. The name stays as it is.
  std::vector<Value> Append(Instruction instruction);
  // The same of an instruction of one result, or the first of several.
  Value AppendOne(Instruction instruction);
  void Copy(InstructionId id);
  // The same without a copy: `instruction` is the source's, which is not read again, neither here
  // nor for names (NewName).
  void Move(InstructionId id, Instruction&& instruction);
  // Appends what another computation of the same module does; names stay as they are. Returns its
  // results.
  std::vector<Value> Inline(const Computation& callee, const std::vector<Value>& arguments);

  // A name that no instruction of the source has, and that was not handed out before.
  std::string NewName(const std::string& wanted);

  // Its parameters are those that were written, by number, its results what those of the source
  // have become, or the given ones.
  Computation Finish() &&;
  Computation Finish(std::vector<Value> results) &&;

 private:
  void Write(InstructionId id, Instruction instruction);

  const Computation& source_;
  Computation copy_;
  std::vector<absl::InlinedVector<Value, 1>> now_;  // by instruction of the source
  UniqueNames names_;
  bool knows_names_ = false;  // of the source, which names_ has from the first new one on
  bool has_moved_ = false;
};

}  // namespace minka
