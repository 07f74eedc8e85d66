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

PlannedCollective StepCollective(const Module& module, const StagePlan& stage,
                                 const MicroLoop& loop, int reshard_index, int step_index) {
  const Reshard& reshard = stage.reshards[reshard_index];
  const ReshardStep& step = reshard.steps[step_index];
  const StepSource source = SourceOfStep(module, reshard, step_index);
  PlannedCollective collective;
  collective.kind = ToString(step.kind);
  collective.type = source.shape.type;
  collective.bytes = WorkOfStep(source.shape, source.sharding, step, stage.mesh).local_bytes;
  collective.axes = step.axes.axes();
  collective.reshards = {reshard_index};
  const auto num_collectives = std::ranges::count_if(
      reshard.steps, [](const ReshardStep& one) { return IsCollective(one.kind); });
  collective.cost_us = reshard.cost_us / static_cast<double>(num_collectives);
  if (PartOf(loop, reshard) == LoopPart::kInside) collective.runs = loop.num_micro_batches;
  return collective;
}

void AppendReshardCollectives(const Module& module, const StagePlan& stage,
                              std::vector<PlannedCollective>& collectives) {
  const MicroLoop loop = FindMicroLoop(module);
  for (const std::vector<int>& list : LegalCombineGroups(module, stage)) {
    if (list.size() == 1) {
      const std::vector<ReshardStep>& steps = stage.reshards[list[0]].steps;
      for (size_t i = 0; i < steps.size(); ++i) {
        if (!IsCollective(steps[i].kind)) continue;
        collectives.push_back(StepCollective(module, stage, loop, list[0], static_cast<int>(i)));
      }
      continue;
    }
    PlannedCollective combined;
    for (const int member : list) {
      const PlannedCollective one =
          StepCollective(module, stage, loop, member, *OnlyCollective(stage.reshards[member]));
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

// What completes reductions where they arise, shares what `rng` draws, and stands inside loops.
void AppendOperationCollectives(const Module& module, const StagePlan& stage,
                                std::vector<PlannedCollective>& collectives) {
  const Computation& computation = module.entry_computation();
  const auto once = [](const Computation&, InstructionId) { return 1.0; };
  const MicroLoop loop = FindMicroLoop(module);
  for (InstructionId id = 0; id < computation.num_instructions(); ++id) {
    const OpRule rule = RuleFor(module, computation, id);
    for (const OperationCollective& own :
         CollectivesOf(module, computation, id, rule, stage.ops[id].strategy, stage.ops[id].called,
                       stage.mesh, once)) {
      PlannedCollective collective;
      collective.kind = ToString(own.work.kind);
      collective.type = own.type;
      collective.bytes = own.work.local_bytes;
      collective.axes = own.work.axes;
      collective.instruction = id;
      collective.runs = loop.RunsOf(id);
      collectives.push_back(std::move(collective));
    }
  }
}

}  // namespace

LoopPart PartOf(const MicroLoop& loop, const Reshard& reshard) {
  if (!loop.exists()) return LoopPart::kBehind;
  if (loop.IsTransient(reshard.value.instruction)) return LoopPart::kInside;
  if (reshard.before <= loop.begin) return LoopPart::kFront;
  return reshard.before < loop.end ? LoopPart::kInside : LoopPart::kBehind;
}

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
