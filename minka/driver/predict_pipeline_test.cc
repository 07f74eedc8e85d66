#include "minka/driver/predict_pipeline.h"

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"
#include "minka/base/status.h"
#include "minka/driver/pipeline.h"
#include "minka/models/registry.h"
#include "minka/simulator/mesh_memory.h"

namespace minka {
namespace {

TEST(PredictPipeline, TasksOfAStageAddUpToTheStepTimeOfItsPlan) {
  const absl::StatusOr<TracedStep> traced = TraceModel("gpt-tiny", {.num_layers = 4});
  ASSERT_TRUE(traced.ok()) << Message(traced.status());
  const absl::StatusOr<PlannedPipeline> planned = PlanPipeline(
      traced->step,
      {.cluster = *Cluster::Preset("p3.16xlarge"),
       .micro_batches = {.num_micro_batches = 4},
       .pipeline = PipelineOptions{.submeshes = {4, 4}},
       .search = {.pins = {"params/*/mlp/up/kernel=[-,x]", "params/*/mlp/down/kernel=[x,-]"},
                  .limits = {.no_all_gather = true}}});
  ASSERT_TRUE(planned.ok()) << Message(planned.status());
  double collectives_us = 0;  // of programs that run for every micro-batch
  for (size_t i = 0; i < planned->plan.stages.size(); ++i) {
    const PipelineStagePlan& stage = planned->plan.stages[i];
    const double micro_batch_us = stage.forward_us + stage.backward_us + stage.weight_gradient_us;
    const double step_us = planned->plan.num_micro_batches * micro_batch_us + stage.apply_us;
    EXPECT_NEAR(step_us, stage.plan.step_time_us, 1e-6 * step_us) << "stage " << i;
    for (const auto& [kind, cost] : CostsByProgram(planned->staged.stages[i], stage.plan.stage)) {
      if (IsPerMicroBatch(kind)) collectives_us += cost.collectives_us;
    }
  }
  EXPECT_GT(collectives_us, 0);
}

TEST(PredictPipeline, WhatADeviceHoldsWhileProgramsRunAddsUpToThePeakOfItsPlan) {
  const absl::StatusOr<TracedStep> traced = TraceModel("gpt-tiny", {.num_layers = 4});
  ASSERT_TRUE(traced.ok()) << Message(traced.status());
  const Cluster cluster = *Cluster::Preset("p3.16xlarge");
  const absl::StatusOr<PlannedPipeline> planned =
      PlanPipeline(traced->step, {.cluster = cluster,
                                  .micro_batches = {.num_micro_batches = 4},
                                  .pipeline = PipelineOptions{.submeshes = {4, 4}}});
  ASSERT_TRUE(planned.ok()) << Message(planned.status());
  const absl::StatusOr<PipelineProgram> program = LowerPipeline(*planned, cluster.platform());
  ASSERT_TRUE(program.ok()) << Message(program.status());
  const auto temporary =
      TemporariesOfPrograms(cluster.platform(), *planned, *program, /*num_threads=*/2);
  for (const PipelineStagePlan& stage : planned->plan.stages) {
    const int mesh = stage.mesh_number;
    const std::vector<HeldMemory> held =
        MemoryOfRuns(*program, program->meshes[mesh], temporary[mesh]);
    int64_t peak = 0, most_made = 0;
    for (const HeldMemory& run : held) {
      peak = std::max(peak, run.sum());
      most_made = std::max(most_made, run.made);
      // State is written in place from the first program to the last.
      EXPECT_GE(run.given, stage.plan.state_bytes_per_device) << "mesh " << mesh;
    }
    EXPECT_EQ(peak, stage.plan.peak_memory_bytes) << "mesh " << mesh;
    // Up to the last backward pass activations are saved, then their memory is free.
    EXPECT_LT(held.back().made, most_made) << "mesh " << mesh;
  }
}

}  // namespace
}  // namespace minka
