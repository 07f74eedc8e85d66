#include "minka/lowering/micro_batches.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/analysis/structure.h"
#include "minka/base/status.h"
#include "minka/ir/builder.h"
#include "minka/ir/micro_loop.h"
#include "minka/ir/verifier.h"

namespace minka {
namespace {

const Shape kBatchShape{ElementType::kF32, {8, 4}};
const Shape kWeightShape{ElementType::kF32, {4, 4}};

// loss = f(x w), new w = w - x^T g(x w); what lies between is up to each test.
class StepBuilder {
 public:
  StepBuilder() : module_("step"), b(module_.Entry()) {
    w = b.Parameter(kWeightShape, "w");
    x = b.Parameter(kBatchShape, "x");
    y = b.Dot(x, w, {.lhs_contracting = {1}, .rhs_contracting = {0}});
  }
  Value Sum(Value value, std::vector<int64_t> dims) {
    return b.Reduce(value, b.Scalar(ElementType::kF32, 0), std::move(dims), Opcode::kAdd);
  }
  // `error` has the shape of the batch.
  Step Finish(Value error, Value loss) && {
    const Value gradient = b.Dot(x, error, {.lhs_contracting = {0}, .rhs_contracting = {0}});
    b.SetResults({b.Binary(Opcode::kSubtract, w, gradient), loss});
    module_.AddAlias({.result = 0, .parameter = 0});
    Step step;
    step.module = *std::move(module_).Finish();
    step.parameters = {{.role = ParameterRole::kState, .name = "params/w", .state_result = 0},
                       {.role = ParameterRole::kBatch, .name = "x", .batch_dim = 0}};
    step.results = {{ResultRole::kState, "params/w"}, {ResultRole::kLoss, "loss"}};
    step.marks = {
        {MarkKind::kGradient, {step.module.entry_computation().num_instructions() - 2, 0}}};
    return WithStructure(std::move(step));
  }

 private:
  ModuleBuilder module_;

 public:
  ComputationBuilder b;
  Value w, x, y;
};

using Kind = Accumulator::Kind;

int NumAccumulators(const Step& step, Kind kind) {
  return static_cast<int>(
      std::ranges::count(FindMicroLoop(step.module).accumulators, kind, &Accumulator::kind));
}

TEST(MakeMicroBatches, GradientsAndLossAreSummedInOneLoop) {
  StepBuilder s;
  const Value squared = s.b.Binary(Opcode::kMultiply, s.y, s.y);
  const Value loss = s.Sum(squared, {0, 1});
  const Value error = s.b.Binary(Opcode::kAdd, s.y, s.y);
  const auto micro = MakeMicroBatches(std::move(s).Finish(error, loss), {.num_micro_batches = 4});
  ASSERT_TRUE(micro.ok()) << Message(micro.status());
  EXPECT_TRUE(Verify(micro->step.module).ok());
  EXPECT_EQ(NumAccumulators(micro->step, Kind::kSum), 2);
  EXPECT_EQ(NumAccumulators(micro->step, Kind::kStack), 0);
  const Computation& entry = micro->step.module.entry_computation();
  EXPECT_EQ(entry.instructions[entry.parameters[1]].shape().dims, (std::vector<int64_t>{4, 2, 4}));
  const MicroLoop loop = FindMicroLoop(micro->step.module);
  for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
    if (entry.instructions[id].opcode != Opcode::kDot) continue;
    EXPECT_TRUE(loop.IsInside(id));
  }
  ASSERT_EQ(micro->step.marks.size(), 1);
  EXPECT_TRUE(loop.LeavesLoop(micro->step.marks[0].value.instruction));
}

TEST(MakeMicroBatches, SumsStandWithWhatTheySum) {
  StepBuilder s;
  const Value squared = s.b.Binary(Opcode::kMultiply, s.y, s.y);
  const Value loss = s.Sum(squared, {0, 1});
  const Value error = s.b.Binary(Opcode::kAdd, s.y, s.y);
  const Step step = std::move(s).Finish(error, loss);
  const auto micro = MakeMicroBatches(step, {.num_micro_batches = 4});
  ASSERT_TRUE(micro.ok()) << Message(micro.status());
  EXPECT_EQ(micro->step.num_layers, step.num_layers);
  const Computation& entry = micro->step.module.entry_computation();
  const MicroLoop loop = FindMicroLoop(micro->step.module);
  std::vector<Phase> phases;
  for (const Accumulator& accumulator : loop.accumulators) {
    StepPart part = entry.instructions[accumulator.id].part;
    phases.push_back(part.phase);
    part.loop = LoopRole::kBody;
    EXPECT_EQ(part, entry.instruction(accumulator.term).part);
    EXPECT_EQ(accumulator.id, accumulator.term.instruction + 1);
  }
  EXPECT_THAT(phases, ::testing::UnorderedElementsAre(Phase::kForward, Phase::kBackward));
}

struct SummedTypes {
  std::vector<ElementType> sums;
  ElementType read_by_update = ElementType::kInvalid;
};

SummedTypes TypesOfSums(bool narrow_sums) {
  ModuleBuilder module("step");
  ComputationBuilder b = module.Entry();
  const Value w = b.Parameter(kWeightShape, "w"), x = b.Parameter(kBatchShape, "x");
  const Value narrow = b.Convert(x, ElementType::kBF16);
  const Value gradient = b.Dot(narrow, narrow, {.lhs_contracting = {0}, .rhs_contracting = {0}});
  b.SetResults({b.Binary(Opcode::kSubtract, w, b.Convert(gradient, ElementType::kF32))});
  module.AddAlias({.result = 0, .parameter = 0});
  Step step;
  step.module = std::move(module).Finish().value();
  step.parameters = {{.role = ParameterRole::kState, .name = "params/w", .state_result = 0},
                     {.role = ParameterRole::kBatch, .name = "x", .batch_dim = 0}};
  step.results = {{ResultRole::kState, "params/w"}};
  const MicroBatchedStep micro =
      MakeMicroBatches(WithStructure(std::move(step)),
                       {.num_micro_batches = 4, .narrow_sums = narrow_sums})
          .value();
  const Computation& entry = micro.step.module.entry_computation();
  std::vector<ElementType> types;
  for (const Accumulator& sum : FindMicroLoop(micro.step.module).accumulators)
    types.push_back(entry.instructions[sum.id].shape().type);
  return {types, entry.shape(entry.instruction(entry.results[0]).operands[1]).type};
}

TEST(MakeMicroBatches, NarrowSumsAreWidenedBehindTheLoop) {
  const SummedTypes wide = TypesOfSums(/*narrow_sums=*/false);
  EXPECT_THAT(wide.sums, ::testing::ElementsAre(ElementType::kF32));
  EXPECT_EQ(wide.read_by_update, ElementType::kF32);
  const SummedTypes narrow = TypesOfSums(/*narrow_sums=*/true);
  EXPECT_THAT(narrow.sums, ::testing::ElementsAre(ElementType::kBF16));
  EXPECT_EQ(narrow.read_by_update, ElementType::kF32);
}

TEST(MakeMicroBatches, AMaskCountIsTakenInFrontOfTheLoop) {
  StepBuilder s;
  const Value mask = s.b.Convert(
      s.b.Compare(CompareAttributes::Direction::kGt, s.x, s.b.FullLike(s.x, 0)), ElementType::kF32);
  const Value count = s.Sum(mask, {0, 1});
  const Value scale = s.b.Binary(Opcode::kDivide, s.b.Scalar(ElementType::kF32, 1), count);
  const Value scaled =
      s.b.Binary(Opcode::kMultiply, s.y, s.b.Broadcast(scale, kBatchShape.dims, {}));
  const Value loss = s.Sum(scaled, {0, 1});
  const auto micro = MakeMicroBatches(std::move(s).Finish(scaled, loss), {.num_micro_batches = 2});
  ASSERT_TRUE(micro.ok()) << Message(micro.status());
  EXPECT_EQ(NumAccumulators(micro->step, Kind::kSum), 2);
  const MicroLoop loop = FindMicroLoop(micro->step.module);
  const Computation& entry = micro->step.module.entry_computation();
  bool found = false;
  for (InstructionId id = 0; id < loop.begin; ++id) {
    found = found || (entry.instructions[id].opcode == Opcode::kReduce &&
                      entry.instructions[id].shape().rank() == 0);
  }
  EXPECT_TRUE(found);
}

// (y - mean of y over the batch): what batch normalisation begins with.
Step NormalisedStep() {
  StepBuilder s;
  const Value mean =
      s.b.Binary(Opcode::kMultiply, s.Sum(s.y, {0}), s.b.FullLike(s.Sum(s.y, {0}), 1.0 / 8));
  const Value centred =
      s.b.Binary(Opcode::kSubtract, s.y, s.b.Broadcast(mean, kBatchShape.dims, {1}));
  const Value loss = s.Sum(centred, {0, 1});
  return std::move(s).Finish(centred, loss);
}

TEST(MakeMicroBatches, AMeanOverTheBatchIsRefusedByName) {
  const auto micro = MakeMicroBatches(NormalisedStep(), {.num_micro_batches = 4});
  EXPECT_THAT(Message(micro.status()),
              ::testing::AllOf(::testing::HasSubstr("subtract 'subtract"),
                               ::testing::HasSubstr("works on slices of the batch but needs"),
                               ::testing::HasSubstr("--per-micro-batch")));
}

TEST(MakeMicroBatches, AMeanOverTheMicroBatchIsTakenWhereAllowed) {
  const auto micro =
      MakeMicroBatches(NormalisedStep(), {.num_micro_batches = 4, .per_micro_batch = true});
  ASSERT_TRUE(micro.ok()) << Message(micro.status());
  EXPECT_TRUE(Verify(micro->step.module).ok());
  EXPECT_EQ(NumAccumulators(micro->step, Kind::kSum), 2);
}

TEST(MakeMicroBatches, ABatchThatTheyDoNotDivideIsRefused) {
  StepBuilder s;
  const Value error = s.y, loss = s.Sum(s.y, {0, 1});
  const auto micro = MakeMicroBatches(std::move(s).Finish(error, loss), {.num_micro_batches = 3});
  EXPECT_EQ(Message(micro.status()), "3 micro-batches do not divide the 8 examples of x f32[8,4]");
}

TEST(MakeMicroBatches, AResultPerExampleIsStacked) {
  StepBuilder s;
  const Value error = s.y, loss = s.Sum(s.y, {1});
  const auto micro = MakeMicroBatches(std::move(s).Finish(error, loss), {.num_micro_batches = 4});
  ASSERT_TRUE(micro.ok()) << Message(micro.status());
  EXPECT_EQ(NumAccumulators(micro->step, Kind::kStack), 1);
  const Computation& entry = micro->step.module.entry_computation();
  EXPECT_EQ(entry.shape(entry.results[1]).dims, (std::vector<int64_t>{8}));
}

}  // namespace
}  // namespace minka
