#include "minka/lowering/sum_on_stages.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "gtest/gtest.h"
#include "minka/base/status.h"
#include "minka/ir/builder.h"
#include "minka/ir/micro_loop.h"
#include "minka/ir/verifier.h"

namespace minka {
namespace {

const Shape kNumber{ElementType::kF32, {}};
const Shape kPredicate{ElementType::kPred, {}};
Shape Array() { return {ElementType::kF32, {4}}; }

// "(a + c) + (b + d)"
std::string TextOf(const Computation& entry, Value value) {
  const Instruction& instruction = entry.instruction(value);
  const auto operand = [&](int i) { return TextOf(entry, instruction.operands[i]); };
  if (instruction.opcode == Opcode::kAdd) return fmt::format("({} + {})", operand(0), operand(1));
  if (instruction.opcode == Opcode::kAnd) return fmt::format("({} & {})", operand(0), operand(1));
  if (instruction.opcode == Opcode::kCopy) return fmt::format("sum of {}", operand(0));
  if (instruction.opcode == Opcode::kNegate) return fmt::format("-{}", operand(0));
  return instruction.name;
}
std::string TextOfResult(const Step& step, int result = 0) {
  const Computation& entry = step.module.entry_computation();
  return TextOf(entry, entry.results[result]);
}

// Parameters a, b, c, d on stages 0, 1, 0, 1; what is made of them on stage 0.
class SumBuilder {
 public:
  explicit SumBuilder(const Shape& shape) : module_("m"), b(module_.Entry()) {
    for (const char* name : {"a", "b", "c", "d"}) {
      b.SetPart({.layer = static_cast<int>(parameters.size()) % 2});
      parameters.push_back(b.Parameter(shape, name));
    }
    b.SetPart({.layer = -1});
  }
  Value Join(Opcode opcode, Value x, Value y) { return b.Binary(opcode, x, y); }
  Step Summed(std::vector<Value> results, std::vector<Mark> marks = {}) {
    b.SetResults(std::move(results));
    Step step{.module = std::move(module_).Finish().value(), .marks = std::move(marks)};
    std::vector<int> stage_of;
    for (const Instruction& instruction : step.module.entry_computation().instructions) {
      stage_of.push_back(std::max(instruction.part.layer, 0));
    }
    Step summed = SumOnStages(step, stage_of);
    const absl::Status verified = Verify(summed.module);
    EXPECT_TRUE(verified.ok()) << Message(verified);
    return summed;
  }

 private:
  ModuleBuilder module_;

 public:
  ComputationBuilder b;
  std::vector<Value> parameters;
};

TEST(SumOnStages, AChainOfNumbersIsSummedStageByStage) {
  SumBuilder step(kNumber);
  Value sum = step.parameters[0];
  for (int i = 1; i < 4; ++i) sum = step.Join(Opcode::kAdd, sum, step.parameters[i]);
  const Step summed = step.Summed({sum});
  EXPECT_EQ(TextOfResult(summed), "((a + c) + (b + d))");
  // b + d stands with b.
  const Computation& entry = summed.module.entry_computation();
  const Instruction& total = entry.instruction(entry.results[0]);
  EXPECT_EQ(entry.instruction(total.operands[1]).part.layer, 1);
  EXPECT_EQ(total.part.layer, -1);
}

TEST(SumOnStages, PredicatesAreJoinedStageByStage) {
  SumBuilder step(kPredicate);
  const Value first = step.Join(Opcode::kAnd, step.parameters[0], step.parameters[1]);
  const Value second = step.Join(Opcode::kAnd, step.parameters[2], step.parameters[3]);
  EXPECT_EQ(TextOfResult(step.Summed({step.Join(Opcode::kAnd, first, second)})),
            "((a & c) & (b & d))");
}

TEST(SumOnStages, WhatOthersReadAndWhatIsMarkedIsMadeAsItWas) {
  enum class Other { kResult, kReader, kMark };
  for (const Other other : {Other::kResult, Other::kReader, Other::kMark}) {
    SumBuilder step(kNumber);
    const Value inner = step.Join(Opcode::kAdd, step.parameters[0], step.parameters[1]);
    std::vector<Value> results = {step.Join(Opcode::kAdd, inner, step.parameters[3])};
    std::vector<Mark> marks;
    if (other == Other::kResult) results.push_back(inner);
    if (other == Other::kReader) results.push_back(step.b.Unary(Opcode::kNegate, inner));
    if (other == Other::kMark) marks.push_back({.kind = MarkKind::kLoss, .value = inner});
    EXPECT_EQ(TextOfResult(step.Summed(results, marks)), "((a + b) + d)");
  }
}

TEST(SumOnStages, SumsOfOneStageAndOfArraysStayAsTheyAre) {
  SumBuilder numbers(kNumber);
  const Value inner = numbers.Join(Opcode::kAdd, numbers.parameters[0], numbers.parameters[2]);
  EXPECT_EQ(
      TextOfResult(numbers.Summed({numbers.Join(Opcode::kAdd, numbers.parameters[2], inner)})),
      "(c + (a + c))");
  SumBuilder arrays(Array());
  Value sum = arrays.parameters[0];
  for (int i = 1; i < 4; ++i) sum = arrays.Join(Opcode::kAdd, sum, arrays.parameters[i]);
  EXPECT_EQ(TextOfResult(arrays.Summed({sum})), "(((a + b) + c) + d)");
}

TEST(SumOnStages, EveryStageSumsItsPartsOverMicroBatches) {
  ModuleBuilder module("m");
  ComputationBuilder b = module.Entry();
  std::vector<Value> terms;
  for (const char* name : {"a", "b", "c"}) terms.push_back(b.Parameter(Array(), name));
  b.SetPart({.loop = LoopRole::kBody});
  for (Value& term : terms) term = b.Unary(Opcode::kNegate, term);
  const Value inner = b.Binary(Opcode::kAdd, terms[0], terms[1]);
  const Value outer = b.Binary(Opcode::kAdd, inner, terms[2]);
  b.SetPart({.loop = LoopRole::kSum});
  const Value sum = b.Unary(Opcode::kCopy, outer);
  const Value other = b.Unary(Opcode::kCopy, terms[2]);
  b.SetResults({sum, other});
  Step step{.module = std::move(module).Finish().value(),
            .marks = {{.kind = MarkKind::kGradient, .value = sum}}};
  step.module.num_micro_batches = 2;
  // a and c come from stage 1.
  const Step summed = SumOnStages(step, std::vector<int>{-1, -1, -1, 1, 0, 1, 0, 0, 0, 1});
  ASSERT_TRUE(Verify(summed.module).ok()) << Message(Verify(summed.module));
  EXPECT_EQ(TextOfResult(summed), "(sum of -b + sum of (-a + -c))");
  EXPECT_EQ(TextOfResult(summed, 1), "sum of -c");
  EXPECT_EQ(summed.marks[0].value, summed.module.entry_computation().results[0]);
  const MicroLoop loop = FindMicroLoop(summed.module);
  EXPECT_EQ(loop.accumulators.size(), 3);
  const Computation& entry = summed.module.entry_computation();
  for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
    EXPECT_EQ(entry.instructions[id].part.loop != LoopRole::kOutside, loop.IsInside(id));
  }
}

}  // namespace
}  // namespace minka
