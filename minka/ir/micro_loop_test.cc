#include "minka/ir/micro_loop.h"

#include <optional>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "minka/base/status.h"
#include "minka/ir/builder.h"
#include "minka/ir/hlo_proto.h"
#include "minka/ir/step.h"

namespace minka {
namespace {

const Shape kSlice{ElementType::kF32, {1, 4}};

// Two micro-batches: the sum of their slices of x, scaled in front, and the slices themselves.
Step SlicedStep() {
  ModuleBuilder module("m");
  ComputationBuilder b = module.Entry();
  const Value x = b.Parameter({ElementType::kF32, {2, 4}}, "x");
  const Value begin = b.FullLike(x, 0);
  const Value zero = b.Scalar(ElementType::kS32, 0);
  b.SetPart({.loop = LoopRole::kIndex});
  const Value index = b.Scalar(ElementType::kS32, 2);
  b.SetPart({.loop = LoopRole::kBody});
  const Value slice = b.DynamicSlice(x, {{index, zero}}, kSlice.dims);
  b.SetPart({.loop = LoopRole::kSum});
  const Value sum = b.Unary(Opcode::kCopy, slice);
  b.SetPart({.loop = LoopRole::kStack});
  const Value stack = b.DynamicUpdateSlice(begin, slice, {{index, zero}});
  b.SetPart({});
  b.SetResults({b.Unary(Opcode::kNegate, sum), stack});
  Module finished = std::move(module).Finish().value();
  finished.num_micro_batches = 2;
  Step step = MakeStep(std::move(finished), {}).value();
  step.marks = {{.kind = MarkKind::kLayerBoundary, .value = slice}};
  return step;
}

std::optional<LoopPart> PartOfFirst(const Module& module, Opcode opcode) {
  const Computation& entry = module.entry_computation();
  for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
    if (entry.instructions[id].opcode == opcode) return FindMicroLoop(module).PartOf(id);
  }
  return std::nullopt;
}

TEST(MicroLoop, IsThreeComputationsJoinedByAccumulators) {
  const Module module = SlicedStep().module;
  const Computation& entry = module.entry_computation();
  const MicroLoop loop = FindMicroLoop(module);
  EXPECT_EQ(loop.num_micro_batches, 2);
  EXPECT_EQ(loop.indices, std::vector<InstructionId>{loop.begin});
  EXPECT_TRUE(loop.IsIndex(loop.begin));
  EXPECT_FALSE(loop.IsIndex(loop.begin + 1));
  EXPECT_EQ(PartOfFirst(module, Opcode::kBroadcast), LoopPart::kFront);
  EXPECT_EQ(PartOfFirst(module, Opcode::kDynamicSlice), LoopPart::kInside);
  EXPECT_EQ(PartOfFirst(module, Opcode::kNegate), LoopPart::kBehind);
  ASSERT_EQ(loop.accumulators.size(), 2);
  EXPECT_EQ(loop.accumulators[0].kind, Accumulator::Kind::kSum);
  EXPECT_EQ(loop.accumulators[1].kind, Accumulator::Kind::kStack);
  for (const Accumulator& accumulator : loop.accumulators) {
    EXPECT_EQ(entry.instruction(accumulator.term).opcode, Opcode::kDynamicSlice);
    EXPECT_TRUE(loop.LeavesLoop(accumulator.id));
    EXPECT_FALSE(loop.IsTransient(accumulator.id));
    EXPECT_TRUE(loop.IsTransient(accumulator.term.instruction));
  }
  EXPECT_FALSE(FindMicroLoop(Module{.computations = {{}}, .entry = 0}).exists());
}

// The barrier of a mark stands in the text between operations of the body.
TEST(MicroLoop, SurvivesTheTextForm) {
  const Step step = SlicedStep();
  const std::string text = HloText(ToModule(step));
  const Step read = MakeStep(ParseHloText(text).value(), {}).value();
  EXPECT_EQ(read.marks, step.marks);
  EXPECT_EQ(read.module.num_micro_batches, 2);
  const Computation& before = step.module.entry_computation();
  const Computation& after = read.module.entry_computation();
  ASSERT_EQ(after.num_instructions(), before.num_instructions());
  for (InstructionId id = 0; id < before.num_instructions(); ++id) {
    EXPECT_EQ(after.instructions[id].part.loop, before.instructions[id].part.loop);
    EXPECT_TRUE(after.instructions[id].frontend_attributes.empty());
  }
  EXPECT_TRUE(read.module.frontend_attributes.empty());
  EXPECT_EQ(HloText(ToModule(read)), text);
}

TEST(MicroLoop, TextThatMakesNoLoopIsRefused) {
  const auto refused = [](auto change) {
    Module module = ToModule(SlicedStep());
    for (Instruction& instruction : module.entry_computation().instructions) instruction.part = {};
    module.num_micro_batches = 1;
    change(module);
    return Message(MakeStep(std::move(module), {}).status());
  };
  const auto role_of = [](Module& module, Opcode opcode) -> std::string& {
    for (Instruction& instruction : module.entry_computation().instructions) {
      if (instruction.opcode == opcode) return instruction.frontend_attributes["minka.micro"];
    }
    return module.frontend_attributes[""];
  };
  EXPECT_EQ(refused([](Module&) {}), "");
  EXPECT_EQ(refused([&](Module& m) { role_of(m, Opcode::kDynamicSlice) = "bodies"; }),
            "minka.micro: 'dynamic-slice' is \"bodies\"; there are index, body, sum, stack");
  EXPECT_EQ(refused([&](Module& m) { role_of(m, Opcode::kDynamicSlice) = "sum"; }),
            "minka.micro: 'dynamic-slice' is dynamic-slice, which cannot be \"sum\"");
  EXPECT_EQ(refused([](Module& m) { m.frontend_attributes[kNumMicroBatchesAttribute] = "two"; }),
            "minka.num_micro_batches: \"two\" is no number of micro-batches");
  EXPECT_EQ(refused([](Module& m) { m.frontend_attributes.erase(kNumMicroBatchesAttribute); }),
            "minka.micro: 'constant.2' has one, but 'm' no minka.num_micro_batches");
  EXPECT_EQ(refused([](Module& m) {
              for (Instruction& instruction : m.entry_computation().instructions) {
                if (instruction.opcode != Opcode::kDynamicSlice) continue;
                instruction.frontend_attributes.clear();
              }
            }),
            "minka.micro: 'dynamic-slice' has none, but stands in the loop");
}

}  // namespace
}  // namespace minka
