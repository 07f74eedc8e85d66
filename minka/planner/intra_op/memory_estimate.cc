#include "minka/planner/intra_op/memory_estimate.h"

#include <algorithm>
#include <map>
#include <vector>

#include "minka/plan/combine.h"

namespace minka {
namespace {

class LivenessProfile {
 public:
  explicit LivenessProfile(int num_times) : change_(num_times + 1, 0) {}
  void Add(InstructionId begin, InstructionId end, int64_t bytes) {
    change_[begin] += bytes;
    change_[end] -= bytes;
  }
  MemoryEstimate Peak() const {
    MemoryEstimate estimate;
    int64_t live = 0;
    for (size_t time = 0; time < change_.size(); ++time) {
      live += change_[time];
      if (live > estimate.peak_bytes) {
        estimate.peak_bytes = live;
        estimate.peak_at = static_cast<InstructionId>(time);
      }
    }
    return estimate;
  }

 private:
  std::vector<int64_t> change_;
};

// Last instruction that reads each version; versions of version 0 are by value.
struct LastReads {
  std::vector<InstructionId> of_reshard;                // by reshard
  std::vector<std::vector<InstructionId>> of_produced;  // [instruction][result]
};

LastReads FindLastReads(const StepFacts& facts, const StagePlan& plan) {
  const Computation& entry = facts.entry;
  const MicroLoop& loop = facts.loop;
  LastReads reads;
  reads.of_reshard.assign(plan.reshards.size(), -1);
  for (const Instruction& instruction : entry.instructions) {
    reads.of_produced.emplace_back(instruction.results.size(), -1);
  }
  const auto read = [&](Value value, int version, InstructionId when) {
    const bool made_inside = version == 0
                                 ? loop.IsTransient(value.instruction)
                                 : PartOf(loop, plan.reshards[version - 1]) == LoopPart::kInside;
    if (!made_inside && loop.IsInside(when)) when = std::max(when, loop.end - 1);
    InstructionId& last = version == 0 ? reads.of_produced[value.instruction][value.result]
                                       : reads.of_reshard[version - 1];
    last = std::max(last, when);
  };
  for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
    for (size_t i = 0; i < entry.instructions[id].operands.size(); ++i) {
      read(entry.instructions[id].operands[i], plan.ops[id].operand_versions[i],
           facts.last_runs[id]);
    }
  }
  for (const Reshard& reshard : plan.reshards)
    read(reshard.value, reshard.from_version, reshard.before);
  for (size_t i = 0; i < entry.results.size(); ++i) {
    read(entry.results[i], plan.result_versions[i], entry.num_instructions());
  }
  return reads;
}

// When each version is made: gathers that run as one are all made for the first that needs one.
std::vector<InstructionId> MakingTimes(const Computation& entry, const StagePlan& plan) {
  std::map<int, InstructionId> first;
  const auto is_joint_gather = [&](const Reshard& reshard) {
    return reshard.combine_group >= 0 && reshard.before < entry.num_instructions() &&
           reshard.steps[*OnlyCollective(reshard)].kind == ReshardKind::kAllGather;
  };
  for (const Reshard& reshard : plan.reshards) {
    if (is_joint_gather(reshard)) first.try_emplace(reshard.combine_group, reshard.before);
  }
  std::vector<InstructionId> times;
  for (const Reshard& reshard : plan.reshards) {
    times.push_back(is_joint_gather(reshard) ? first.at(reshard.combine_group) : reshard.before);
  }
  return times;
}

}  // namespace

MemoryEstimate EstimateMemory(const StepFacts& facts, const StagePlan& plan) {
  const Computation& entry = facts.entry;
  const int end = entry.num_instructions() + 1;
  LivenessProfile profile(end);
  const LastReads reads = FindLastReads(facts, plan);
  MemoryEstimate arguments;
  for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
    const Instruction& instruction = entry.instructions[id];
    const bool is_parameter = instruction.opcode == Opcode::kParameter;
    for (int result = 0; result < static_cast<int>(instruction.results.size()); ++result) {
      const Value value = {id, result};
      const int64_t bytes = LocalBytes(
          entry.shape(value), VersionSharding(facts.step.module, plan, value, 0), plan.mesh);
      if (is_parameter) {
        arguments.argument_bytes += bytes;
        const auto number = static_cast<size_t>(instruction.As<ParameterAttributes>().number);
        if (facts.step.parameters[number].role == ParameterRole::kState)
          arguments.state_bytes += bytes;
        profile.Add(0, end, bytes);
      } else if (facts.IsMaterialised(value) &&
                 !(result == 0 && !facts.state_parameters[id].empty())) {
        profile.Add(facts.FirstTime(value),
                    std::min(end, std::max(reads.of_produced[id][result], id) + 1), bytes);
      }
    }
  }
  const std::vector<InstructionId> made = MakingTimes(entry, plan);
  for (size_t i = 0; i < plan.reshards.size(); ++i) {
    const Reshard& reshard = plan.reshards[i];
    if (reads.of_reshard[i] == entry.num_instructions() &&
        reshard.before == entry.num_instructions()) {
      continue;  // new state, into the buffer of the old
    }
    const int64_t bytes = LocalBytes(entry.shape(reshard.value), reshard.to, plan.mesh);
    profile.Add(made[i], std::min(end, std::max(reads.of_reshard[i], reshard.before) + 1), bytes);
  }
  MemoryEstimate estimate = profile.Peak();
  estimate.argument_bytes = arguments.argument_bytes;
  estimate.state_bytes = arguments.state_bytes;
  return estimate;
}

}  // namespace minka
