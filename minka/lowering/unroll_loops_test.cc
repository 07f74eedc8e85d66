#include "minka/lowering/unroll_loops.h"

#include <algorithm>
#include <string>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/status.h"
#include "minka/ir/hlo_proto.h"
#include "minka/ir/mark_text.h"
#include "minka/ir/simplify.h"
#include "minka/ir/testing/evaluator.h"
#include "minka/ir/verifier.h"

namespace minka {
namespace {

using ::testing::ElementsAre;

// What JAX makes of a scan over three layers x = x w[i], which keeps every layer's input, and of
// the loop of its gradient, which takes them from the last to the first: g = g w[i]^T, and
// x[i]^T g for w[i].
constexpr char kScan[] = R"(HloModule step

forward {
  p = (s32[], f32[2,2], f32[3,2,2], f32[3,2,2]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[2,2] get-tuple-element(p), index=1
  w = f32[3,2,2] get-tuple-element(p), index=2
  kept = f32[3,2,2] get-tuple-element(p), index=3
  one = s32[] constant(1)
  zero = s32[] constant(0)
  three = s32[] constant(3)
  is_negative = pred[] compare(i, zero), direction=LT
  from_end = s32[] add(i, three)
  row = s32[] select(is_negative, from_end, i)
  slice = f32[1,2,2] dynamic-slice(w, row, zero, zero), dynamic_slice_sizes={1,2,2}
  wi = f32[2,2] reshape(slice)
  xw = f32[2,2] dot(x, wi), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  next = f32[2,2] opt-barrier(xw), frontend_attributes={minka.mark="layer_boundary 0"}
  x_row = f32[1,2,2] reshape(x)
  kept_next = f32[3,2,2] dynamic-update-slice(kept, x_row, row, zero, zero)
  i_next = s32[] add(i, one)
  ROOT out = (s32[], f32[2,2], f32[3,2,2], f32[3,2,2]) tuple(i_next, next, w, kept_next)
}

forward_condition {
  p = (s32[], f32[2,2], f32[3,2,2], f32[3,2,2]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  three = s32[] constant(3)
  ROOT less = pred[] compare(i, three), direction=LT
}

backward {
  p = (s32[], f32[2,2], f32[3,2,2], f32[3,2,2], f32[3,2,2]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  g = f32[2,2] get-tuple-element(p), index=1
  w = f32[3,2,2] get-tuple-element(p), index=2
  kept = f32[3,2,2] get-tuple-element(p), index=3
  gw = f32[3,2,2] get-tuple-element(p), index=4
  one = s32[] constant(1)
  zero = s32[] constant(0)
  two = s32[] constant(2)
  row = s32[] subtract(two, i)
  w_slice = f32[1,2,2] dynamic-slice(w, row, zero, zero), dynamic_slice_sizes={1,2,2}
  wi = f32[2,2] reshape(w_slice)
  x_slice = f32[1,2,2] dynamic-slice(kept, row, zero, zero), dynamic_slice_sizes={1,2,2}
  xi = f32[2,2] reshape(x_slice)
  gi = f32[2,2] dot(xi, g), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  gi_row = f32[1,2,2] reshape(gi)
  gw_next = f32[3,2,2] dynamic-update-slice(gw, gi_row, row, zero, zero)
  next = f32[2,2] dot(g, wi), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  i_next = s32[] add(i, one)
  ROOT out = (s32[], f32[2,2], f32[3,2,2], f32[3,2,2], f32[3,2,2]) tuple(i_next, next, w, kept, gw_next)
}

backward_condition {
  p = (s32[], f32[2,2], f32[3,2,2], f32[3,2,2], f32[3,2,2]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  three = s32[] constant(3)
  ROOT less = pred[] compare(i, three), direction=LT
}

ENTRY step {
  w = f32[3,2,2] parameter(0)
  x = f32[2,2] parameter(1)
  g = f32[2,2] parameter(2)
  zero = s32[] constant(0)
  nothing = f32[] constant(0)
  empty = f32[3,2,2] broadcast(nothing), dimensions={}
  f_in = (s32[], f32[2,2], f32[3,2,2], f32[3,2,2]) tuple(zero, x, w, empty)
  f = (s32[], f32[2,2], f32[3,2,2], f32[3,2,2]) while(f_in), body=forward, condition=forward_condition
  y = f32[2,2] get-tuple-element(f), index=1
  kept = f32[3,2,2] get-tuple-element(f), index=3
  b_in = (s32[], f32[2,2], f32[3,2,2], f32[3,2,2], f32[3,2,2]) tuple(zero, g, w, kept, empty)
  b = (s32[], f32[2,2], f32[3,2,2], f32[3,2,2], f32[3,2,2]) while(b_in), body=backward, condition=backward_condition
  gw = f32[3,2,2] get-tuple-element(b), index=4
  ROOT out = (f32[2,2], f32[3,2,2]) tuple(y, gw)
}
)";

Step StepOf(const std::string& text, std::vector<ParameterRole> roles) {
  absl::StatusOr<Module> module = ParseHloText(text);
  if (!module.ok()) ADD_FAILURE() << Message(module.status());
  Step step{.module = InlineCalls(*std::move(module))};
  for (const ParameterRole role : roles) step.parameters.push_back({.role = role});
  return step;
}

Module Unrolled(const Step& step) {
  Module module = EliminateDeadCode(UnrollLayerLoops(step));
  EXPECT_TRUE(Verify(module).ok()) << Message(Verify(module));
  return module;
}

int64_t Count(const Module& module, Opcode opcode) {
  return std::ranges::count(module.entry_computation().instructions, opcode, &Instruction::opcode);
}

constexpr ParameterRole kState = ParameterRole::kState, kBatch = ParameterRole::kBatch;

TEST(UnrollLayerLoops, ComputesWhatTheLoopsDo) {
  const Module module = Unrolled(StepOf(kScan, {kState, kBatch, kBatch}));
  const Shape matrix{ElementType::kF32, {2, 2}};
  const testing::Array w{{ElementType::kF32, {3, 2, 2}}, {1, 2, 0, 1, 2, 0, 1, 1, 1, 1, 0, 2}};
  const std::vector<testing::Array> results =
      testing::Evaluate(module, {w, {matrix, {1, 2, 3, 4}}, {matrix, {1, 0, 0, 1}}});
  // x w0 = (1 4; 3 10), w1 = (2 0; 1 1): (6 4; 16 10), w2 = (1 1; 0 2): (6 14; 16 36).
  EXPECT_THAT(results[0].elements, ElementsAre(6, 14, 16, 36));
  // g = 1, then w2^T = (1 0; 1 2), then w2^T w1^T = (2 1; 2 3).
  EXPECT_THAT(
      results[1].elements,
      ElementsAre(1 * 2 + 3 * 2, 1 * 1 + 3 * 3, 2 * 2 + 4 * 2, 2 * 1 + 4 * 3,  //
                  1 * 1 + 3 * 1, 1 * 0 + 3 * 2, 4 * 1 + 10 * 1, 4 * 0 + 10 * 2, 6, 16, 4, 10));
}

TEST(UnrollLayerLoops, WhatOneTripStacksAnotherReadsAsItIs) {
  const Module module = Unrolled(StepOf(kScan, {kState, kBatch, kBatch}));
  EXPECT_EQ(Count(module, Opcode::kWhile), 0);
  // Nothing reads the gradient of x, so what makes it is gone.
  EXPECT_EQ(Count(module, Opcode::kDot), 8);
  EXPECT_EQ(Count(module, Opcode::kDynamicSlice) + Count(module, Opcode::kDynamicUpdateSlice), 0);
  EXPECT_EQ(Count(module, Opcode::kSlice), 5);        // of weights alone
  EXPECT_EQ(Count(module, Opcode::kConcatenate), 1);  // the gradient
}

TEST(UnrollLayerLoops, EachTripHasItsBoundary) {
  const Module module = Unrolled(StepOf(kScan, {kState, kBatch, kBatch}));
  std::vector<std::string> marks;
  for (const Instruction& instruction : module.entry_computation().instructions) {
    const auto mark = instruction.frontend_attributes.find(kMarkAttribute);
    if (mark != instruction.frontend_attributes.end()) marks.push_back(mark->second);
  }
  EXPECT_THAT(marks, ElementsAre("layer_boundary 0", "layer_boundary 1", "layer_boundary 2"));
}

TEST(UnrollLayerLoops, LoopsOverExamplesStay) {
  EXPECT_EQ(Count(Unrolled(StepOf(kScan, {kBatch, kBatch, kBatch})), Opcode::kWhile), 2);
}

TEST(UnrollLayerLoops, LoopsOfUnknownLengthStay) {
  std::string text = kScan;
  const std::string known = "zero = s32[] constant(0)\n  nothing";
  text.replace(text.find(known), known.size(), "zero = s32[] parameter(3)\n  nothing");
  EXPECT_EQ(Count(Unrolled(StepOf(text, {kState, kBatch, kBatch, kBatch})), Opcode::kWhile), 2);
}

TEST(UnrollLayerLoops, WhatWrapsAroundIsNotFollowed) {
  std::string text = kScan;
  const std::string row = "row = s32[] subtract(two, i)";
  text.replace(text.find(row), row.size(), R"(large = s32[] constant(65536)
  wrapped = s32[] multiply(large, large)
  distance = s32[] add(i, wrapped)
  row = s32[] subtract(two, distance))");
  const Module module = Unrolled(StepOf(text, {kState, kBatch, kBatch}));
  EXPECT_EQ(Count(module, Opcode::kWhile), 0);
  // Two of w, as what the last trip's makes is not read, and three of the activations.
  EXPECT_EQ(Count(module, Opcode::kDynamicSlice), 5);
}

}  // namespace
}  // namespace minka
