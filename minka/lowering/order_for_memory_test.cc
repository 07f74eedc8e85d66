#include "minka/lowering/order_for_memory.h"

#include <string>
#include <vector>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/ir/hlo_proto.h"
#include "minka/ir/verifier.h"

namespace minka {
namespace {

using ::testing::ElementsAre;

// The names of what is computed, in order.
std::vector<std::string> Order(const Module& module) {
  EXPECT_TRUE(Verify(module).ok()) << Verify(module);
  std::vector<std::string> names;
  for (const Instruction& instruction : module.entry_computation().instructions) {
    if (!instruction.operands.empty()) names.push_back(instruction.name);
  }
  return names;
}

// Two layers forward and backward as JAX has them: gradients of weights and of what is added stand
// at the end.
Module TwoLayers(int64_t batch, int64_t width) {
  const std::string rows = fmt::format("f32[{},{}]", batch, width);
  const std::string weight = fmt::format("f32[{},{}]", width, width);
  return *ParseHloText(fmt::format(
      R"(
HloModule two_layers

add {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}}

ENTRY main {{
  w1 = {1} parameter(0)
  w2 = {1} parameter(1)
  x = {0} parameter(2)
  y1 = {0} dot(x, w1), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  h1 = {0} tanh(y1)
  y2 = {0} dot(h1, w2), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  d2 = {0} exponential(y2)
  of_h1 = {0} dot(d2, w2), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}
  d1 = {0} multiply(of_h1, h1)
  dw1 = {1} dot(x, d1), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
  scaled = {0} multiply(d2, y2)
  zero = f32[] constant(0)
  sum = f32[{2}] reduce(scaled, zero), dimensions={{0}}, to_apply=add
  dw2 = {1} dot(h1, d2), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
  ROOT results = ({1}, {1}, f32[{2}]) tuple(dw1, dw2, sum)
}}
)",
      rows, weight, width));
}

TEST(OrderForMemory, GradientsOfWeightsStandBehindWhatTheyRead) {
  EXPECT_THAT(Order(TwoLayers(64, 8)),
              ElementsAre("y1", "h1", "y2", "d2", "of_h1", "d1", "dw1", "scaled", "sum", "dw2"));
  EXPECT_THAT(Order(OrderForMemory(TwoLayers(64, 8))),
              ElementsAre("y1", "h1", "y2", "d2", "scaled", "sum", "dw2", "of_h1", "d1", "dw1"));
}

TEST(OrderForMemory, AGradientLargerThanWhatItReadsStays) {
  EXPECT_THAT(Order(OrderForMemory(TwoLayers(8, 64))),
              ElementsAre("y1", "h1", "y2", "d2", "scaled", "sum", "of_h1", "d1", "dw1", "dw2"));
}

// Elements of one byte, and what both factors of a product read.
TEST(OrderForMemory, NothingStandsLaterThanBefore) {
  const Module module = *ParseHloText(R"(
HloModule masked

ENTRY main {
  w = f32[8,8] parameter(0)
  x = f32[64,8] parameter(1)
  y = f32[64,8] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  zero = f32[] constant(0)
  zeros = f32[64,8] broadcast(zero), dimensions={}
  is_positive = pred[64,8] compare(y, zeros), direction=GT
  z = f32[64,8] dot(y, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  d = f32[64,8] exponential(z)
  of_y = f32[64,8] dot(d, w), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  scaled = f32[64,8] negate(d)
  slope = f32[64,8] logistic(scaled)
  silu = f32[64,8] multiply(scaled, slope)
  kept = f32[64,8] select(is_positive, silu, zeros)
  gradient = f32[8,8] dot(y, kept), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  ROOT results = (f32[64,8], f32[8,8]) tuple(of_y, gradient)
}
)");
  EXPECT_THAT(Order(OrderForMemory(module)),
              ElementsAre("y", "zeros", "is_positive", "z", "d", "scaled", "slope", "silu", "kept",
                          "gradient", "of_y"));
}

TEST(OrderForMemory, KeepsWhatIsInOrder) {
  const Module once = OrderForMemory(TwoLayers(64, 8));
  EXPECT_EQ(Order(OrderForMemory(once)), Order(once));
}

}  // namespace
}  // namespace minka
