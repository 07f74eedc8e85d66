// Facts of Alpa's tests of pipelines (OSDI'22) that plans show without running.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/status.h"
#include "minka/driver/parallelize.h"
#include "minka/frontend/nn.h"
#include "minka/frontend/trace.h"
#include "minka/models/bert.h"
#include "minka/planner/inter_op/stage_search.h"
#include "minka/schedule/generate.h"
#include "minka/simulator/timeline.h"
#include "tests/acceptance/pipeline_models.h"

namespace minka {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

PlannedPipeline Planned(const Step& step, const Pipeline& method, int num_devices = 4) {
  const PlanRequest request = RequestFor(Cluster::Local(num_devices), method, {}).value();
  absl::StatusOr<PlannedPipeline> planned = PlanPipeline(step, request);
  EXPECT_TRUE(planned.ok()) << Message(planned.status());
  return *std::move(planned);
}

PipelineProgram Lowered(const PlannedPipeline& planned) {
  absl::StatusOr<PipelineProgram> program = LowerPipeline(planned, Platform::kCpu);
  EXPECT_TRUE(program.ok()) << Message(program.status());
  return *std::move(program);
}

// What a device holds of an array that lies there: "f32[6,4]".
std::string LocalText(const PipelineProgram& program, MeshSlot at) {
  const ArraySlot& slot = program.slot(at);
  return ToString(LocalShape(slot.shape, slot.sharding, program.meshes[at.mesh].mesh));
}

// By parameter's name: its mesh and what a device holds of it, at every place that it has.
std::multimap<std::string, std::pair<int, std::string>> PlacesOf(const Step& step,
                                                                 const PipelineProgram& program) {
  std::multimap<std::string, std::pair<int, std::string>> places;
  for (size_t i = 0; i < step.parameters.size(); ++i) {
    for (const MeshSlot& at : program.parameters[i]) {
      places.emplace(step.parameters[i].name, std::pair(at.mesh, LocalText(program, at)));
    }
  }
  return places;
}

// By HLO name, without those of scalars.
std::map<std::string, int> CollectivesIn(const Module& module) {
  std::map<std::string, int> counts;
  for (const Instruction& instruction : module.entry_computation().instructions) {
    const bool is_collective =
        instruction.opcode == Opcode::kAllReduce || instruction.opcode == Opcode::kAllGather ||
        instruction.opcode == Opcode::kReduceScatter || instruction.opcode == Opcode::kAllToAll ||
        instruction.opcode == Opcode::kCollectivePermute;
    const bool is_of_scalars = std::ranges::all_of(
        instruction.results, [](const Shape& shape) { return shape.rank() == 0; });
    if (is_collective && !is_of_scalars) ++counts[std::string(OpcodeName(instruction.opcode))];
  }
  return counts;
}

// By kind of program, of all stages.
std::map<std::string, std::vector<std::map<std::string, int>>> CollectivesByProgram(
    const PipelineProgram& program) {
  std::map<std::string, std::vector<std::map<std::string, int>>> found;
  for (const MeshProgram& mesh : program.meshes) {
    for (const StageProgram& of_stage : mesh.programs) {
      found[std::string(ProgramKindName(of_stage.task.kind))].push_back(
          CollectivesIn(of_stage.module));
    }
  }
  return found;
}

// Meshes with a stage each; every task takes a clock.
TEST(PipelinePlans, SchedulesTakeAsManyClocks) {
  for (const char* name : {"gpipe", "1f1b"}) {
    for (const int num_meshes : {2, 3, 4, 6, 8, 16, 32}) {
      for (int num_micro_batches = 1; num_micro_batches <= 128; num_micro_batches *= 2) {
        SCOPED_TRACE(fmt::format("{} {} {}", name, num_meshes, num_micro_batches));
        const Schedule schedule =
            MakeSchedule(name, {.num_meshes = num_meshes, .num_micro_batches = num_micro_batches})
                .value();
        const Timeline timeline =
            Simulate(schedule, {.task = [](const Task&) { return 1.0; }}).value();
        EXPECT_EQ(timeline.step_time, 2 * (num_meshes + num_micro_batches - 1) + 1);
        const std::vector<MicroBatchesHeld> held = MostHeld(schedule);
        for (int mesh = 0; mesh < num_meshes; ++mesh) {
          // A mesh has the tasks of its stage, forward, backward and update.
          for (const Task& task : schedule.tasks[mesh]) ASSERT_EQ(task.stage, mesh);
          ASSERT_EQ(schedule.tasks[mesh].size(), 2U * num_micro_batches + 1);
          if (schedule.name == "1f1b") {
            EXPECT_LE(held[mesh].in_flight, num_meshes - mesh);
          }
        }
      }
    }
  }
}

// Every stage sums the squares of its gradients; the sum goes to one stage and comes back.
TEST(PipelinePlans, AGlobalNormCrossesMeshesOnceUpAndOnceDown) {
  const TraceOptions options{.scaling = {.clip_norm = 0.05}};
  const TracedStep traced = Trace(DenseLayers(64, 16, 2, 2), Sgd(), options).value();
  const PlannedPipeline planned = Planned(traced.step, TwoStages(4));
  std::vector<std::pair<int, int>> sent;
  for (const Border& border : planned.staged.borders) {
    if (border.per_micro_batch) continue;
    EXPECT_EQ(border.shape.num_elements(), 1) << ToString(border.shape);
    for (const StagePort& to : border.to) sent.emplace_back(border.from.stage, to.stage);
  }
  EXPECT_THAT(sent, testing::UnorderedElementsAre(Pair(1, 0), Pair(0, 1)));
}

// Two stages, batch over both devices of each mesh.
PlannedPipeline DataParallelStages(const Model& model) {
  Pipeline method = TwoStages(4, {});
  method.options.meshes = {Mesh({{"data", 2}}), Mesh({{"data", 2}})};
  method.search.limits = {.batch_axis = "data", .prefer_reduce_scatter = true};
  return Planned(Trace(model, Sgd({.learning_rate = 1e-2})).value().step, method);
}

// Alpa reduces in the last backward program and gathers new weights behind the update. minka adds
// up sums that are still owed and reduces once, in the program that updates.
TEST(PipelinePlans, GradientsAreReduceScatteredOnceAndNewWeightsGatheredOnce) {
  for (const Model& model : {DenseLayers(64, 16, 2, 2), BertLayers({.batch = 16,
                                                                    .sequence = 16,
                                                                    .hidden = 32,
                                                                    .num_layers = 2,
                                                                    .num_heads = 4,
                                                                    .dropout = 0})}) {
    SCOPED_TRACE(model.name);
    const auto found = CollectivesByProgram(Lowered(DataParallelStages(model)));
    EXPECT_THAT(found.at("forward"), testing::Each(IsEmpty()));
    EXPECT_THAT(found.at("backward"), testing::Each(IsEmpty()));
    EXPECT_THAT(found.at("apply"),
                testing::Each(ElementsAre(Pair("all-gather", 1), Pair("reduce-scatter", 1))));
  }
}

// Parameters lie for a larger batch as a plan of the smallest one has them, though it would rather
// have them otherwise.
TEST(PipelinePlans, InputShardingsOfAnotherBatchCanBeKept) {
  Pipeline method = TwoStages(1);
  method.options.schedule = "inference";
  method.search.limits = {.no_all_gather = true, .no_all_to_all = true};
  const auto step_of = [](int64_t batch) {
    return TraceEvaluation(DenseLayers(batch, 64, 2, 2)).value().step;
  };
  const auto shardings = [](const PlannedPipeline& planned) {
    std::map<std::string, std::string> lies;
    for (const PipelineStagePlan& stage : planned.plan.stages) {
      for (const ParameterPlan& parameter : stage.plan.parameters) {
        if (!parameter.name.starts_with("params/")) continue;
        lies[parameter.name] = ToString(parameter.sharding, stage.plan.stage.mesh);
      }
    }
    return lies;
  };
  const PlannedPipeline of_one = Planned(step_of(1), method);
  method.options.stage_of_layer = of_one.plan.stage_of_layer;
  method.options.meshes = of_one.meshes();
  method.options.submeshes.clear();
  const auto free = shardings(Planned(step_of(1024), method));
  method.options.stage_search.resize(2);
  for (int stage = 0; stage < 2; ++stage) {
    for (const ParameterPlan& parameter : of_one.plan.stages[stage].plan.parameters) {
      if (!parameter.name.starts_with("params/")) continue;
      method.options.stage_search[stage].pins.push_back(fmt::format(
          "{}={}", parameter.name, ToString(parameter.sharding, of_one.meshes()[stage])));
    }
  }
  EXPECT_EQ(shardings(Planned(step_of(1024), method)), shardings(of_one));
  EXPECT_NE(free, shardings(of_one));
}

// Widths 6-8-10 on the first stage, 10-12-14 on the second.
Model FourWidths() {
  const auto input = [](const std::string& name, int64_t width) {
    return BatchInput{name, {ElementType::kF32, {64, width}}};
  };
  return {.name = "four_widths",
          .inputs = {input("x", 6), input("target", 14)},
          .forward = [](const Scope& scope, std::span<const Tensor> inputs) {
            const auto dense = [&](const std::string& name, Tensor x, int64_t width) {
              return (scope / name).Block(x, [&](const Scope& block, Tensor in) {
                return Dense(block, in, {.features = {width}});
              });
            };
            const Tensor x0 = Relu(dense("w0", inputs[0], 8));
            const Tensor x1 = Relu(dense("w1", x0, 10));
            const Tensor x2 = Relu(dense("w2", x1, 12));
            return ModelOutput{.loss = MeanSquaredError(dense("w3", x2, 14), inputs[1])};
          }};
}

TEST(PipelinePlans, ShardingsByHandAreKeptOnEveryStage) {
  Pipeline method{.num_micro_batches = 2};
  method.options.layers = ManualLayers{.starts = {"params/w2/*"}};
  method.options.stage_of_layer = {0, 1};
  method.options.meshes = {Mesh({{"dummy", 1}, {"model", 2}}), Mesh({{"dummy", 1}, {"data", 2}})};
  method.options.stage_search = {
      {.pins = {"params/w0/kernel=[-,model]", "params/w0/bias=[model]",
                "params/w1/kernel=[model,-]", "params/w1/bias=[-]", "x=[-,-]"}},
      {.pins = {"params/w*kernel=[-,-]", "params/w*bias=[-]", "target=[data,-]"}}};
  const TracedStep traced = Trace(FourWidths(), Sgd({.momentum = 0})).value();
  const PlannedPipeline planned = Planned(traced.step, method);
  const PipelineProgram program = Lowered(planned);
  const auto places = PlacesOf(traced.step, program);
  const std::multimap<std::string, std::pair<int, std::string>> expected = {
      {"params/w0/kernel", {0, "f32[6,4]"}},   {"params/w0/bias", {0, "f32[4]"}},
      {"params/w1/kernel", {0, "f32[4,10]"}},  {"params/w1/bias", {0, "f32[10]"}},
      {"params/w2/kernel", {1, "f32[10,12]"}}, {"params/w2/bias", {1, "f32[12]"}},
      {"params/w3/kernel", {1, "f32[12,14]"}}, {"params/w3/bias", {1, "f32[14]"}}};
  for (const auto& [name, place] : expected) {
    EXPECT_THAT(places, testing::Contains(Pair(name, place)));
  }
  // Batch inputs count micro-batches in front: 2 of 32 examples, of which a device has half.
  EXPECT_THAT(places, testing::Contains(Pair("x", Pair(0, "f32[2,32,6]"))));
  EXPECT_THAT(places, testing::Contains(Pair("target", Pair(1, "f32[2,16,14]"))));
}

// State adds up over the layers of a stage, and a micro-batch's saved values do.
TEST(PipelinePlans, TheStateOfAStageIsThatOfItsLayers) {
  const TracedStep traced = Trace(DenseLayers(16, 512, 2, 2), AdamW()).value();
  const PlannedPipeline apart = Planned(traced.step, TwoStages(2, {1, 1}), 2);
  Pipeline method = TwoStages(2, {1});
  method.options.num_stages = 1;
  const PlannedPipeline merged = Planned(traced.step, method, 1);
  int64_t bytes = 0;
  for (const PipelineStagePlan& stage : apart.plan.stages) {
    bytes += stage.plan.state_bytes_per_device;
  }
  // The step counter lies on both.
  const int64_t of_merged = merged.plan.stages.front().plan.state_bytes_per_device;
  EXPECT_GE(bytes, of_merged);
  EXPECT_LE(bytes, of_merged + 64);
}

// Of every parting of consecutive layers among the sizes, the least step time: one micro-batch's
// way through, and the largest stage for the others. `sum` and `most`: of the stages in front.
double BestByEnumeration(const std::vector<double>& load, const std::vector<int>& sizes,
                         int num_micro_batches, size_t first = 0, size_t stage = 0, double sum = 0,
                         double most = 0) {
  const auto with = [&](double of_stage) {
    return sum + of_stage + (num_micro_batches - 1) * std::max(most, of_stage);
  };
  double of_layers = 0;
  if (stage + 1 == sizes.size()) {
    for (size_t layer = first; layer < load.size(); ++layer) of_layers += load[layer];
    return with(of_layers / sizes[stage]);
  }
  double best = std::numeric_limits<double>::infinity();
  for (size_t end = first + 1; end + (sizes.size() - stage - 1) <= load.size(); ++end) {
    of_layers += load[end - 1];
    const double of_stage = of_layers / sizes[stage];
    best = std::min(best, BestByEnumeration(load, sizes, num_micro_batches, end, stage + 1,
                                            sum + of_stage, std::max(most, of_stage)));
  }
  return best;
}

// Calls `visit` with every list of so many meshes, powers of two that lie within hosts or are whole
// ones, that are all devices together.
template <typename Visit>
void VisitSizes(const Cluster& cluster, size_t num_meshes, std::vector<int>& sizes, int first,
                const Visit& visit) {
  if (sizes.size() == num_meshes) {
    if (first == cluster.num_devices()) visit(sizes);
    return;
  }
  const int host = cluster.devices_per_host;
  for (int size = 1; first + size <= cluster.num_devices(); size *= 2) {
    const bool within_host = first % host + size <= host;
    const bool whole_hosts = first % host == 0 && size % host == 0;
    if (!within_host && !whole_hosts) continue;
    sizes.push_back(size);
    VisitSizes(cluster, num_meshes, sizes, first + size, visit);
    sizes.pop_back();
  }
}

// Each device does its even part.
std::vector<StageWay> EvenWays(const std::vector<double>& load, const Cluster& cluster) {
  std::vector<StageWay> ways;
  for (int size = 1; size <= cluster.num_devices(); size *= 2) {
    StageWay way{.num_devices = size};
    for (const double of_layer : load) way.kept.push_back({.micro_batch_us = of_layer / size});
    ways.push_back(std::move(way));
  }
  return ways;
}

double LeastStepTime(const std::vector<double>& load, const Cluster& cluster, int num_meshes,
                     int num_micro_batches) {
  double best = std::numeric_limits<double>::infinity();
  std::vector<int> sizes;
  VisitSizes(cluster, num_meshes, sizes, 0, [&](const std::vector<int>& tried) {
    best = std::min(best, BestByEnumeration(load, tried, num_micro_batches));
  });
  return best;
}

// Alpa's instances: 4 or 8 layers, 1 or 4 hosts of 1 or 4 devices, 1, 16 or 512 micro-batches. The
// search tries bounds in steps of a hundredth.
TEST(PipelinePlans, StagesAndSubmeshesAreThoseOfExhaustiveEnumeration) {
  std::mt19937 random(11);
  std::uniform_real_distribution<double> uniform(1, 1000);
  int num_compared = 0;
  for (const size_t num_layers : {4, 8}) {
    for (const auto& [num_hosts, devices_per_host] :
         {std::pair(1, 4), std::pair(4, 1), std::pair(4, 4)}) {
      Cluster cluster = Cluster::Local(devices_per_host);
      cluster.num_hosts = num_hosts;
      for (const int num_micro_batches : {1, 16, 512}) {
        std::vector<double> load(num_layers);
        for (double& of_layer : load) of_layer = uniform(random);
        const std::vector<StageWay> ways = EvenWays(load, cluster);
        for (const int num_meshes : {2, 3, 4}) {
          const double least = LeastStepTime(load, cluster, num_meshes, num_micro_batches);
          const std::vector<FoundPipeline> found =
              FindStages(ways, {.hosts = {{.num_devices = cluster.num_devices(),
                                           .devices_per_host = devices_per_host}},
                                .num_micro_batches = num_micro_batches,
                                .num_stages = num_meshes});
          ASSERT_EQ(found.empty(), std::isinf(least));
          if (found.empty()) continue;
          EXPECT_GE(found[0].step_time_us, least * (1 - 1e-9));
          EXPECT_LE(found[0].step_time_us, least * 1.01);
          ++num_compared;
        }
      }
    }
  }
  EXPECT_GT(num_compared, 40);
}

}  // namespace
}  // namespace minka
