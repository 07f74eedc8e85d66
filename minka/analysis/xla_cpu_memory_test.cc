#include "minka/analysis/xla_cpu_memory.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/status.h"
#include "minka/ir/hlo_proto.h"

namespace minka {
namespace {

XlaCpuMemory MemoryOf(const std::string& text) {
  const auto module = ParseHloText("HloModule m\n" + text);
  EXPECT_TRUE(module.ok()) << Message(module.status());
  return module.ok() ? XlaCpuMemoryOf(*module) : XlaCpuMemory();
}

constexpr int64_t kMatrix = 128 * 128 * 4;

TEST(XlaCpuMemory, ArgumentsAndResultsStandApart) {
  const XlaCpuMemory memory = MemoryOf(R"(
ENTRY e {
  x = f32[128,128] parameter(0)
  y = f32[128,128] parameter(1)
  xy = f32[128,128] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT t = (f32[128,128]) tuple(xy)
})");
  EXPECT_EQ(memory.argument_bytes, 2 * kMatrix);
  EXPECT_EQ(memory.output_bytes, kMatrix + 8);  // and a pointer
  EXPECT_EQ(memory.temp_bytes, 0);
  EXPECT_EQ(memory.total_bytes(), 3 * kMatrix + 8);
  EXPECT_GT(memory.upper_bound_bytes(), memory.total_bytes());
}

// A fusion's inside takes nothing, and what dies where its elements are read is written over.
TEST(XlaCpuMemory, ElementsAreWrittenOverWhatTheyAreMadeOf) {
  const XlaCpuMemory memory = MemoryOf(R"(
ENTRY e {
  x = f32[128,128] parameter(0)
  a = f32[128,128] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  b = f32[128,128] tanh(a)
  c = f32[128,128] add(b, a)
  d = f32[128,128] dot(c, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT t = (f32[128,128]) tuple(d)
})");
  EXPECT_EQ(memory.temp_bytes, kMatrix);
}

// A dot reads the slice, the sum slices by itself: what is sliced lives until then.
TEST(XlaCpuMemory, WhatIsComputedAgainKeepsWhatItReads) {
  const XlaCpuMemory memory = MemoryOf(R"(
ENTRY e {
  x = f32[128,128] parameter(0)
  y = f32[512,128] parameter(1)
  i = s32[] parameter(2)
  zero = s32[] constant(0)
  a = f32[512,128] dot(y, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  slice = f32[128,128] dynamic-slice(a, i, zero), dynamic_slice_sizes={128,128}
  b = f32[128,128] dot(slice, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  c = f32[128,128] add(b, slice)
  d = f32[128,128] dot(c, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT t = (f32[128,128]) tuple(d)
})");
  EXPECT_EQ(memory.temp_bytes, 6 * kMatrix);  // XLA has b in the place of the result: 5
}

// Equal reshapes are one: what they read is written once, not repeated in both of them.
TEST(XlaCpuMemory, EqualReshapesAreOne) {
  const XlaCpuMemory memory = MemoryOf(R"(
ENTRY e {
  x = f32[128,128] parameter(0)
  w = f32[256,64] parameter(1)
  a = f32[128,128] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  b = f32[128,128] add(a, x)
  b1 = f32[64,256] reshape(b)
  b2 = f32[64,256] reshape(b)
  c = f32[64,64] dot(b1, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  d = f32[64,64] tanh(c)
  e = f32[64,256] dot(d, b2), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  ROOT t = (f32[64,256]) tuple(e)
})");
  EXPECT_EQ(memory.temp_bytes, 2 * kMatrix);  // repeated, a lived with b2 and d
}

TEST(XlaCpuMemory, NarrowOperandsOfDotsAreWidened) {
  const XlaCpuMemory memory = MemoryOf(R"(
ENTRY e {
  x = bf16[128,128] parameter(0)
  y = bf16[128,128] parameter(1)
  xy = bf16[128,128] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT t = (bf16[128,128]) tuple(xy)
})");
  EXPECT_EQ(memory.argument_bytes, kMatrix);
  EXPECT_EQ(memory.temp_bytes, 3 * kMatrix);  // both operands and the sum, in f32
}

// The second dimension is put in front before parts are gathered, and back for the dot.
TEST(XlaCpuMemory, GatheringAnInnerDimensionMovesIt) {
  const std::string gather = R"(
ENTRY e {
  x = f32[128,64] parameter(0)
  w = f32[128,128] parameter(1)
  all = f32[128,128] all-gather(x), dimensions={1}, replica_groups={{0,1}}
  y = f32[128,128] dot(all, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT t = (f32[128,128]) tuple(y)
})";
  EXPECT_EQ(MemoryOf(gather).temp_bytes, 2 * kMatrix);
  std::string outer = gather;
  outer.replace(outer.find("f32[128,64]"), 11, "f32[64,128]");
  outer.replace(outer.find("dimensions={1}, r"), 14, "dimensions={0}");
  EXPECT_EQ(MemoryOf(outer).temp_bytes, kMatrix);
}

constexpr char kStep[] = R"(, input_output_alias={ {0}: (0, {}, may-alias) }
ENTRY e {
  w = f32[128,128] parameter(0)
  x = f32[128,128] parameter(1)
  g = f32[128,128] dot(w, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  new = f32[128,128] subtract(w, g)
  late = f32[128,128] dot(w, READS), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT t = (f32[128,128], f32[128,128]) tuple(new, late)
})";

XlaCpuMemory MemoryOfStep(const std::string& reads) {
  std::string text = kStep;
  text.replace(text.find("READS"), 5, reads);
  const auto module = ParseHloText("HloModule m" + text);
  EXPECT_TRUE(module.ok()) << Message(module.status());
  return module.ok() ? XlaCpuMemoryOf(*module) : XlaCpuMemory();
}

// Nothing says that `late` is done before the new weight is written over the old.
TEST(XlaCpuMemory, StateThatIsReadInAnyOrderIsCopied) {
  const XlaCpuMemory memory = MemoryOfStep("x");
  EXPECT_EQ(memory.argument_bytes, 2 * kMatrix);
  EXPECT_EQ(memory.output_bytes, kMatrix + 16);  // `new` is where `w` was
  EXPECT_EQ(memory.temp_bytes, 2 * kMatrix);     // the gradient, the copy
}

// The gathered matrix is carried instead of gathered in each turn.
TEST(XlaCpuMemory, LoopsComputeWhatNeverChangesOnce) {
  const auto with = [](const std::string& gathered) {
    return MemoryOf(R"(
body {
  state = (s32[], f32[8,128], f32[64,128]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  x = f32[8,128] get-tuple-element(state), index=1
  w = f32[64,128] get-tuple-element(state), index=2
  one = s32[] constant(1)
  next = s32[] add(i, one)
  changed = f32[64,128] )" +
                    gathered + R"(
  all = f32[128,128] all-gather(changed), dimensions={0}, replica_groups={{0,1}}
  y = f32[8,128] dot(x, all), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  big = f32[128,128] dot(y, y), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  z = f32[8,128] dot(y, big), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT r = (s32[], f32[8,128], f32[64,128]) tuple(next, z, w)
}
condition {
  state = (s32[], f32[8,128], f32[64,128]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  n = s32[] constant(4)
  ROOT r = pred[] compare(i, n), direction=LT
}
ENTRY e {
  x = f32[8,128] parameter(0)
  w = f32[64,128] parameter(1)
  zero = s32[] constant(0)
  start = (s32[], f32[8,128], f32[64,128]) tuple(zero, x, w)
  loop = (s32[], f32[8,128], f32[64,128]) while(start), condition=condition, body=body
  ROOT y = f32[8,128] get-tuple-element(loop), index=1
})")
        .temp_bytes;
  };
  constexpr int64_t kRow = 8 * 128 * 4;
  const int64_t inside = with("dynamic-update-slice(w, x, i, i)");
  const int64_t in_front = with("tanh(w)");
  // Inside, the gathered matrix is gone when the square of y is there.
  EXPECT_LT(inside, 2 * kMatrix);
  EXPECT_GE(in_front, 2 * kMatrix);
  EXPECT_LT(in_front, 2 * kMatrix + 5 * kRow);
}

}  // namespace
}  // namespace minka
