#include "minka/driver/stage_hash.h"

#include <array>
#include <functional>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "minka/ir/builder.h"

namespace minka {
namespace {

const Shape kWide{ElementType::kF32, {8, 4}}, kSquare{ElementType::kF32, {4, 4}};

// `build` gives the result from the parameters x [8, 4] and w [4, 4], whichever comes first.
Step StepOf(bool x_first,
            const std::function<Value(ComputationBuilder&, Value x, Value w)>& build) {
  ModuleBuilder module("step");
  ComputationBuilder b = module.Entry();
  Value x, w;
  const auto add_x = [&] { x = b.Parameter(kWide, "x"); };
  if (x_first) add_x();
  w = b.Parameter(kSquare, "w");
  if (!x_first) add_x();
  b.SetResults({build(b, x, w)});
  Step step;
  step.module = std::move(module).Finish().value();
  const ParameterInfo of_x{.role = ParameterRole::kBatch, .name = "x", .batch_dim = 0},
      of_w{.role = ParameterRole::kConstant, .name = "w"};
  step.parameters = x_first ? std::vector{of_x, of_w} : std::vector{of_w, of_x};
  return step;
}

Value Product(ComputationBuilder& b, Value x, Value w) {
  return b.Dot(x, w, {.lhs_contracting = {1}, .rhs_contracting = {0}});
}

// exp(x) w + tanh(x) w, beginning with either.
Value SumOfProducts(ComputationBuilder& b, Value x, Value w, bool exponential_first) {
  Value exponential, tanh;
  if (exponential_first) exponential = Product(b, b.Unary(Opcode::kExponential, x), w);
  tanh = Product(b, b.Unary(Opcode::kTanh, x), w);
  if (!exponential_first) exponential = Product(b, b.Unary(Opcode::kExponential, x), w);
  return b.Binary(Opcode::kAdd, exponential, tanh);
}

TEST(OrderFreeStageHash, DoesNotDependOnTheOrderOfParametersAndOperations) {
  const auto step = [](bool x_first, bool exponential_first) {
    return StepOf(x_first, [=](ComputationBuilder& b, Value x, Value w) {
      return SumOfProducts(b, x, w, exponential_first);
    });
  };
  const Step one = step(true, true);
  for (const Step& other : {step(false, true), step(true, false), step(false, false)}) {
    EXPECT_NE(StageHash(one), StageHash(other));
    EXPECT_EQ(OrderFreeStageHash(one), OrderFreeStageHash(other));
  }
}

TEST(OrderFreeStageHash, TellsWhatIsReadTwiceFromTwoThatAreRead) {
  const auto hash = [](bool is_shared) {
    return OrderFreeStageHash(StepOf(true, [=](ComputationBuilder& b, Value x, Value w) {
      const Value first = b.Unary(Opcode::kTanh, x), second = b.Unary(Opcode::kTanh, x);
      const Value left = Product(b, first, w), right = Product(b, is_shared ? first : second, w);
      // As many operations of either kind.
      return b.Binary(Opcode::kAdd, left, b.Binary(Opcode::kAdd, right, Product(b, second, w)));
    }));
  };
  EXPECT_NE(hash(true), hash(false));
}

// Two layers with dropout differ in such numbers alone.
TEST(StageHash, LeavesOutNumbersThatTellRandomMasksApart) {
  const auto hashes = [](ElementType type, double number) {
    const Step step = StepOf(true, [=](ComputationBuilder& b, Value x, Value w) {
      const Value mask = b.Broadcast(b.Scalar(type, number), kWide.dims, {});
      return Product(b, b.Binary(Opcode::kMultiply, x, b.Convert(mask, kWide.type)), w);
    });
    return std::pair(StageHash(step), OrderFreeStageHash(step));
  };
  EXPECT_EQ(hashes(ElementType::kU64, 3), hashes(ElementType::kU64, 5));
  for (const ElementType type : {ElementType::kS32, ElementType::kF32}) {
    EXPECT_NE(hashes(type, 3).first, hashes(type, 5).first);
    EXPECT_NE(hashes(type, 3).second, hashes(type, 5).second);
  }
}

// JAX makes keys so.
TEST(StageHash, LeavesOutNumbersThatKeysArePutTogetherOf) {
  const auto hash = [](double number) {
    return StageHash(StepOf(true, [=](ComputationBuilder& b, Value x, Value w) {
      const Value parts[] = {b.Reshape(b.Scalar(ElementType::kU32, 0), {1}),
                             b.Reshape(b.Scalar(ElementType::kU32, number), {1})};
      const Value key = b.Concatenate(parts, 0);
      const Value word = b.Slice(key, {.starts = {1}, .limits = {2}, .strides = {1}});
      const Value mixed = b.Binary(Opcode::kXor, b.Reshape(word, {}), b.Reshape(word, {}));
      const Value mask = b.Convert(b.Broadcast(mixed, kWide.dims, {}), kWide.type);
      return Product(b, b.Binary(Opcode::kMultiply, x, mask), w);
    }));
  };
  EXPECT_EQ(hash(3), hash(5));
}

// A sum of which a branch is zero may be left partial.
TEST(StageHash, TellsWhatSelectsTakeInstead) {
  const auto hashes = [](double number) {
    const Step step = StepOf(true, [=](ComputationBuilder& b, Value x, Value w) {
      const Value other = b.Convert(b.Scalar(ElementType::kU32, number), kWide.type);
      const Value is_above = b.Compare(CompareAttributes::Direction::kGt, x, b.FullLike(x, 0));
      return Product(b, b.Select(is_above, x, b.Broadcast(other, kWide.dims, {})), w);
    });
    return std::pair(StageHash(step), OrderFreeStageHash(step));
  };
  EXPECT_NE(hashes(0).first, hashes(5).first);
  EXPECT_NE(hashes(0).second, hashes(5).second);
}

// The constant is computed with, too.
TEST(StageHash, TellsWhereSlicesBegin) {
  const auto hash = [](double start) {
    return StageHash(StepOf(true, [=](ComputationBuilder& b, Value x, Value w) {
      const Value zero = b.Scalar(ElementType::kU32, 0), first = b.Scalar(ElementType::kU32, start);
      const Value scale = b.Convert(b.Broadcast(first, kSquare.dims, {}), kSquare.type);
      const Value slice = b.DynamicSlice(x, std::array{first, zero}, {4, 4});
      return Product(b, b.Binary(Opcode::kMultiply, slice, scale), w);
    }));
  };
  EXPECT_NE(hash(0), hash(2));
}

TEST(OrderFreeStageHash, TellsWhichStateBecomesWhat) {
  const auto hash = [](bool is_swapped) {
    ModuleBuilder module("step");
    ComputationBuilder b = module.Entry();
    const Value one = b.Parameter(kSquare, "one"), other = b.Parameter(kSquare, "other");
    b.SetResults({b.Unary(Opcode::kTanh, one), b.Unary(Opcode::kNegate, other)});
    Step step;
    step.module = std::move(module).Finish().value();
    step.parameters = {
        {.role = ParameterRole::kState, .name = "one", .state_result = is_swapped ? 1 : 0},
        {.role = ParameterRole::kState, .name = "other", .state_result = is_swapped ? 0 : 1}};
    return OrderFreeStageHash(step);
  };
  EXPECT_NE(hash(false), hash(true));
}

TEST(OrderFreeStageHash, TellsWhatParametersMean) {
  const Step step = StepOf(true, Product);
  Step other = step;
  other.parameters[0].batch_dim = -1;
  EXPECT_NE(OrderFreeStageHash(step), OrderFreeStageHash(other));
  other = step;
  other.parameters[0].received = ExampleDims{.batch = 0};
  EXPECT_NE(OrderFreeStageHash(step), OrderFreeStageHash(other));
  other = step;
  other.module.entry_computation().instructions.back().part.phase = Phase::kBackward;
  EXPECT_NE(OrderFreeStageHash(step), OrderFreeStageHash(other));
}

}  // namespace
}  // namespace minka
