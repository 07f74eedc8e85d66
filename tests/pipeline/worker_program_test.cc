// The programs of real pipelines on their way to the workers.
#include <tuple>

#include "gtest/gtest.h"
#include "minka/base/status.h"
#include "minka/ir/hlo_proto.h"
#include "minka/ir/module_equality.h"
#include "minka/runtime/worker/program_proto.h"
#include "minka/schedule/generate.h"
#include "tests/pipeline/small_steps.h"

namespace minka {
namespace {

void ExpectSame(const MeshProgram& received, const MeshProgram& sent) {
  EXPECT_EQ(received.mesh, sent.mesh);
  EXPECT_EQ(received.numbers, sent.numbers);
  EXPECT_EQ(received.tile_lists, sent.tile_lists);
  ASSERT_EQ(received.slots.size(), sent.slots.size());
  for (size_t i = 0; i < sent.slots.size(); ++i) {
    EXPECT_EQ(received.slots[i].name, sent.slots[i].name);
    EXPECT_EQ(received.slots[i].shape, sent.slots[i].shape);
    EXPECT_EQ(received.slots[i].sharding, sent.slots[i].sharding);
  }
  ASSERT_EQ(received.programs.size(), sent.programs.size());
  for (size_t i = 0; i < sent.programs.size(); ++i) {
    const StageProgram& a = received.programs[i];
    const StageProgram& b = sent.programs[i];
    EXPECT_EQ(a.stage, b.stage);
    EXPECT_EQ(a.task, b.task);
    EXPECT_EQ(a.signature.parameters, b.signature.parameters);
    EXPECT_EQ(a.signature.results, b.signature.results);
    EXPECT_EQ(a.signature.parameter_shardings, b.signature.parameter_shardings);
    EXPECT_EQ(a.signature.result_shardings, b.signature.result_shardings);
    EXPECT_EQ(Difference(a.module, *ImportHlo(ExportHlo(b.module))), "");
  }
  EXPECT_EQ(InstructionsText(received), InstructionsText(sent));
}

// What the driver does with slots, the worker allows.
void ExpectUses(const ReceivedProgram& received, const PipelineProgram& pipeline, int mesh) {
  std::vector<bool> is_parameter(received.uses.size());
  for (const std::vector<MeshSlot>& places : pipeline.parameters) {
    for (const MeshSlot& at : places) {
      if (at.mesh != mesh) continue;
      is_parameter[at.slot] = true;
      EXPECT_TRUE(received.uses[at.slot].is_given) << pipeline.slot(at).name;
    }
  }
  for (size_t slot = 0; slot < received.uses.size(); ++slot) {
    EXPECT_TRUE(is_parameter[slot] || !received.uses[slot].is_needed)
        << received.program.slots[slot].name;
  }
  for (const MeshSlot& at : pipeline.results) {
    if (at.mesh != mesh) continue;
    EXPECT_TRUE(received.uses[at.slot].is_left) << pipeline.slot(at).name;
  }
}

// How many channels lead from a mesh to itself.
int ExpectRoundTrip(const Step& step, const SmallPipeline& small) {
  const auto program = LowerPipeline(PlanSmall(step, small), Platform::kCpu);
  EXPECT_TRUE(program.ok()) << Message(program.status());
  if (!program.ok()) return 0;
  int num_own_channels = 0;
  const auto num_meshes = static_cast<int>(program->meshes.size());
  for (int mesh = 0; mesh < num_meshes; ++mesh) {
    const MeshProgram& sent = program->meshes[mesh];
    worker::Open open;
    open.set_num_devices(static_cast<int>(sent.mesh.num_devices()));
    open.set_peer(mesh);
    open.set_num_peers(num_meshes);
    const std::map<int, int> peers = PeersOf(*program, mesh);
    const auto received = MeshProgramFromProto(MeshProgramToProto(sent, peers), open);
    EXPECT_TRUE(received.ok()) << Message(received.status());
    if (!received.ok()) continue;
    EXPECT_EQ(received->peers, peers);
    for (const auto& [channel, peer] : peers) num_own_channels += peer == mesh ? 1 : 0;
    ExpectSame(received->program, sent);
    ExpectUses(*received, *program, mesh);
  }
  return num_own_channels;
}

TEST(WorkerProgram, ProgramsOfEveryScheduleArriveAsTheyWereSent) {
  for (const ScheduleKind& kind : ScheduleKinds()) {
    SCOPED_TRACE(kind.name);
    const std::string name(kind.name);
    ExpectRoundTrip(
        name == "inference" ? SmallEvaluation() : SmallMlp(),
        {.schedule = name, .stages_per_mesh = name == "interleaved-1f1b" ? 2 : 1, .mesh = "2"});
  }
}

TEST(WorkerProgram, ProgramsWithTiedWeightsAndAGlobalNormArriveAsTheyWereSent) {
  ExpectRoundTrip(SmallBert(), {.num_meshes = 3, .mesh = "2"});
}

// Stages of one mesh send each other what they share.
TEST(WorkerProgram, AMeshMaySendToItself) {
  EXPECT_GT(ExpectRoundTrip(SmallBert(), {.schedule = "interleaved-1f1b", .stages_per_mesh = 2}),
            0);
}

}  // namespace
}  // namespace minka
