#include "minka/schedule/schedule.h"

#include <algorithm>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/status.h"
#include "minka/schedule/generate.h"

namespace minka {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kMaxMeshes = 16, kMaxMicroBatches = 64;

// Every shape that the kind can do, up to 16 meshes and 64 micro-batches.
template <typename Visit>
void ForEachShape(const ScheduleKind& kind, const Visit& visit) {
  for (int meshes = 1; meshes <= kMaxMeshes; ++meshes) {
    for (int batches = 1; batches <= kMaxMicroBatches; ++batches) {
      for (int stages = 1; stages <= 4; ++stages) {
        const PipelineShape shape{meshes, batches, stages};
        if (kind.check(shape).ok()) visit(shape);
      }
    }
  }
}

class Schedules : public testing::TestWithParam<ScheduleKind> {};

TEST_P(Schedules, RunEveryTaskOnceAndNeverWaitForEver) {
  int num_shapes = 0;
  ForEachShape(GetParam(), [&](const PipelineShape& shape) {
    const auto schedule = MakeSchedule(GetParam().name, shape);
    ASSERT_TRUE(schedule.ok()) << Message(schedule.status());
    ASSERT_TRUE(Verify(*schedule).ok());
    ++num_shapes;
  });
  EXPECT_GE(num_shapes, 64);
}

// The formulas: GPipe keeps all; 1F1B one for each mesh from its own to the last; eager 1F1B nearly
// twice as many; interleaved as many pairs as run ahead and one; ZB-H1 no more than 1F1B's first
// mesh.
int MostInFlight(std::string_view name, const PipelineShape& shape, int mesh) {
  const int from_here = shape.num_meshes - mesh, all = shape.num_micro_batches;
  if (name == "1f1b") return std::min(all, from_here);
  if (name == "eager-1f1b") return std::min(all, 2 * from_here - 1);
  if (name == "zero-bubble-h1") return std::min(all, shape.num_meshes);
  if (name == "interleaved-1f1b" && shape.stages_per_mesh == 1) return std::min(all, from_here);
  if (name == "interleaved-1f1b") {
    return std::min(all * shape.stages_per_mesh,
                    2 * (from_here - 1) + (shape.stages_per_mesh - 1) * shape.num_meshes + 1);
  }
  return name == "inference" ? 1 : all;
}

TEST_P(Schedules, KeepAsManyInFlightAsTheirFormulaSays) {
  const std::string_view name = GetParam().name;
  ForEachShape(GetParam(), [&](const PipelineShape& shape) {
    const std::vector<MicroBatchesHeld> held = MostHeld(*MakeSchedule(name, shape));
    for (int mesh = 0; mesh < shape.num_meshes; ++mesh) {
      const int most = MostInFlight(name, shape, mesh);
      ASSERT_LE(held[mesh].in_flight, most)
          << name << " " << shape.num_meshes << " meshes, " << shape.num_micro_batches
          << " micro-batches, mesh " << mesh;
      if (name != "zero-bubble-h1") {
        ASSERT_EQ(held[mesh].in_flight, most);
      }
    }
  });
}

TEST_P(Schedules, SayWhatTheyHoldWithoutBeingMade) {
  const std::string_view name = GetParam().name;
  ForEachShape(GetParam(), [&](const PipelineShape& shape) {
    ASSERT_EQ(*MostHeldBy(name, shape), MostHeld(*MakeSchedule(name, shape)))
        << name << " " << shape.num_meshes << " meshes, " << shape.num_micro_batches
        << " micro-batches";
  });
  EXPECT_FALSE(MostHeldBy(name, {.num_micro_batches = 0}).ok());
}

INSTANTIATE_TEST_SUITE_P(All, Schedules,
                         testing::ValuesIn(ScheduleKinds().begin(), ScheduleKinds().end()),
                         [](const auto& info) {
                           std::string name(info.param.name);
                           std::erase(name, '-');
                           return name;
                         });

std::vector<std::string> Texts(const std::vector<Task>& tasks) {
  std::vector<std::string> texts;
  for (const Task& task : tasks) {
    texts.push_back(fmt::format("{}{}", "FBWA"[static_cast<int>(task.kind)], task.micro_batch));
  }
  return texts;
}

TEST(MakeSchedule, OneFOneBRunsOneForwardAndOneBackwardInTurn) {
  const Schedule schedule = *MakeSchedule("1f1b", {.num_meshes = 2, .num_micro_batches = 3});
  EXPECT_THAT(Texts(schedule.tasks[0]), ElementsAre("F0", "F1", "B0", "F2", "B1", "B2", "A0"));
  EXPECT_THAT(Texts(schedule.tasks[1]), ElementsAre("F0", "B0", "F1", "B1", "F2", "B2", "A0"));
}

TEST(MakeSchedule, ZeroBubblePutsGradientsOfWeightsOff) {
  const Schedule schedule =
      *MakeSchedule("zero-bubble-h1", {.num_meshes = 2, .num_micro_batches = 3});
  EXPECT_THAT(Texts(schedule.tasks[0]),
              ElementsAre("F0", "F1", "B0", "W0", "F2", "B1", "W1", "B2", "W2", "A0"));
  EXPECT_THAT(Texts(schedule.tasks[1]),
              ElementsAre("F0", "B0", "F1", "B1", "W0", "F2", "B2", "W1", "W2", "A0"));
}

// By the second mesh of four: one micro-batch is put off and three are between their passes; where
// there are fewer than meshes, all may be put off but the last one, which is in its backward pass.
TEST(MostHeld, CountsWhatIsPutOff) {
  const auto of_second = [](std::string_view name, int num_micro_batches) {
    return MostHeld(
        *MakeSchedule(name, {.num_meshes = 4, .num_micro_batches = num_micro_batches}))[1];
  };
  EXPECT_EQ(of_second("zero-bubble-h1", 8), (MicroBatchesHeld{.in_flight = 4, .put_off = 1}));
  EXPECT_EQ(of_second("zero-bubble-h1", 2), (MicroBatchesHeld{.in_flight = 2, .put_off = 1}));
  EXPECT_EQ(of_second("1f1b", 8), (MicroBatchesHeld{.in_flight = 3, .put_off = 0}));
}

TEST(MakeSchedule, SaysWhatAShapeLacks) {
  EXPECT_EQ(Message(MakeSchedule("2f2b", {}).status()),
            "unknown schedule \"2f2b\"; known: gpipe, 1f1b, eager-1f1b, interleaved-1f1b, "
            "zero-bubble-h1, inference");
  EXPECT_EQ(Message(MakeSchedule("1f1b", {.num_meshes = 2, .stages_per_mesh = 2}).status()),
            "schedule 1f1b: 2 stages on each mesh: only interleaved-1f1b has more than one");
  EXPECT_EQ(Message(MakeSchedule("interleaved-1f1b",
                                 {.num_meshes = 4, .num_micro_batches = 6, .stages_per_mesh = 2})
                        .status()),
            "schedule interleaved-1f1b: 6 micro-batches are no multiple of the 4 meshes");
  EXPECT_THAT(Message(MakeSchedule("gpipe", {.num_micro_batches = 0}).status()),
              HasSubstr("at least one"));
}

class WrongSchedules : public testing::Test {
 protected:
  Schedule schedule_ = *MakeSchedule("1f1b", {.num_meshes = 2, .num_micro_batches = 2});
};

TEST_F(WrongSchedules, ATaskThatIsLeftOutIsNamed) {
  schedule_.tasks[1].erase(schedule_.tasks[1].begin() + 3);
  EXPECT_EQ(Message(Verify(schedule_)),
            "schedule 1f1b: no mesh runs backward of micro-batch 1 on stage 1");
}

TEST_F(WrongSchedules, ATaskThatRunsTwiceIsNamed) {
  schedule_.tasks[0].push_back(schedule_.tasks[0].front());
  EXPECT_EQ(Message(Verify(schedule_)),
            "schedule 1f1b: mesh 0 runs forward of micro-batch 0 on stage 0 twice");
}

TEST_F(WrongSchedules, ATaskOnAnotherMeshIsNamed) {
  std::swap(schedule_.tasks[0], schedule_.tasks[1]);
  EXPECT_EQ(Message(Verify(schedule_)),
            "schedule 1f1b: mesh 0 runs forward of micro-batch 0 on stage 1, which lies on mesh 1");
}

TEST_F(WrongSchedules, ATaskThatTheStepDoesNotHaveIsNamed) {
  for (const Task& task : {Task{TaskKind::kForward, 0, 2}, Task{TaskKind::kForward, 2, 0},
                           Task{TaskKind::kForward, -1, 0}, Task{TaskKind::kApply, 0, 1},
                           Task{TaskKind::kWeightGradient, 0, 0}}) {
    Schedule wrong = schedule_;
    wrong.tasks[0].push_back(task);
    EXPECT_THAT(Message(Verify(wrong)), HasSubstr("which the step does not have"));
  }
}

TEST_F(WrongSchedules, ACircleIsNamed) {
  std::swap(schedule_.tasks[1][0], schedule_.tasks[1][1]);
  EXPECT_EQ(Message(Verify(schedule_)),
            "schedule 1f1b: mesh 0 waits for ever in front of its task 2, backward of micro-batch "
            "0 on stage 0, for backward of micro-batch 0 on stage 1");
}

}  // namespace
}  // namespace minka
