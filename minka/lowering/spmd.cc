#include "minka/lowering/spmd.h"

#include <queue>
#include <utility>

#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/ir/builder.h"
#include "minka/ir/simplify.h"
#include "minka/lowering/join_barriers.h"
#include "minka/lowering/local_operation.h"
#include "minka/lowering/reshard_steps.h"
#include "minka/plan/combine.h"

namespace minka {
namespace {

// Writes operations and collectives, each after what it reads.
class Lowering {
 public:
  Lowering(const Module& module, const StagePlan& stage)
      : module_(module),
        computation_(module.entry_computation()),
        stage_(stage),
        target_(module.name),
        position_(target_.Entry(), stage.mesh),
        called_(module, target_),
        lists_(LegalCombineGroups(module, stage)),
        originals_(computation_.instructions.size()),
        versions_(stage.reshards.size()) {
    for (InstructionId id = 0; id < computation_.num_instructions(); ++id) {
      rules_.push_back(RuleFor(module, computation_, id));
    }
  }

  absl::StatusOr<SpmdProgram> Run() && {
    WriteParameters();
    for (const int node : Order()) {
      if (node < computation_.num_instructions()) {
        WriteOperation(node);
      } else {
        WriteReshards(lists_[node - computation_.num_instructions()]);
      }
    }
    return std::move(*this).Finish();
  }

 private:
  const Instruction& instruction(InstructionId id) const { return computation_.instructions[id]; }

  Value Read(Value value, int version) const {
    return version == 0 ? originals_[value.instruction][value.result] : versions_[version - 1];
  }

  // In order of their numbers, whatever their place in the source.
  void WriteParameters() {
    for (const InstructionId id : computation_.parameters) {
      const Sharding sharding = ResultSharding(rules_[id], stage_.ops[id].strategy, 0);
      const Shape shape = LocalShape(instruction(id).shape(), sharding, stage_.mesh);
      Instruction parameter = instruction(id);
      parameter.results = {shape};
      originals_[id] = {position_.builder().Append(std::move(parameter))};
      parameters_.push_back(sharding);
    }
  }

  // Instructions, then lists, by first place in the source among those that are ready: combined
  // collectives wait for all that they read, and their readers for them.
  std::vector<int> Order() const {
    const int num_instructions = computation_.num_instructions();
    const int num_nodes = num_instructions + static_cast<int>(lists_.size());
    std::vector<int> node_of_reshard(stage_.reshards.size(), -1), place(num_nodes);
    for (int id = 0; id < num_instructions; ++id) place[id] = 2 * id + 1;
    for (size_t list = 0; list < lists_.size(); ++list) {
      const int node = num_instructions + static_cast<int>(list);
      place[node] = 2 * stage_.reshards[lists_[list].front()].before;
      for (const int reshard : lists_[list]) node_of_reshard[reshard] = node;
    }
    std::vector<std::vector<int>> readers(num_nodes);
    std::vector<int> missing(num_nodes);
    const auto add = [&](Value value, int version, int reader) {
      const int source = version == 0 ? value.instruction : node_of_reshard[version - 1];
      readers[source].push_back(reader);
      ++missing[reader];
    };
    for (int id = 0; id < num_instructions; ++id) {
      for (size_t i = 0; i < instruction(id).operands.size(); ++i) {
        add(instruction(id).operands[i], stage_.ops[id].operand_versions[i], id);
      }
    }
    for (size_t i = 0; i < stage_.reshards.size(); ++i) {
      if (node_of_reshard[i] < 0) continue;
      add(stage_.reshards[i].value, stage_.reshards[i].from_version, node_of_reshard[i]);
    }
    return ReadyOrder(readers, std::move(missing), place);
  }

  static std::vector<int> ReadyOrder(const std::vector<std::vector<int>>& readers,
                                     std::vector<int> missing, const std::vector<int>& place) {
    struct Ready {
      int place, node;
      auto operator<=>(const Ready&) const = default;
    };
    std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready;
    for (int node = 0; node < static_cast<int>(missing.size()); ++node) {
      if (missing[node] == 0) ready.push({place[node], node});
    }
    std::vector<int> order;
    while (!ready.empty()) {
      const int node = ready.top().node;
      ready.pop();
      order.push_back(node);
      for (const int reader : readers[node]) {
        if (--missing[reader] == 0) ready.push({place[reader], reader});
      }
    }
    MINKA_CHECK(order.size() == missing.size(), "combined collectives wait for each other");
    return order;
  }

  void WriteOperation(InstructionId id) {
    if (instruction(id).opcode == Opcode::kParameter) return;
    const OpPlan& op = stage_.ops[id];
    std::vector<Value> operands;
    for (size_t i = 0; i < instruction(id).operands.size(); ++i) {
      operands.push_back(Read(instruction(id).operands[i], op.operand_versions[i]));
    }
    position_.builder().SetOpName(instruction(id).op_name);
    originals_[id] = EmitLocalOperation({module_, computation_, id, rules_[id], op.strategy},
                                        std::move(operands), position_, called_);
  }

  Value WriteSteps(Value x, const Reshard& reshard, size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) x = EmitStep(position_, x, reshard.steps[i]);
    return x;
  }

  Value Source(const Reshard& reshard) {
    const Value source = Read(reshard.value, reshard.from_version);
    if (!reshard.isolated) return source;
    const Value values[] = {source};
    return position_.builder().OptBarrier(values)[0];
  }

  void WriteReshards(const std::vector<int>& list) {
    const Reshard& first = stage_.reshards[list[0]];
    position_.builder().SetOpName(instruction(first.value.instruction).op_name);
    if (list.size() == 1) {
      versions_[list[0]] = WriteSteps(Source(first), first, 0, first.steps.size());
      return;
    }
    std::vector<Value> values;
    std::vector<ReshardStep> steps;
    for (const int member : list) {
      const Reshard& reshard = stage_.reshards[member];
      const int step = *OnlyCollective(reshard);
      values.push_back(WriteSteps(Source(reshard), reshard, 0, step));
      steps.push_back(reshard.steps[step]);
    }
    const std::vector<Value> results = EmitCombinedStep(position_, values, steps);
    for (size_t i = 0; i < list.size(); ++i) {
      const Reshard& reshard = stage_.reshards[list[i]];
      versions_[list[i]] =
          WriteSteps(results[i], reshard, *OnlyCollective(reshard) + 1, reshard.steps.size());
    }
  }

  absl::StatusOr<SpmdProgram> Finish() && {
    SpmdProgram program;
    program.parameters = std::move(parameters_);
    std::vector<Value> results;
    for (size_t i = 0; i < computation_.results.size(); ++i) {
      const Value value = computation_.results[i];
      const int version = stage_.result_versions[i];
      results.push_back(Read(value, version));
      program.results.push_back(
          version == 0 ? ResultSharding(rules_[value.instruction],
                                        stage_.ops[value.instruction].strategy, value.result)
                       : stage_.reshards[version - 1].to);
    }
    position_.builder().SetResults(std::move(results));
    for (const Alias& alias : module_.aliases) target_.AddAlias(alias);
    absl::StatusOr<Module> finished = std::move(target_).Finish();
    if (!finished.ok()) return WithContext(finished.status(), "local program");
    program.module = JoinBarriers(EliminateDeadCode(*finished));
    return program;
  }

  const Module& module_;
  const Computation& computation_;
  const StagePlan& stage_;
  ModuleBuilder target_;
  DevicePosition position_;
  CalledComputations called_;
  std::vector<std::vector<int>> lists_;  // of reshards, each one collective
  std::vector<OpRule> rules_;
  std::vector<Sharding> parameters_;
  std::vector<std::vector<Value>> originals_;  // version 0 by instruction and result
  std::vector<Value> versions_;                // by reshard
};

}  // namespace

absl::StatusOr<SpmdProgram> LowerSpmd(const Module& module, const StagePlan& stage) {
  return Lowering(module, stage).Run();
}

}  // namespace minka
