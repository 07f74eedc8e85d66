#include "tests/support/random_plan.h"

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <tuple>
#include <utility>

#include "minka/base/hash.h"
#include "minka/plan/combine.h"
#include "minka/sharding/op_rule.h"
#include "minka/sharding/reshard.h"

namespace minka {
namespace {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int64_t Below(int64_t limit) { return static_cast<int64_t>(engine_() % uint64_t(limit)); }
  bool Chance(double probability) {
    return static_cast<double>(engine_() >> 11) * 0x1p-53 < probability;
  }

 private:
  std::mt19937_64 engine_;
};

class PlanWriter {
 public:
  PlanWriter(const Module& module, const Mesh& mesh, uint64_t seed,
             const RandomPlanOptions& options)
      : module_(module),
        computation_(module.entry_computation()),
        random_(seed),
        options_(options) {
    stage_.mesh = mesh;
    stage_.layers = {0};
    stage_.submesh = {1, mesh.num_devices()};
    for (double& weight : weights_) weight = 0.1 + static_cast<double>(random_.Below(100)) / 10;
    for (InstructionId id = 0; id < computation_.num_instructions(); ++id) {
      rules_.push_back(RuleFor(module, computation_, id));
    }
  }

  // Empty strategies: random ones.
  Plan Write(std::vector<Strategy> strategies) && {
    for (InstructionId id = 0; id < computation_.num_instructions(); ++id) {
      OpPlan op;
      op.strategy = strategies.empty() ? Choose(id) : std::move(strategies[id]);
      for (size_t i = 0; i < computation_.instructions[id].operands.size(); ++i) {
        const Sharding wanted = OperandSharding(rules_[id], op.strategy, static_cast<int>(i));
        op.operand_versions.push_back(
            VersionFor(computation_.instructions[id].operands[i], wanted, id));
      }
      op.called = PlanCalledBy(module_, computation_, id, rules_[id], op.strategy, stage_.mesh,
                               options_.called_prices);
      stage_.ops.push_back(std::move(op));
    }
    for (int result = 0; result < static_cast<int>(computation_.results.size()); ++result) {
      stage_.result_versions.push_back(VersionFor(
          computation_.results[result], ResultTarget(result), computation_.num_instructions()));
    }
    Combine();
    return Finish();
  }

 private:
  Sharding Original(Value value) const {
    return ResultSharding(rules_[value.instruction], stage_.ops[value.instruction].strategy,
                          value.result);
  }

  int NumMismatches(InstructionId id, const OpRule& rule, const Strategy& strategy, int lane,
                    int num_lanes) const {
    const std::vector<Value>& operands = computation_.instructions[id].operands;
    if (num_lanes > 1) {
      return Original(operands[lane]) == OperandSharding(rule, strategy, 0) ? 0 : 1;
    }
    int mismatches = 0;
    for (size_t i = 0; i < operands.size(); ++i) {
      mismatches +=
          Original(operands[i]) == OperandSharding(rule, strategy, static_cast<int>(i)) ? 0 : 1;
    }
    return mismatches;
  }

  Strategy Choose(InstructionId id) {
    const int num_lanes = rules_[id].num_lanes;
    Strategy strategy;
    for (int lane = 0; lane < num_lanes; ++lane) {
      const OpRule rule = num_lanes > 1 ? LaneRule(rules_[id], lane) : rules_[id];
      std::vector<Strategy> candidates = EnumerateStrategies(rule, stage_.mesh);
      std::vector<Strategy> fitting;
      if (random_.Chance(options_.follow)) {
        int fewest = 1 << 20;
        for (const Strategy& candidate : candidates) {
          const int mismatches = NumMismatches(id, rule, candidate, lane, num_lanes);
          if (mismatches < fewest) fitting.clear();
          fewest = std::min(fewest, mismatches);
          if (mismatches == fewest) fitting.push_back(candidate);
        }
      }
      const std::vector<Strategy>& pool = fitting.empty() ? candidates : fitting;
      const Strategy& chosen = pool[random_.Below(static_cast<int64_t>(pool.size()))];
      strategy.axes.insert(strategy.axes.end(), chosen.axes.begin(), chosen.axes.end());
    }
    return strategy;
  }

  // The version of the value in the wanted sharding, made if need be.
  int VersionFor(Value value, const Sharding& wanted, InstructionId before) {
    if (computation_.shape(value).type == ElementType::kToken) return 0;
    std::vector<int> all = {0}, fitting;
    for (size_t i = 0; i < stage_.reshards.size(); ++i) {
      if (stage_.reshards[i].value == value) all.push_back(static_cast<int>(i) + 1);
    }
    const auto sharding_of = [&](int version) {
      return version == 0 ? Original(value) : stage_.reshards[version - 1].to;
    };
    for (const int version : all) {
      if (sharding_of(version) == wanted) fitting.push_back(version);
    }
    if (!fitting.empty() && !random_.Chance(options_.duplicate)) return fitting[0];
    const int source = all[random_.Below(static_cast<int64_t>(all.size()))];
    Reshard reshard{.value = value,
                    .from_version = source,
                    .from = sharding_of(source),
                    .to = wanted,
                    .before = before};
    const ReshardPrice price = [&](const StepWork& work) {
      return IsCollective(work.kind) ? 1 + weights_[static_cast<size_t>(work.kind)] *
                                               static_cast<double>(work.local_bytes)
                                     : 0.1;
    };
    ReshardPath path =
        CheapestReshard(computation_.shape(value), reshard.from, wanted, stage_.mesh, price);
    reshard.steps = std::move(path.steps);
    reshard.cost_us = path.cost;
    reshard.isolated = random_.Chance(options_.isolate);
    stage_.reshards.push_back(std::move(reshard));
    return static_cast<int>(stage_.reshards.size());
  }

  Sharding ResultTarget(int result) {
    for (const Alias& alias : module_.aliases) {
      if (alias.result == result) return Original({computation_.parameters[alias.parameter], 0});
    }
    const Value value = computation_.results[result];
    Sharding target = Original(value);
    target.partial = {};
    if (options_.follow >= 1 || random_.Chance(0.5)) return target;
    const Shape& shape = computation_.shape(value);
    target = Sharding::Replicated(shape.rank());
    for (int axis = 0; axis < stage_.mesh.num_axes() && shape.rank() > 0; ++axis) {
      Sharding split = target;
      split.dims[random_.Below(shape.rank())].PushMinor(axis);
      if (Validate(split, shape, stage_.mesh).ok()) target = split;
    }
    return target;
  }

  void Combine() {
    std::map<std::tuple<ReshardKind, AxisList, ElementType>, int> groups;
    for (Reshard& reshard : stage_.reshards) {
      const std::optional<int> step = OnlyCollective(reshard);
      if (!step || !random_.Chance(options_.combine)) continue;
      const ReshardStep& collective = reshard.steps[*step];
      const auto [entry, is_new] = groups.try_emplace(
          {collective.kind, collective.axes, computation_.shape(reshard.value).type},
          static_cast<int>(groups.size()));
      reshard.combine_group = entry->second;
    }
  }

  Plan Finish() {
    Plan plan;
    plan.module_hash = HashText(ModuleHash(module_));
    plan.method = "random";
    plan.cost_model = "none";
    for (const PlannedCollective& collective : ListCollectives(module_, stage_)) {
      ++plan.collectives[collective.kind];
      plan.collective_bytes[collective.kind] += collective.bytes;
    }
    for (const InstructionId id : computation_.parameters) {
      const Shape& shape = computation_.instructions[id].shape();
      ParameterPlan parameter;
      parameter.name = computation_.instructions[id].name;
      parameter.shape = shape;
      parameter.sharding = Original({id, 0});
      parameter.labels.assign(stage_.mesh.num_axes(), "idle");
      parameter.bytes_per_device = LocalBytes(shape, parameter.sharding, stage_.mesh);
      parameter.role = "state";
      plan.num_parameters += shape.num_elements();
      plan.parameters.push_back(std::move(parameter));
    }
    plan.stage = std::move(stage_);
    return plan;
  }

  const Module& module_;
  const Computation& computation_;
  Random random_;
  RandomPlanOptions options_;
  std::array<double, 6> weights_;  // per reshard kind, per byte
  std::vector<OpRule> rules_;
  StagePlan stage_;
};

}  // namespace

Plan RandomPlan(const Module& module, const Mesh& mesh, uint64_t seed,
                const RandomPlanOptions& options) {
  return PlanWriter(module, mesh, seed, options).Write({});
}

Plan PlanOfStrategies(const Module& module, const Mesh& mesh, std::vector<Strategy> strategies) {
  const RandomPlanOptions options{.follow = 1, .duplicate = 0, .isolate = 0, .combine = 0};
  return PlanWriter(module, mesh, 1, options).Write(std::move(strategies));
}

std::vector<Strategy> WholeStrategies(const Module& module, const Mesh& mesh) {
  std::vector<Strategy> strategies;
  const Computation& computation = module.entry_computation();
  for (InstructionId id = 0; id < computation.num_instructions(); ++id) {
    const OpRule rule = RuleFor(module, computation, id);
    strategies.push_back({std::vector<AxisUse>(size_t(mesh.num_axes()) * rule.num_lanes)});
  }
  return strategies;
}

}  // namespace minka
