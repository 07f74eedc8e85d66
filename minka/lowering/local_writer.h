// Writes the operations and reshards of a stage into one computation of a device's program.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "minka/ir/builder.h"
#include "minka/lowering/device_position.h"
#include "minka/lowering/local_operation.h"
#include "minka/lowering/planned_stage.h"
#include "minka/plan/plan.h"

namespace minka {

// Knows which versions exist in its computation. What it refers to must live as long.
class LocalWriter {
 public:
  // Brings what was made elsewhere into the computation, where that is possible.
  using Bring = std::function<Value(const ValueVersion& made)>;

  LocalWriter(const PlannedStage& stage, ComputationBuilder builder, CalledComputations& called,
              Departures departures, Bring bring)
      : stage_(stage),
        position_(builder, stage.mesh(), departures),
        called_(called),
        bring_(std::move(bring)) {}

  DevicePosition& position() { return position_; }
  ComputationBuilder& builder() { return position_.builder(); }

  bool Has(const ValueVersion& made) const { return values_.contains(made); }
  void Set(const ValueVersion& made, Value value) { values_[made] = value; }
  // Brings it first if it does not exist here.
  Value Read(const ValueVersion& made);

  // A node of the stage, which is no parameter.
  void Write(int node);
  // Of an instruction, with operand 0 given where there is one; nothing exists by it.
  std::vector<Value> Results(InstructionId id, std::optional<Value> operand_0 = std::nullopt);

 private:
  void WriteReshards(const std::vector<int>& list);
  Value WriteSteps(Value x, const Reshard& reshard, size_t begin, size_t end);
  Value Source(int reshard);

  const PlannedStage& stage_;
  DevicePosition position_;
  CalledComputations& called_;
  Bring bring_;
  std::map<ValueVersion, Value> values_;
  std::map<Value, Value> barriers_;  // the last one that isolates a value
};

// Zeros made there, of a local shape.
Value WriteZeros(ComputationBuilder& builder, const Shape& shape);

}  // namespace minka
