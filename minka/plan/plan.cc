#include "minka/plan/plan.h"

#include <utility>

#include "minka/base/check.h"
#include "minka/plan/combine.h"

namespace minka {
namespace {

// The sharding and type of what a collective step reads.
struct StepSource {
  Sharding sharding;
  Shape shape;
};

StepSource SourceOfStep(const Module& module, const Reshard& reshard, int step) {
  return {step == 0 ? reshard.from : reshard.steps[step - 1].result,
          module.entry_computation().shape(reshard.value)};
}

PlannedCollective StepCollective(const Module& module, const StagePlan& stage, int reshard_index,
                                 int step_index) {
  const Reshard& reshard = stage.reshards[reshard_index];
  const ReshardStep& step = reshard.steps[step_index];
  const StepSource source = SourceOfStep(module, reshard, step_index);
  PlannedCollective collective;
  collective.kind = ToString(step.kind);
  collective.type = source.shape.type;
  collective.bytes = StepBytes(source.shape, source.sharding, step, stage.mesh);
  collective.axes = step.axes.axes();
  collective.reshards = {reshard_index};
  collective.cost_us = reshard.cost_us;
  return collective;
}

void AppendReshardCollectives(const Module& module, const StagePlan& stage,
                              std::vector<PlannedCollective>& collectives) {
  for (const std::vector<int>& list : LegalCombineGroups(module, stage)) {
    if (list.size() == 1) {
      const std::vector<ReshardStep>& steps = stage.reshards[list[0]].steps;
      for (size_t i = 0; i < steps.size(); ++i) {
        if (!IsCollective(steps[i].kind)) continue;
        collectives.push_back(StepCollective(module, stage, list[0], static_cast<int>(i)));
      }
      continue;
    }
    PlannedCollective combined;
    for (const int member : list) {
      const PlannedCollective one =
          StepCollective(module, stage, member, *OnlyCollective(stage.reshards[member]));
      if (combined.reshards.empty()) {
        combined = one;
        continue;
      }
      combined.bytes += one.bytes;
      combined.cost_us += one.cost_us;
      combined.reshards.push_back(member);
      ++combined.num_values;
    }
    collectives.push_back(std::move(combined));
  }
}

AxisSet LargeAxes(const Mesh& mesh) {
  AxisSet axes;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    if (mesh.size(axis) > 1) axes.Insert(axis);
  }
  return axes;
}

// `rng` is drawn once and shared; combining reductions are completed where they arise.
void AppendOperationCollectives(const Module& module, const StagePlan& stage,
                                std::vector<PlannedCollective>& collectives) {
  const Computation& computation = module.entry_computation();
  for (InstructionId id = 0; id < computation.num_instructions(); ++id) {
    const Instruction& instruction = computation.instructions[id];
    const OpRule rule = RuleFor(module, computation, id);
    const Strategy& strategy = stage.ops[id].strategy;
    const bool is_rng = instruction.opcode == Opcode::kRng;
    const AxisSet axes = is_rng ? LargeAxes(stage.mesh) : CombineAxes(rule, strategy);
    if (axes.empty()) continue;
    for (size_t result = 0; result < instruction.results.size(); ++result) {
      const Shape& shape = instruction.results[result];
      const Sharding sharding = ResultSharding(rule, strategy, static_cast<int>(result));
      PlannedCollective collective;
      collective.kind = "all-reduce";
      collective.type = shape.type;
      collective.bytes = is_rng ? shape.num_bytes() : LocalBytes(shape, sharding, stage.mesh);
      collective.axes = axes;
      collective.instruction = id;
      collectives.push_back(std::move(collective));
    }
  }
}

}  // namespace

Sharding VersionSharding(const Module& module, const StagePlan& stage, Value value, int version) {
  if (version > 0) {
    const Reshard& reshard = stage.reshards[version - 1];
    MINKA_CHECK(reshard.value == value, "version {} is not one of value {}.{}", version,
                value.instruction, value.result);
    return reshard.to;
  }
  const OpRule rule = RuleFor(module, module.entry_computation(), value.instruction);
  return ResultSharding(rule, stage.ops[value.instruction].strategy, value.result);
}

std::vector<PlannedCollective> ListCollectives(const Module& module, const StagePlan& stage) {
  std::vector<PlannedCollective> collectives;
  AppendReshardCollectives(module, stage, collectives);
  AppendOperationCollectives(module, stage, collectives);
  return collectives;
}

}  // namespace minka
