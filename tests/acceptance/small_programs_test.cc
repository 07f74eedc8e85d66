// The small programs of Alpa's tests (OSDI'22). Facts are local shapes, costs and counts of
// collectives; run_small_programs_test.cc runs them.
#include "tests/acceptance/small_programs.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/status.h"
#include "minka/driver/plan_step.h"
#include "minka/frontend/optimizer.h"
#include "minka/frontend/trace.h"
#include "minka/lowering/spmd.h"
#include "minka/models/mlp.h"

namespace minka {
namespace {

using Shapes = std::vector<std::string>;
using Counts = std::map<std::string, int>;

struct Planned {
  Step prepared;
  Plan plan;
  SpmdProgram program;

  const Mesh& mesh() const { return plan.stage.mesh; }
  Shapes LocalParameters() const {
    const Computation& entry = prepared.module.entry_computation();
    Shapes shapes;
    for (size_t i = 0; i < entry.parameters.size(); ++i) {
      shapes.push_back(ToString(LocalShape(entry.instructions[entry.parameters[i]].shape(),
                                           program.parameters[i], mesh())));
    }
    return shapes;
  }
  Shapes LocalResults() const {
    const Computation& entry = prepared.module.entry_computation();
    Shapes shapes;
    for (size_t i = 0; i < entry.results.size(); ++i) {
      shapes.push_back(
          ToString(LocalShape(entry.shape(entry.results[i]), program.results[i], mesh())));
    }
    return shapes;
  }
  std::string LocalParameter(const std::string& name) const {
    const auto found = std::ranges::find(prepared.parameters, name, &ParameterInfo::name);
    return found == prepared.parameters.end()
               ? ""
               : LocalParameters()[found - prepared.parameters.begin()];
  }
};

absl::StatusOr<Planned> PlanAndLower(const Step& step, const ParallelMethod& how,
                                     const CostModelChoice& costs, const std::string& mesh) {
  ASSIGN_OR_RETURN(const Mesh parsed, Mesh::Parse(mesh));
  ASSIGN_OR_RETURN(PlanRequest request,
                   RequestFor(Cluster::Local(static_cast<int>(parsed.num_devices())), how, costs));
  request.search.gap = 0;
  Planned out;
  ASSIGN_OR_RETURN(PlanResult result, PlanStep(step, request));
  out.prepared = std::move(result.prepared);
  out.plan = std::move(result.candidates[result.best].plan);
  RETURN_IF_ERROR(CheckPlan(out.plan, out.prepared.module));
  ASSIGN_OR_RETURN(out.program, LowerSpmd(out.prepared.module, out.plan.stage, Platform::kCpu));
  return out;
}

absl::StatusOr<Planned> PlanAndLower(const std::string& name) {
  const SmallProgram program = SmallProgramNamed(name);
  return PlanAndLower(program.step, program.how, program.costs, program.how.mesh);
}

// What the best plan costs by Alpa's formulas.
absl::StatusOr<double> AlpaObjective(const std::string& name) {
  const SmallProgram program = SmallProgramNamed(name);
  ASSIGN_OR_RETURN(const Planned planned,
                   PlanAndLower(program.step, program.how, AlpaCosts(), program.how.mesh));
  return planned.plan.objective;
}

struct Synchronisation {
  Counts in_loop, behind;
  Counts of_scalars;  // behind the loop, besides
};

Synchronisation SynchronisationOf(const Planned& planned) {
  Synchronisation found;
  for (const PlannedCollective& collective :
       ListCollectives(planned.prepared.module, planned.plan.stage)) {
    if (collective.runs > 1) {
      ++found.in_loop[collective.kind];
    } else {
      const bool is_scalar = collective.bytes <= ElementBytes(collective.type);
      ++(is_scalar ? found.of_scalars : found.behind)[collective.kind];
    }
  }
  return found;
}

int64_t LargestOf(const Module& module, Opcode opcode) {
  int64_t largest = 0;
  for (const Instruction& instruction : module.entry_computation().instructions) {
    if (instruction.opcode == opcode) {
      largest = std::max(largest, instruction.shape().num_elements());
    }
  }
  return largest;
}

TEST(BasicPrograms, AnUnevenReshapeCostsNothing) {
  EXPECT_EQ(AlpaObjective("reshape_uneven_partition").value(), 0);
}

TEST(BasicPrograms, ADonatedBufferIsSplitOnOneDimension) {
  const auto planned = PlanAndLower("donate_buffer");
  ASSERT_TRUE(planned.ok()) << Message(planned.status());
  EXPECT_THAT(planned->LocalResults()[0], testing::AnyOf("f32[32,128]", "f32[128,32]"));
}

TEST(BasicPrograms, OneDeviceNeedsNoCollectives) {
  const auto planned = PlanAndLower("one_by_one_mesh");
  ASSERT_TRUE(planned.ok()) << Message(planned.status());
  EXPECT_THAT(planned->plan.collectives, testing::IsEmpty());
}

TEST(BasicPrograms, TheMatrixOfAVectorsProductIsSplitByColumns) {
  const auto planned = PlanAndLower("gemv");
  ASSERT_TRUE(planned.ok()) << Message(planned.status());
  EXPECT_THAT(planned->plan.collectives, testing::IsEmpty());
  EXPECT_EQ(planned->LocalParameters()[1], "f32[128,64]");
}

TEST(BasicPrograms, ArgmaxIsSplitOverTheOtherDimension) {
  const auto planned = PlanAndLower("argmax");
  ASSERT_TRUE(planned.ok()) << Message(planned.status());
  EXPECT_EQ(planned->LocalParameters()[0], "f32[144,36]");
  EXPECT_EQ(AlpaObjective("argmax").value(), 0);
}

TEST(BasicPrograms, EachDeviceDrawsItsOwnPartOfADropoutsBits) {
  const auto planned = PlanAndLower("dropout");
  ASSERT_TRUE(planned.ok()) << Message(planned.status());
  EXPECT_LT(AlpaObjective("dropout").value(), 1e6);
  EXPECT_EQ(SynchronisationOf(*planned).behind, (Counts{{"all-reduce", 1}}));
  // The bits are a function of the element's number.
  EXPECT_EQ(LargestOf(planned->program.module, Opcode::kIota), 32 * 32 * 16 / 4);
}

TEST(BasicPrograms, GatherAndScatterWorkOnAQuarterOfTheArray) {
  const auto planned = PlanAndLower("gather");
  ASSERT_TRUE(planned.ok()) << Message(planned.status());
  EXPECT_LT(AlpaObjective("gather").value(), 1e6);
  EXPECT_EQ(SynchronisationOf(*planned).behind, (Counts{{"all-reduce", 1}}));
  const Computation& entry = planned->program.module.entry_computation();
  int num_found = 0;
  for (const Instruction& instruction : entry.instructions) {
    if (instruction.opcode != Opcode::kGather && instruction.opcode != Opcode::kScatter) continue;
    ++num_found;
    EXPECT_THAT(ToString(entry.shape(instruction.operands[0])),
                testing::AnyOf("f32[64,32]", "f32[256,8]"));
  }
  EXPECT_EQ(num_found, 2);
}

TEST(BasicPrograms, SortIsPlannedWhole) {
  const auto planned = PlanAndLower("sort");
  ASSERT_TRUE(planned.ok()) << Message(planned.status());
  EXPECT_EQ(LargestOf(planned->program.module, Opcode::kSort), 1024);
}

// The counters of steps are whole; weights and their moments, made of a key and of nothing, are
// split.
TEST(BasicPrograms, InitialWeightsAreDrawnInParts) {
  const auto planned = PlanAndLower("weight_init");
  ASSERT_TRUE(planned.ok()) << Message(planned.status());
  EXPECT_THAT(planned->plan.collectives, testing::IsEmpty());
  std::map<std::string, int> shapes;
  for (const std::string& shape : planned->LocalResults()) ++shapes[shape];
  EXPECT_EQ(shapes["s32[]"], 2);                            // of the state, of Adam
  EXPECT_EQ(shapes["f32[4,16]"] + shapes["f32[16,4]"], 6);  // kernels, mu and nu of two layers
}

TEST(ManualSharding, InputsLieAsTheyArePinned) {
  const std::map<std::string, Shapes> expected = {
      {"manual_inputs_columns", {"f32[6,2]", "f32[6,2]"}},
      {"manual_inputs_both", {"f32[3,4]", "f32[3,2]"}},
      {"manual_inputs_whole", {"f32[6,4]", "f32[3,4]"}}};
  for (const auto& [name, shapes] : expected) {
    const auto planned = PlanAndLower(name);
    ASSERT_TRUE(planned.ok()) << Message(planned.status());
    EXPECT_EQ(planned->LocalParameters(), shapes) << name;
  }
}

TEST(ManualSharding, ResultsLieAsTheyArePinned) {
  const auto planned = PlanAndLower("manual_outputs");
  ASSERT_TRUE(planned.ok()) << Message(planned.status());
  EXPECT_EQ(planned->LocalResults(), (Shapes{"f32[3,4]", "f32[6,4]", "f32[6,2]", "f32[3,2]"}));
}

// One program accumulates and applies; its batch inputs begin with the micro-batches.
TEST(ManualSharding, HoldsForMicroBatches) {
  const auto planned = PlanAndLower("manual_accumulation");
  ASSERT_TRUE(planned.ok()) << Message(planned.status());
  const std::map<std::string, std::string> inputs = {{"params/1/kernel", "f32[6,4]"},
                                                     {"params/1/bias", "f32[4]"},
                                                     {"params/2/kernel", "f32[4,10]"},
                                                     {"params/2/bias", "f32[10]"},
                                                     {"x", "f32[2,16,6]"},
                                                     {"y", "f32[2,16,10]"}};
  for (const auto& [name, shape] : inputs) EXPECT_EQ(planned->LocalParameter(name), shape) << name;
  const Shapes results = planned->LocalResults();
  ASSERT_GE(results.size(), 4u);
  EXPECT_EQ(Shapes(results.begin(), results.begin() + 4),
            (Shapes{"f32[6,4]", "f32[4]", "f32[4,10]", "f32[10]"}));
  // Gradients lie as their parameters do, summed once.
  const std::map<std::string, std::string> sums = {
      {"gradient of params/1/kernel", "sum f32[6,8] [-,model]{partial: data}"},
      {"gradient of params/1/bias", "sum f32[8] [model]{partial: data}"},
      {"gradient of params/2/kernel", "sum f32[8,10] [model,-]{partial: data}"},
      {"gradient of params/2/bias", "sum f32[10] [-]{partial: data}"}};
  for (const auto& [name, sum] : sums) EXPECT_EQ(planned->plan.accumulators.at(name), sum);
}

TEST(GradientAccumulation, GradientsAreReducedOnceAStep) {
  const auto planned = PlanAndLower("accumulation");
  ASSERT_TRUE(planned.ok()) << Message(planned.status());
  EXPECT_EQ(planned->plan.num_micro_batches, 2);
  const Synchronisation found = SynchronisationOf(*planned);
  EXPECT_THAT(found.in_loop, testing::IsEmpty());
  EXPECT_EQ(found.behind, (Counts{{"all-reduce", 1}}));
  EXPECT_THAT(found.of_scalars, testing::IsEmpty());
  EXPECT_EQ(planned->plan.accumulators.at("gradient of params/layer_0/kernel"),
            "sum f32[16,16] [-,-]{partial: b}");
}

TEST(GradientAccumulation, GradientsAreReducedOnceAStepOnAGrid) {
  const auto planned = PlanAndLower("accumulation_2d");
  ASSERT_TRUE(planned.ok()) << Message(planned.status());
  const Synchronisation found = SynchronisationOf(*planned);
  // Of activations, whose features are split over b. Alpa's program has four all-reduces in all.
  EXPECT_EQ(found.in_loop, (Counts{{"all-gather", 1}, {"reduce-scatter", 1}}));
  EXPECT_EQ(found.behind, (Counts{{"all-reduce", 1}}));
}

TEST(GradientAccumulation, GradientsAreScatteredOnceAStep) {
  const auto planned = PlanAndLower("accumulation_reduce_scatter");
  ASSERT_TRUE(planned.ok()) << Message(planned.status());
  const Synchronisation found = SynchronisationOf(*planned);
  EXPECT_THAT(found.in_loop, testing::IsEmpty());
  EXPECT_EQ(found.behind, (Counts{{"reduce-scatter", 1}, {"all-gather", 1}}));
  EXPECT_EQ(found.of_scalars, (Counts{{"all-reduce", 1}}));  // the loss
}

TEST(GradientAccumulation, Zero2AccumulatesScatteredUnlessWholeFits) {
  const SmallProgram program = SmallProgramNamed("accumulation");
  Zero2 zero2 = {.mesh = "a=1,b=4", .num_micro_batches = 2};
  const auto scattered = PlanAndLower(program.step, zero2, AlpaCosts(), zero2.mesh);
  ASSERT_TRUE(scattered.ok()) << Message(scattered.status());
  const std::string kernel = "gradient of params/layer_0/kernel";
  EXPECT_THAT(scattered->plan.accumulators.at(kernel),
              testing::AnyOf("sum f32[16,16] [b,-]", "sum f32[16,16] [-,b]"));
  zero2.search.memory_limit_bytes = int64_t{1} << 30;
  const auto partial = PlanAndLower(program.step, zero2, AlpaCosts(), zero2.mesh);
  ASSERT_TRUE(partial.ok()) << Message(partial.status());
  EXPECT_EQ(partial->plan.accumulators.at(kernel), "sum f32[16,16] [-,-]{partial: b}");
  EXPECT_THAT(SynchronisationOf(*partial).in_loop, testing::IsEmpty());
}

// Row and column means of squares are sums over a split dimension: one combined all-reduce. Their
// cost is on top of what the gradients cost.
TEST(Zero2, AdafactorReadsScatteredGradients) {
  const auto traced =
      Trace(Mlp({.batch = 256, .hidden = 32, .num_layers = 6}), Adafactor({.min_factored_dim = 4}));
  ASSERT_TRUE(traced.ok()) << Message(traced.status());
  const auto planned = PlanAndLower(traced->step, Zero2{.mesh = "a=4,b=1"}, AlpaCosts(), "a=4,b=1");
  ASSERT_TRUE(planned.ok()) << Message(planned.status());
  EXPECT_EQ(SynchronisationOf(*planned).behind,
            (Counts{{"all-gather", 1}, {"all-reduce", 1}, {"reduce-scatter", 1}}));
}

}  // namespace
}  // namespace minka
