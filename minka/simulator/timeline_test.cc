#include "minka/simulator/timeline.h"

#include <random>
#include <string_view>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/status.h"
#include "minka/schedule/generate.h"

namespace minka {
namespace {

using ::testing::DoubleNear;
using ::testing::Each;

// The time of a stage's forward task, of its whole backward task and of the part of that which only
// the weights need; applying takes none.
struct StageTimes {
  double forward = 1, backward = 2, weight_gradient = 1;
};

TaskTimes EqualStages(const Schedule& schedule, const StageTimes& times, double transfer = 0) {
  const double share = 1.0 / schedule.shape.stages_per_mesh;
  const bool splits = schedule.splits_backward;
  return {.task =
              [=](const Task& task) {
                switch (task.kind) {
                  case TaskKind::kForward:
                    return share * times.forward;
                  case TaskKind::kBackward:
                    return share * (times.backward - (splits ? times.weight_gradient : 0));
                  case TaskKind::kWeightGradient:
                    return share * times.weight_gradient;
                  case TaskKind::kApply:
                    break;
                }
                return 0.0;
              },
          .transfer = [=](const Task&, const Task&) { return transfer; }};
}

Timeline TimelineOf(std::string_view name, const PipelineShape& shape, const StageTimes& times,
                    double transfer = 0) {
  const Schedule schedule = *MakeSchedule(name, shape);
  return *Simulate(schedule, EqualStages(schedule, times, transfer));
}

constexpr StageTimes kTimes[] = {{1, 2, 1}, {1, 3, 1}, {2, 4, 2}, {3, 6, 2}};

// Idle time of every mesh by the formulas of the papers, F forward, B backward, W its part for
// weights: (p - 1)(F + B) for GPipe and both 1F1B, a v-th of it interleaved, (p - 1)(F + B - 2 W)
// for ZB-H1, (p - 1) F for inference.
TEST(Simulate, MeshesOfEqualStagesIdleAsTheFormulasSay) {
  for (const StageTimes& t : kTimes) {
    for (int p = 1; p <= 16; ++p) {
      for (int m = 1; m <= 64; ++m) {
        if (&t != kTimes && m % 8 != 0) continue;
        const auto idles = [&](std::string_view name, int v, double idle) {
          ASSERT_THAT(TimelineOf(name, {p, m, v}, t).idle, Each(DoubleNear(idle, 1e-6)))
              << name << " of " << p << " meshes and " << m << " micro-batches";
        };
        idles("gpipe", 1, (p - 1) * (t.forward + t.backward));
        idles("1f1b", 1, (p - 1) * (t.forward + t.backward));
        idles("eager-1f1b", 1, (p - 1) * (t.forward + t.backward));
        idles("inference", 1, (p - 1) * t.forward);
        if (m >= p) {
          idles("zero-bubble-h1", 1, (p - 1) * (t.forward + t.backward - 2 * t.weight_gradient));
        }
        if (m % p != 0) continue;
        for (int v = 1; v <= 4; ++v) {
          idles("interleaved-1f1b", v, (p - 1) * (t.forward + t.backward) / v);
        }
      }
    }
  }
}

TEST(Simulate, EagerOneFOneBHidesTransfers) {
  const PipelineShape shape{.num_meshes = 4, .num_micro_batches = 16};
  const StageTimes times;
  const double without = TimelineOf("1f1b", shape, times).step_time;
  const double lost = TimelineOf("1f1b", shape, times, 0.5).step_time - without;
  const double lost_eagerly = TimelineOf("eager-1f1b", shape, times, 0.5).step_time - without;
  EXPECT_LT(lost_eagerly, lost / 2);
}

// Two micro-batches go up one behind the other. With 1F1B the first's gradient comes down while the
// second is on its way up; with GPipe gradients wait for both.
TEST(Simulate, TransfersOfOneWayTakeTurns) {
  const PipelineShape shape{.num_meshes = 2, .num_micro_batches = 2};
  EXPECT_DOUBLE_EQ(TimelineOf("gpipe", shape, {0, 0, 0}, 10).step_time, 40);
  EXPECT_DOUBLE_EQ(TimelineOf("1f1b", shape, {0, 0, 0}, 10).step_time, 30);
  EXPECT_DOUBLE_EQ(TimelineOf("inference", shape, {0, 0, 0}, 10).step_time, 20);
}

// The pool is busy whenever anything runs, so a step takes as long as all its work.
TEST(Simulate, MeshesThatShareCoresTakeTurns) {
  for (const ScheduleKind& kind : ScheduleKinds()) {
    const Schedule schedule = *MakeSchedule(kind.name, {.num_meshes = 4, .num_micro_batches = 8});
    TaskTimes times = EqualStages(schedule, {1, 2, 1});
    double work = 0;
    for (const std::vector<Task>& tasks : schedule.tasks) {
      for (const Task& task : tasks) work += times.task(task);
    }
    times.meshes_share_cores = true;
    EXPECT_NEAR(Simulate(schedule, times)->step_time, work, 1e-6) << kind.name;
  }
  // Alone where another one waits for its transfer.
  const Schedule schedule = *MakeSchedule("inference", {.num_meshes = 2, .num_micro_batches = 1});
  TaskTimes times = EqualStages(schedule, {3, 0, 0}, 10);
  times.meshes_share_cores = true;
  EXPECT_DOUBLE_EQ(Simulate(schedule, times)->step_time, 16);
}

// No pipeline ends before its slowest mesh has done its work, nor before one micro-batch has gone
// there and back, whatever the stages take.
TEST(Simulate, UnequalStagesTakeAtLeastTheirWork) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 50; ++round) {
    std::vector<double> of_stage(4);
    for (double& time : of_stage) time = 1 + static_cast<double>(random() % 100) / 10;
    for (const ScheduleKind& kind : ScheduleKinds()) {
      const Schedule schedule = *MakeSchedule(kind.name, {.num_meshes = 4, .num_micro_batches = 8});
      const Timeline timeline =
          *Simulate(schedule, {.task = [&](const Task& task) {
                      return task.kind == TaskKind::kApply ? 0 : of_stage[task.stage];
                    }});
      double through = 0;
      for (int mesh = 0; mesh < 4; ++mesh) {
        through += of_stage[mesh];
        ASSERT_GE(timeline.idle[mesh], 0);
        double end = 0;
        for (const TimedTask& timed : timeline.meshes[mesh]) {
          ASSERT_GE(timed.begin, end);
          end = timed.end;
        }
      }
      ASSERT_GE(timeline.step_time, kind.trains ? 2 * through : through);
    }
  }
}

}  // namespace
}  // namespace minka
