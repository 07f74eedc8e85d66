#include "minka/planner/intra_op/describe.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "fmt/format.h"
#include "minka/analysis/flops.h"
#include "minka/analysis/trip_count.h"
#include "minka/base/hash.h"
#include "minka/ir/micro_loop.h"
#include "minka/ir/trained_parameters.h"
#include "minka/sharding/op_rule.h"

namespace minka {
namespace {

class Labeller {
 public:
  Labeller(const Step& step, const StagePlan& stage)
      : step_(step), stage_(stage), entry_(step.module.entry_computation()), uses_(entry_) {}

  std::vector<std::string> Labels(int parameter) {
    const Value value = {entry_.parameters[parameter], 0};
    const ParameterInfo& info = step_.parameters[parameter];
    const int batch_dim = info.received ? info.received->batch : info.batch_dim;
    const bool is_batch = info.role == ParameterRole::kBatch && batch_dim >= 0;
    readers_.clear();
    visited_.clear();
    CollectReaders(value);
    const Sharding stored = VersionSharding(step_.module, stage_, value, 0);
    std::vector<std::string> labels;
    for (int axis = 0; axis < stage_.mesh.num_axes(); ++axis) {
      labels.push_back(is_batch ? BatchLabel(axis, value, batch_dim) : Label(axis, stored));
    }
    return labels;
  }

 private:
  // As it is stored; where it is whole, as it is first cut for those that read it.
  std::string BatchLabel(int axis, Value value, int batch_dim) const {
    std::vector<Sharding> versions = {VersionSharding(step_.module, stage_, value, 0)};
    for (const Reshard& reshard : stage_.reshards) {
      if (reshard.value == value) versions.push_back(reshard.to);
    }
    for (const Sharding& version : versions) {
      for (size_t dim = 0; dim < version.dims.size(); ++dim) {
        if (!version.dims[dim].axes().contains(axis)) continue;
        return static_cast<int>(dim) == batch_dim ? "data" : "operator";
      }
    }
    return "idle";
  }

  // One dimension that survives on the way through conversions and reshapes keeps its axis, so it
  // is enough to look at what the axis does at the operations that do work.
  void CollectReaders(Value value) {
    if (!visited_.insert(value).second) return;
    for (const Use& use : uses_.uses(value)) {
      const Instruction& user = entry_.instructions[use.user];
      if (stage_.ops[use.user].phase == Phase::kApply) continue;
      const bool passes_on = Family(user.opcode) == OpFamily::kUnary ||
                             user.opcode == Opcode::kReshape || user.opcode == Opcode::kTranspose ||
                             user.opcode == Opcode::kOptBarrier;
      if (passes_on) {
        CollectReaders({use.user, 0});
      } else {
        readers_.push_back(use);
      }
    }
  }

  bool Indexes(const Use& use, int factor, const OpRule& rule) const {
    return std::ranges::find(rule.operand_dims[use.operand], factor) !=
           rule.operand_dims[use.operand].end();
  }

  std::string Label(int axis, const Sharding& stored) const {
    if (stage_.mesh.size(axis) == 1) return "idle";
    bool indexed = false, other = false;
    for (const Use& use : readers_) {
      const Strategy& strategy = stage_.ops[use.user].strategy;
      const AxisUse& axis_use = strategy.axes[axis];
      if (axis_use.kind != AxisUse::Kind::kFactor) continue;
      const OpRule rule = RuleFor(step_.module, entry_, use.user);
      (Indexes(use, axis_use.index, rule) ? indexed : other) = true;
    }
    const bool split = stored.split_axes().contains(axis);
    if (split) return indexed ? "operator" : "zero";
    return indexed ? "operator" : other ? "data" : "idle";
  }

  const Step& step_;
  const StagePlan& stage_;
  const Computation& entry_;
  const UseTable uses_;
  std::vector<Use> readers_;
  std::set<Value> visited_;
};

// By instruction: what a sum or stack is of, in the user's words.
std::map<InstructionId, std::string> NamesOfMarks(const Step& step) {
  std::map<InstructionId, std::string> names;
  const Computation& entry = step.module.entry_computation();
  for (const Mark& mark : step.marks) {
    std::string name;
    if (mark.kind == MarkKind::kLoss) name = "loss";
    if (mark.kind == MarkKind::kGradient) {
      name = "gradient of " + step.parameters[mark.index].name;
    }
    if (name.empty()) continue;
    names.try_emplace(mark.value.instruction, name);
    // A narrow gradient is converted behind its accumulator.
    for (const Value operand : entry.instruction(mark.value).operands) {
      names.try_emplace(operand.instruction, name);
    }
  }
  return names;
}

void DescribeAccumulators(const Step& step, const StagePlan& stage, Plan& plan) {
  const Computation& entry = step.module.entry_computation();
  const MicroLoop loop = FindMicroLoop(step.module);
  plan.num_micro_batches = static_cast<int>(loop.num_micro_batches);
  const std::map<InstructionId, std::string> names = NamesOfMarks(step);
  for (const Accumulator& accumulator : loop.accumulators) {
    const Value value = {accumulator.id};
    const auto name = names.find(accumulator.id);
    const Sharding sharding = VersionSharding(step.module, stage, value, 0);
    const bool is_sum = accumulator.kind == Accumulator::Kind::kSum;
    plan.accumulators[name == names.end() ? entry.instruction(value).name : name->second] =
        fmt::format("{} {} {}", is_sum ? "sum" : "stack", ToString(entry.shape(value)),
                    ToString(sharding, stage.mesh));
  }
}

}  // namespace

std::vector<ParameterPlan> DescribeParameters(const Step& step, const StagePlan& stage) {
  const Computation& entry = step.module.entry_computation();
  Labeller labeller(step, stage);
  std::vector<ParameterPlan> out;
  for (size_t i = 0; i < entry.parameters.size(); ++i) {
    const Value value = {entry.parameters[i], 0};
    const Sharding sharding = VersionSharding(step.module, stage, value, 0);
    out.push_back({.name = step.parameters[i].name,
                   .shape = entry.shape(value),
                   .sharding = sharding,
                   .labels = labeller.Labels(static_cast<int>(i)),
                   .bytes_per_device = LocalBytes(entry.shape(value), sharding, stage.mesh),
                   .role = std::string(RoleName(step.parameters[i].role))});
  }
  return out;
}

namespace {

double Flops(const InstructionWork& work) { return work.flops + work.elementwise; }

// Names and counts the operations without a rule, those inside control flow included; their flops.
double CountUnsupported(const Module& module, const Computation& computation,
                        std::map<std::string, int64_t>& counts) {
  double flops = 0;
  for (InstructionId id = 0; id < computation.num_instructions(); ++id) {
    const Instruction& instruction = computation.instructions[id];
    const bool is_loop = instruction.opcode == Opcode::kWhile;
    if (is_loop || instruction.opcode == Opcode::kConditional) {
      double inside = 0;
      for (const ComputationId called : instruction.called) {
        inside = std::max(inside, CountUnsupported(module, module.computations[called], counts));
      }
      flops += inside *
               (is_loop ? static_cast<double>(TripCount(module, computation, id).value_or(1)) : 1);
      continue;
    }
    if (RuleFor(module, computation, id).supported) continue;
    flops += Flops(WorkOf(module, computation, id));
    const auto* opaque = std::get_if<OpaqueAttributes>(&instruction.attributes);
    ++counts[opaque != nullptr ? opaque->name : std::string(OpcodeName(instruction.opcode))];
  }
  return flops;
}

}  // namespace

void Describe(const Step& step, Plan& plan) {
  plan.module_hash = HashText(ModuleHash(step.module));
  const StagePlan& stage = plan.stage;
  plan.parameters = DescribeParameters(step, stage);
  const std::vector<bool> trained = TrainedParameters(step);
  plan.num_parameters = plan.state_bytes_per_device = 0;
  for (size_t i = 0; i < trained.size(); ++i) {
    const ParameterPlan& parameter = plan.parameters[i];
    if (parameter.role == "state") plan.state_bytes_per_device += parameter.bytes_per_device;
    if (trained[i]) plan.num_parameters += parameter.shape.num_elements();
  }
  for (const PlannedCollective& collective : ListCollectives(step.module, stage)) {
    plan.collectives[collective.kind] += collective.runs;
    plan.collective_bytes[collective.kind] += collective.runs * collective.bytes;
  }
  const Computation& entry = step.module.entry_computation();
  DescribeAccumulators(step, stage, plan);
  const double without_rule = CountUnsupported(step.module, entry, plan.unsupported_ops);
  const double all = Flops(WorkOf(step.module, entry));
  plan.unsupported_flops_share = all == 0 ? 0 : without_rule / all;
}

Plan PlanOf(const Step& step, Method method, const CostModel& cost, IntraOpResult result) {
  Plan plan;
  plan.method = std::string(MethodName(method));
  plan.cost_model = std::string(cost.name());
  plan.step_time_us = result.stage.step_time_us;
  plan.peak_memory_bytes = result.stage.peak_memory_bytes;
  plan.objective = result.objective;
  plan.lower_bound = result.lower_bound;
  plan.gap = plan.sharding_gap = result.gap;
  plan.memory_price = result.memory_price;
  plan.stop_reason = std::move(result.stop_reason);
  plan.search_seconds = result.seconds;
  plan.notes = std::move(result.notes);
  plan.stage = std::move(result.stage);
  Describe(step, plan);
  return plan;
}

}  // namespace minka
