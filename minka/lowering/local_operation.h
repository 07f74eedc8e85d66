// Writes one operation of the source module as what a device does of it.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "minka/ir/builder.h"
#include "minka/ir/module.h"
#include "minka/lowering/device_position.h"
#include "minka/sharding/called_plan.h"
#include "minka/sharding/op_rule.h"

namespace minka {

// Copies computations that operations call (reducers, comparators, whole loop bodies) into the
// local module, each once.
class CalledComputations {
 public:
  CalledComputations(const Module& source, ModuleBuilder& target)
      : source_(source), target_(target) {}

  ModuleBuilder& target() { return target_; }
  ComputationId Import(ComputationId source);

 private:
  const Module& source_;
  ModuleBuilder& target_;
  std::map<ComputationId, ComputationId> imported_;
};

struct SourceOperation {
  const Module& module;
  const Computation& computation;
  InstructionId id;
  const OpRule& rule;
  const Strategy& strategy;
  std::span<const CalledPlan> called;  // while, conditional: by called computation

  const Instruction& instruction() const { return computation.instructions[id]; }
  const Shape& operand_shape(int operand) const {
    return computation.shape(instruction().operands[operand]);
  }
};

// Results by number. `operands` are local values in the shardings that the strategy wants. Results
// over split kCombine factors are completed; parameters are not written here.
std::vector<Value> EmitLocalOperation(const SourceOperation& source, std::vector<Value> operands,
                                      DevicePosition& position, CalledComputations& called);

// The instruction's attributes where operands and results have local shapes.
Attributes LocalAttributes(const Instruction& instruction, std::span<const Shape> operands,
                           std::span<const Shape> local_operands,
                           std::span<const Shape> local_results);

// A `while` or `conditional` whose called computations run on local shapes, with the collectives
// that their plans ask for.
std::vector<Value> EmitLocalControl(const SourceOperation& source,
                                    const std::vector<Value>& operands, DevicePosition& position,
                                    CalledComputations& called);

// A gather whose table is split along looked-up dimensions, and a scatter into such a table (of
// one operand).
std::vector<Value> EmitGatherOfPart(const SourceOperation& source, std::vector<Value> operands,
                                    DevicePosition& position);
Value EmitScatterOfPart(const SourceOperation& source, std::vector<Value> operands,
                        DevicePosition& position, CalledComputations& called);

// The local indices of a gather, in s32, as the gather clamps them.
Value ClampIndices(const SourceOperation& gather, Value indices, DevicePosition& position);

// A dynamic-slice from, and a dynamic-update-slice into, an array that is split along dimensions of
// which the window is a part. Slices from other parts are zero: the result is a sum owed.
Value EmitWindowOfPart(const SourceOperation& source, const std::vector<Value>& operands,
                       DevicePosition& position);
Value UpdateWindowOfPart(const SourceOperation& source, const std::vector<Value>& operands,
                         DevicePosition& position);

// The source instruction with local operands, results and attributes, appended.
std::vector<Value> AppendLocal(const SourceOperation& source, std::vector<Value> operands,
                               DevicePosition& position, CalledComputations& called);

}  // namespace minka
