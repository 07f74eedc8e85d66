// What limits ask of the search holds on every stage, also on those that read no batch input.
#include <algorithm>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/status.h"
#include "minka/driver/pipeline.h"
#include "minka/frontend/trace.h"
#include "minka/models/gpt.h"
#include "minka/report/tensors_of_plan.h"
#include "minka/sharding/example_dims.h"
#include "tests/pipeline/small_steps.h"

namespace minka {
namespace {

// Everything recomputed, on two stages of `mesh` each.
PlannedPipeline PlanWith(const Step& step, const SearchLimits& limits, const char* mesh) {
  return PlanPipeline(
             step, {.cluster = Cluster::Preset("p3.16xlarge:1").value(),
                    .micro_batches = {.num_micro_batches = 4},
                    .remat = RematChoice{RematPolicy::kAll},
                    .pipeline = PipelineOptions{.meshes = {*Mesh::Parse(mesh), *Mesh::Parse(mesh)}},
                    .search = {.limits = limits}})
      .value();
}

// What forward and backward pass make on a stage and `breaks` holds of.
template <typename Predicate>
std::vector<std::string> Activations(const PlannedPipeline& planned, int stage,
                                     const Predicate& breaks) {
  const Step& step = planned.staged.stages[stage].step;
  const auto dims = FindExampleDims(step);
  std::vector<std::string> found;
  for (const TensorOnMesh& tensor : TensorsOfPlan(step, planned.plan.stages[stage].plan)) {
    if (tensor.kind != TensorKind::kActivation || tensor.phase == Phase::kApply) continue;
    const ExampleDims& of = dims[tensor.value.instruction][tensor.value.result];
    if (breaks(tensor, of))
      found.push_back(fmt::format("{} {}", tensor.name, ToString(tensor.shape)));
  }
  return found;
}

TEST(SearchLimits, ABatchAxisHoldsOnEveryStage) {
  const PlannedPipeline planned = PlanWith(SmallGpt(), {.batch_axis = "data"}, "data=2,model=2");
  const AxisSet data = AxisSet::Of(0);
  for (int stage = 0; stage < 2; ++stage) {
    int num_split = 0;
    const std::vector<std::string> others =
        Activations(planned, stage, [&](const TensorOnMesh& tensor, const ExampleDims& dims) {
          if (dims.batch < 0) return false;
          const bool holds = tensor.sharding.dims[dims.batch].axes() == data;
          num_split += holds;
          return !holds;
        });
    EXPECT_THAT(others, testing::IsEmpty()) << "stage " << stage;
    EXPECT_GT(num_split, 20) << "stage " << stage;
  }
}

TEST(SearchLimits, SequencesStayWholeOnEveryStage) {
  // One example in a micro-batch.
  const Step step = Trace(Gpt({.batch = 4,
                               .sequence = 512,
                               .vocabulary = 48,
                               .hidden = 16,
                               .num_layers = 2,
                               .num_heads = 2}),
                          Sgd())
                        .value()
                        .step;
  // No other dimension is as long.
  const auto num_split = [](const PlannedPipeline& planned, int stage) {
    return Activations(
               planned, stage,
               [](const TensorOnMesh& tensor, const ExampleDims&) {
                 for (int dim = 0; dim < tensor.shape.rank(); ++dim) {
                   if (tensor.shape.dims[dim] == 512 && !tensor.sharding.dims[dim].axes().empty())
                     return true;
                 }
                 return false;
               })
        .size();
  };
  const PlannedPipeline free = PlanWith(step, {}, "a=4"),
                        held = PlanWith(step, {.no_sequence_split = true}, "a=4");
  for (int stage = 0; stage < 2; ++stage) {
    EXPECT_GT(num_split(free, stage), 0u) << "stage " << stage;
    EXPECT_EQ(num_split(held, stage), 0u) << "stage " << stage;
  }
}

}  // namespace
}  // namespace minka
