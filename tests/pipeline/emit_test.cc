#include "minka/lowering/emit.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "fmt/format.h"
#include "gtest/gtest.h"
#include "minka/base/status.h"
#include "minka/schedule/generate.h"
#include "minka/sharding/reshard.h"
#include "minka/simulator/mesh_memory.h"
#include "tests/pipeline/small_steps.h"

namespace minka {
namespace {

// By mesh.
std::vector<int> PeakInFlight(const Schedule& schedule) {
  std::vector<int> peaks;
  for (const MicroBatchesHeld& held : MostHeld(schedule)) peaks.push_back(held.in_flight);
  return peaks;
}

// Plays the lists of all meshes on empty and full slots, without any values.
class Player {
 public:
  explicit Player(const PipelineProgram& program)
      : program_(program), num_sent_(program.channels.size()), num_received_(num_sent_) {
    for (const MeshProgram& mesh : program.meshes) {
      MeshState& state = meshes_.emplace_back();
      state.is_full.resize(mesh.slots.size());
      for (const int slot : mesh.numbers) state.is_full[slot] = true;
    }
    for (const std::vector<MeshSlot>& places : program.parameters) {
      for (const MeshSlot& at : places) meshes_[at.mesh].is_full[at.slot] = true;
    }
    at_the_end_ = meshes_;
    for (const MeshSlot& at : program.results) at_the_end_[at.mesh].is_full[at.slot] = true;
    for (size_t mesh = 0; mesh < meshes_.size(); ++mesh) FindOwners(static_cast<int>(mesh));
  }

  void Run() {
    for (bool moves = true; moves;) {
      moves = false;
      for (size_t mesh = 0; mesh < meshes_.size(); ++mesh) {
        const std::vector<PipelineInstruction>& list = program_.meshes[mesh].instructions;
        size_t& next = meshes_[mesh].next;
        for (; next < list.size() && !Waits(list[next]); ++next) {
          std::visit([&](const auto& instruction) { Play(static_cast<int>(mesh), instruction); },
                     list[next]);
          moves = true;
        }
      }
    }
    for (size_t mesh = 0; mesh < meshes_.size(); ++mesh) {
      EXPECT_EQ(meshes_[mesh].next, program_.meshes[mesh].instructions.size())
          << "mesh " << mesh << " waits for ever";
      EXPECT_EQ(meshes_[mesh].is_full, at_the_end_[mesh].is_full) << "mesh " << mesh;
    }
    for (size_t channel = 0; channel < num_sent_.size(); ++channel) {
      EXPECT_EQ(num_sent_[channel], 1) << "channel " << channel;
      EXPECT_EQ(num_received_[channel], 1) << "channel " << channel;
    }
  }

  // By mesh: of how many pairs of stage and micro-batch there was at most something that they alone
  // read and write, from their forward program on.
  std::vector<int> PeakInFlight() const {
    std::vector<int> peaks;
    for (const MeshState& mesh : meshes_) peaks.push_back(mesh.peak);
    return peaks;
  }

 private:
  // Stage and micro-batch.
  using Owner = std::pair<int, int>;

  struct MeshState {
    std::vector<bool> is_full;                // by slot
    std::vector<std::optional<Owner>> owner;  // by slot: whose programs alone name it
    size_t next = 0;
    int peak = 0;
  };

  void FindOwners(int mesh) {
    const MeshProgram& of_mesh = program_.meshes[mesh];
    std::vector<std::set<Owner>> named(of_mesh.slots.size());
    for (const PipelineInstruction& instruction : of_mesh.instructions) {
      const auto* run = std::get_if<RunInstruction>(&instruction);
      if (!run) continue;
      const Owner owner = {of_mesh.programs[run->program].stage, run->micro_batch};
      for (const int slot : run->arguments) named[slot].insert(owner);
      for (const int slot : run->results) named[slot].insert(owner);
    }
    for (size_t slot = 0; slot < named.size(); ++slot) {
      const bool is_owned = named[slot].size() == 1 && named[slot].begin()->second >= 0 &&
                            !at_the_end_[mesh].is_full[slot];
      meshes_[mesh].owner.push_back(is_owned ? std::optional(*named[slot].begin()) : std::nullopt);
    }
  }

  bool Waits(const PipelineInstruction& instruction) const {
    const auto* receive = std::get_if<ReceiveInstruction>(&instruction);
    return receive && num_sent_[receive->channel] == 0;
  }
  std::string NameOf(int mesh, int slot) const {
    return fmt::format("{} (slot {} of mesh {})", program_.meshes[mesh].slots[slot].name, slot,
                       mesh);
  }
  void Read(int mesh, int slot) const {
    EXPECT_TRUE(meshes_[mesh].is_full[slot]) << NameOf(mesh, slot) << " is read empty";
  }
  void Fill(int mesh, int slot) {
    EXPECT_FALSE(meshes_[mesh].is_full[slot]) << NameOf(mesh, slot) << " is written when full";
    meshes_[mesh].is_full[slot] = true;
  }

  void Play(int mesh, const RunInstruction& run) {
    const StageProgram& program = program_.meshes[mesh].programs[run.program];
    for (const int slot : run.arguments) Read(mesh, slot);
    for (const int slot : run.results) {
      if (std::ranges::find(run.arguments, slot) != run.arguments.end()) continue;
      Fill(mesh, slot);
    }
    MeshState& state = meshes_[mesh];
    std::set<Owner> in_flight;
    if (program.task.kind == ProgramKind::kForward) {
      in_flight.insert({program.stage, run.micro_batch});
    }
    for (size_t slot = 0; slot < state.owner.size(); ++slot) {
      if (state.is_full[slot] && state.owner[slot]) in_flight.insert(*state.owner[slot]);
    }
    state.peak = std::max(state.peak, static_cast<int>(in_flight.size()));
  }
  void Play(int mesh, const SendInstruction& send) {
    Read(mesh, send.slot);
    EXPECT_EQ(program_.channels[send.channel].from, (MeshSlot{mesh, send.slot}));
    ++num_sent_[send.channel];
  }
  void Play(int mesh, const ReceiveInstruction& receive) {
    Fill(mesh, receive.slot);
    EXPECT_EQ(program_.channels[receive.channel].to, (MeshSlot{mesh, receive.slot}));
    ++num_received_[receive.channel];
  }
  void Play(int mesh, const FreeInstruction& free) {
    for (const int slot : free.slots) {
      Read(mesh, slot);
      meshes_[mesh].is_full[slot] = false;
    }
  }

  const PipelineProgram& program_;
  std::vector<MeshState> meshes_, at_the_end_;
  std::vector<int> num_sent_, num_received_;  // by channel
};

// Schedule, meshes, micro-batches.
using ScheduleCase = std::tuple<std::string, int, int>;

class Emitted : public testing::TestWithParam<ScheduleCase> {};

TEST_P(Emitted, ListsRunToTheirEndAndFreeWhatTheyMake) {
  const auto& [schedule, num_meshes, num_micro_batches] = GetParam();
  const int stages_per_mesh = schedule == "interleaved-1f1b" ? 2 : 1;
  const PlannedPipeline planned =
      PlanSmall(schedule == "inference" ? SmallEvaluation() : SmallMlp(),
                {.schedule = schedule,
                 .num_meshes = num_meshes,
                 .stages_per_mesh = stages_per_mesh,
                 .num_micro_batches = num_micro_batches});
  const auto program = LowerPipeline(planned, Platform::kCpu);
  ASSERT_TRUE(program.ok()) << Message(program.status());
  Player player(*program);
  player.Run();
  EXPECT_EQ(player.PeakInFlight(), PeakInFlight(planned.schedule));
}

std::vector<ScheduleCase> Cases() {
  std::vector<ScheduleCase> cases;
  for (const ScheduleKind& kind : ScheduleKinds()) {
    for (int num_meshes = 1; num_meshes <= 4; ++num_meshes) {
      for (const int num_micro_batches : {1, 2, 4, 12}) {
        if (!MakeSchedule(kind.name, {num_meshes, num_micro_batches}).ok()) continue;
        cases.emplace_back(kind.name, num_meshes, num_micro_batches);
      }
    }
  }
  return cases;
}

std::string NameOf(const testing::TestParamInfo<ScheduleCase>& info) {
  const auto& [schedule, num_meshes, num_micro_batches] = info.param;
  std::string name =
      fmt::format("{}_{}_meshes_{}_micro_batches", schedule, num_meshes, num_micro_batches);
  std::ranges::replace(name, '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Mlp, Emitted, testing::ValuesIn(Cases()), NameOf);

// With values that are sent once, to several stages and in both directions.
// What meshes hold is known from fewer micro-batches.
TEST(Emit, ShorterListsNeedTheSameMemory) {
  for (const ScheduleKind& kind : ScheduleKinds()) {
    for (const int num_meshes : {2, 3}) {
      const bool is_interleaved = kind.name == "interleaved-1f1b";
      const PlannedPipeline planned = PlanSmall(kind.trains ? SmallMlp() : SmallEvaluation(),
                                                {.schedule = std::string(kind.name),
                                                 .num_meshes = num_meshes,
                                                 .stages_per_mesh = is_interleaved ? 2 : 1,
                                                 .num_micro_batches = 24});
      const auto whole = LowerPipeline(planned, Platform::kCpu);
      const auto shorter = LowerForMemory(planned, Platform::kCpu);
      ASSERT_TRUE(whole.ok() && shorter.ok());
      for (int i = 0; i < num_meshes; ++i) {
        const MeshProgram &all = whole->meshes[i], &fewer = shorter->meshes[i];
        if (kind.name != "gpipe") {
          EXPECT_LT(fewer.instructions.size(), all.instructions.size()) << kind.name;
        }
        ASSERT_EQ(fewer.programs.size(), all.programs.size());
        for (size_t program = 0; program < all.programs.size(); ++program) {
          // As if this program alone took memory besides.
          std::vector<int64_t> temporary(all.programs.size());
          temporary[program] = 1 << 20;
          EXPECT_EQ(PeakMemory(*shorter, fewer, temporary), PeakMemory(*whole, all, temporary))
              << kind.name << ", mesh " << i << " of " << num_meshes;
        }
      }
    }
  }
}

TEST(Emit, ListsOfStepsWithTiedWeightsAndAGlobalNormRunToTheirEnd) {
  for (const std::string schedule : {"1f1b", "zero-bubble-h1"}) {
    const PlannedPipeline planned =
        PlanSmall(SmallBert(), {.schedule = schedule, .num_meshes = 3, .mesh = "2"});
    const auto program = LowerPipeline(planned, Platform::kCpu);
    ASSERT_TRUE(program.ok()) << Message(program.status());
    Player player(*program);
    player.Run();
    EXPECT_EQ(player.PeakInFlight(), PeakInFlight(planned.schedule));
  }
}

// What a stage sends once per step is made and sent once, however its plan lays it out for that.
TEST(Emit, WhatIsResplitToBeSentOnceIsSentOnce) {
  PlannedPipeline planned = PlanSmall(SmallBert(), {.mesh = "2"});
  const Border& border = *std::ranges::find_if(planned.staged.borders, [](const Border& border) {
    return !border.per_micro_batch && border.from.stage == 0 && border.shape.rank() == 2;
  });
  const Module& module = planned.staged.stages[0].step.module;
  StagePlan& plan = planned.plan.stages[0].plan.stage;
  const Value sent = module.entry_computation().results[border.from.number];
  const Sharding from = VersionSharding(module, plan, sent, 0);
  Sharding to = Sharding::Replicated(2);
  if (from == to) to.dims[0].PushMinor(0);
  plan.reshards.push_back({.value = sent,
                           .from = from,
                           .to = to,
                           .steps = CheapestReshard(border.shape, from, to, plan.mesh,
                                                    [](const StepWork&) { return 1.0; })
                                        .steps,
                           .before = module.entry_computation().num_instructions()});
  plan.result_versions[border.from.number] = static_cast<int>(plan.reshards.size());
  const auto program = LowerPipeline(planned, Platform::kCpu);
  ASSERT_TRUE(program.ok()) << Message(program.status());
  Player(*program).Run();
}

}  // namespace
}  // namespace minka
