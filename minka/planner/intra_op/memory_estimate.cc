#include "minka/planner/intra_op/memory_estimate.h"

#include <algorithm>
#include <map>
#include <span>
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

// Who reads a version.
struct Reads {
  InstructionId last = -1;
  int program = kNone;  // kSeveral: more than one, or who runs the step

  static constexpr int kNone = -1, kSeveral = -2;
  void Add(InstructionId when, int reader) {
    last = std::max(last, when);
    program = program == kNone || program == reader ? reader : kSeveral;
  }
};

struct AllReads {
  std::vector<Reads> of_reshard;                // by reshard
  std::vector<std::vector<Reads>> of_produced;  // version 0, [instruction][result]
};

// When a reshard reads its input last, or later, and when its result is made.
struct ReshardTimes {
  InstructionId read = 0, made = 0;
  // In one array with others, which stays until the last of them is read. Of gathers, which are
  // made for whoever needs one first, each part is a result of its own.
  bool is_packed_sum = false;
};

// By reshard. Those that leave the step run by themselves.
std::vector<ReshardTimes> TimesOfReshards(const StepFacts& facts, const StagePlan& plan) {
  std::map<int, std::vector<int>> groups;
  std::vector<ReshardTimes> times;
  for (size_t i = 0; i < plan.reshards.size(); ++i) {
    const Reshard& reshard = plan.reshards[i];
    times.push_back({.read = reshard.before, .made = reshard.before});
    if (reshard.combine_group < 0 || reshard.before == facts.entry.num_instructions()) continue;
    groups[reshard.combine_group].push_back(static_cast<int>(i));
  }
  for (const auto& [group, members] : groups) {
    if (members.size() == 1) continue;
    const InstructionId time = TimeOfCollective(plan, members);
    for (const int member : members) {
      const Reshard& reshard = plan.reshards[member];
      const ReshardKind kind = reshard.steps[*OnlyCollective(reshard)].kind;
      const int64_t bytes = LocalBytes(facts.entry.shape(reshard.value), reshard.from, plan.mesh);
      if (kind == ReshardKind::kAllGather) {
        times[member].made = plan.reshards[members[0]].before;
      } else if (IsPacked(kind, bytes, facts.platform)) {
        times[member] = {.read = time, .made = time, .is_packed_sum = true};
      } else {  // in place
        times[member] = {.read = std::max(reshard.before, time - 1),
                         .made = std::max(reshard.before, time)};
      }
    }
  }
  return times;
}

// Of the step's results the first `num_results`.
AllReads FindReads(const StepFacts& facts, const StagePlan& plan, std::span<const int> programs,
                   std::span<const ReshardTimes> times, size_t num_results) {
  const Computation& entry = facts.entry;
  const MicroLoop& loop = facts.loop;
  AllReads reads;
  reads.of_reshard.resize(plan.reshards.size());
  for (const Instruction& instruction : entry.instructions) {
    reads.of_produced.emplace_back(instruction.results.size());
  }
  const auto program_of = [&](InstructionId id) {
    return id < entry.num_instructions() ? programs[id] : Reads::kSeveral;
  };
  const auto read = [&](Value value, int version, InstructionId reader, InstructionId when) {
    const bool made_inside = version == 0
                                 ? loop.IsTransient(value.instruction)
                                 : PartOf(loop, plan.reshards[version - 1]) == LoopPart::kInside;
    if (!made_inside && loop.IsInside(when)) when = std::max(when, loop.end - 1);
    (version == 0 ? reads.of_produced[value.instruction][value.result]
                  : reads.of_reshard[version - 1])
        .Add(when, program_of(reader));
  };
  for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
    for (size_t i = 0; i < entry.instructions[id].operands.size(); ++i) {
      read(entry.instructions[id].operands[i], plan.ops[id].operand_versions[i], id,
           facts.last_runs[id]);
    }
  }
  for (size_t i = 0; i < plan.reshards.size(); ++i) {
    const Reshard& reshard = plan.reshards[i];
    read(reshard.value, reshard.from_version, reshard.before, times[i].read);
  }
  for (size_t i = 0; i < num_results; ++i) {
    read(entry.results[i], plan.result_versions[i], entry.num_instructions(),
         entry.num_instructions());
  }
  return reads;
}

struct Version {
  InstructionId begin = 0, end = 0;
  int64_t bytes = 0;
  int program = 0;      // that makes and reads it; Reads::kSeveral: it is more than one
  bool is_sum = false;  // over micro-batches, as it is stored
};

// All that are made, but for new state, which goes where the old was. Results behind the first
// `num_results` are read by nobody.
std::vector<Version> MadeVersions(const StepFacts& facts, const StagePlan& plan,
                                  std::span<const int> programs, size_t num_results) {
  const Computation& entry = facts.entry;
  const int end = entry.num_instructions() + 1;
  const std::vector<ReshardTimes> times = TimesOfReshards(facts, plan);
  const AllReads reads = FindReads(facts, plan, programs, times, num_results);
  std::vector<Version> versions;
  const auto add = [&](InstructionId begin, InstructionId made_at, const Reads& read, int maker,
                       int64_t bytes) {
    Reads all = read;
    all.Add(made_at, maker);
    versions.push_back({begin, std::min(end, all.last + 1), bytes, all.program});
  };
  for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
    const Instruction& instruction = entry.instructions[id];
    if (instruction.opcode == Opcode::kParameter) continue;
    for (int result = 0; result < static_cast<int>(instruction.results.size()); ++result) {
      const Value value = {id, result};
      if (!facts.IsMaterialised(value)) continue;
      if (result == 0 && !facts.state_parameters[id].empty()) continue;
      const Sharding sharding = VersionSharding(facts.step.module, plan, value, 0);
      add(facts.FirstTime(value), id, reads.of_produced[id][result], programs[id],
          LocalBytes(entry.shape(value), sharding, plan.mesh));
      versions.back().is_sum = facts.loop.IsSum(id);
    }
  }
  std::map<int, InstructionId> last_read;  // of packed sums, by group
  for (size_t i = 0; i < plan.reshards.size(); ++i) {
    if (!times[i].is_packed_sum) continue;
    InstructionId& last = last_read.try_emplace(plan.reshards[i].combine_group, 0).first->second;
    last = std::max(last, reads.of_reshard[i].last);
  }
  for (size_t i = 0; i < plan.reshards.size(); ++i) {
    const Reshard& reshard = plan.reshards[i];
    const bool is_last = reshard.before == entry.num_instructions();
    if (is_last && reads.of_reshard[i].last == reshard.before) continue;
    Reads read = reads.of_reshard[i];
    if (times[i].is_packed_sum) read.last = last_read.at(reshard.combine_group);
    add(times[i].made, reshard.before, read, is_last ? Reads::kSeveral : programs[reshard.before],
        LocalBytes(entry.shape(reshard.value), reshard.to, plan.mesh));
  }
  return versions;
}

// Added to temporaries, which XLA:GPU lays out, orders and fuses otherwise than is known here, and
// beside which its convolutions need memory to work in: docs/design/0021.
int64_t UncertainBytes(const StepFacts& facts, int64_t temporary_bytes) {
  constexpr double kShare = 0.1;
  if (facts.platform != Platform::kCuda) return 0;
  return static_cast<int64_t>(kShare * static_cast<double>(temporary_bytes));
}

}  // namespace

MemoryEstimate EstimateMemory(const StepFacts& facts, const StagePlan& plan) {
  const Computation& entry = facts.entry;
  const int end = entry.num_instructions() + 1;
  LivenessProfile profile(end);
  MemoryEstimate arguments;
  for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
    const Instruction& instruction = entry.instructions[id];
    if (instruction.opcode != Opcode::kParameter) continue;
    const Sharding sharding = VersionSharding(facts.step.module, plan, {id, 0}, 0);
    const int64_t bytes = LocalBytes(instruction.shape(), sharding, plan.mesh);
    arguments.argument_bytes += bytes;
    const auto number = static_cast<size_t>(instruction.As<ParameterAttributes>().number);
    if (facts.step.parameters[number].role == ParameterRole::kState) arguments.state_bytes += bytes;
    profile.Add(0, end, bytes);
  }
  const std::vector<int> one_program(entry.instructions.size());
  for (const Version& version : MadeVersions(facts, plan, one_program, entry.results.size())) {
    profile.Add(version.begin, version.end, version.bytes);
  }
  MemoryEstimate estimate = profile.Peak();
  estimate.peak_bytes += UncertainBytes(facts, estimate.peak_bytes - arguments.argument_bytes);
  estimate.argument_bytes = arguments.argument_bytes;
  estimate.state_bytes = arguments.state_bytes;
  return estimate;
}

LayerMemory EstimateLayerMemory(const StepFacts& facts, const StagePlan& plan,
                                std::span<const int> received, int num_own_results) {
  const Computation& entry = facts.entry;
  const int end = entry.num_instructions() + 1;
  const std::vector<int> one_program(entry.instructions.size());
  const auto behind_backward =
      std::ranges::find(facts.phases.rbegin(), facts.phases.rend(), Phase::kBackward).base();
  const auto update_begins = static_cast<InstructionId>(behind_backward - facts.phases.begin());
  LayerMemory layer;
  LivenessProfile profile(end);
  const auto add = [&](const Version& version) {
    profile.Add(version.begin, version.end, version.bytes);
    // What is made or first read then is not there yet.
    const auto is_there = [&](InstructionId time) {
      return version.begin < time && time < version.end;
    };
    const MicroLoop& loop = facts.loop;
    if (loop.exists() && version.begin <= loop.begin && version.end >= loop.end) {
      layer.static_bytes += version.bytes;
      if (version.is_sum) layer.owned_bytes += version.bytes;
      return;
    }
    if (is_there(facts.turning_point)) layer.kept_bytes += version.bytes;
    if (is_there(update_begins)) layer.updated_bytes += version.bytes;
  };
  for (const InstructionId parameter : entry.parameters) {
    const Sharding sharding = VersionSharding(facts.step.module, plan, {parameter, 0}, 0);
    const int64_t bytes = LocalBytes(entry.instructions[parameter].shape(), sharding, plan.mesh);
    const auto number = entry.instructions[parameter].As<ParameterAttributes>().number;
    if (std::ranges::find(received, number) == received.end()) {
      layer.static_bytes += bytes;
      const bool is_state =
          facts.step.parameters[static_cast<size_t>(number)].role == ParameterRole::kState;
      if (is_state) layer.owned_bytes += bytes;
      profile.Add(0, end, bytes);
      continue;
    }
    Version read{.begin = end, .end = end, .bytes = bytes};
    for (const Use& use : facts.uses.uses({parameter, 0})) {
      read.begin = std::min(read.begin, use.user);
      read.end = std::max(read.end == end ? 0 : read.end, facts.last_runs[use.user] + 1);
    }
    add(read);
  }
  for (const Version& version : MadeVersions(facts, plan, one_program, num_own_results))
    add(version);
  layer.kept_bytes += UncertainBytes(facts, layer.kept_bytes);
  layer.updated_bytes += UncertainBytes(facts, layer.updated_bytes);
  const int64_t peak_bytes = profile.Peak().peak_bytes;
  layer.peak_bytes = peak_bytes + UncertainBytes(facts, peak_bytes - layer.static_bytes);
  return layer;
}

std::vector<int64_t> EstimateTemporaries(const StepFacts& facts, const StagePlan& plan,
                                         std::span<const int> programs, int num_programs) {
  std::vector<LivenessProfile> profiles(num_programs,
                                        LivenessProfile(facts.entry.num_instructions() + 1));
  for (const Version& version : MadeVersions(facts, plan, programs, facts.entry.results.size())) {
    if (version.program < 0) continue;
    profiles[version.program].Add(version.begin, version.end, version.bytes);
  }
  std::vector<int64_t> bytes;
  for (const LivenessProfile& profile : profiles) {
    const int64_t peak_bytes = profile.Peak().peak_bytes;
    bytes.push_back(peak_bytes + UncertainBytes(facts, peak_bytes));
  }
  return bytes;
}

}  // namespace minka
