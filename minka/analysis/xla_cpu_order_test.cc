#include "minka/analysis/xla_cpu_order.h"

#include <string>

#include "gtest/gtest.h"
#include "minka/base/status.h"
#include "minka/ir/hlo_proto.h"

namespace minka {
namespace {

// Of dots: x and y lead to NAME.0, and that by two ways twice to NAME.6. By what is above it, twice
// where there are two ways, NAME.6 weighs 13 results; 7 are distinct.
std::string TwoDiamonds(const std::string& name) {
  const auto dot = [&](int i, const std::string& lhs, const std::string& rhs) {
    return "  " + name + "." + std::to_string(i) + " = f32[128,128] dot(" + lhs + ", " + rhs +
           "), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n";
  };
  const auto made = [&](int i) { return name + "." + std::to_string(i); };
  return dot(0, "x", "y") + dot(1, made(0), "x") + dot(2, made(0), "y") + dot(3, made(1), made(2)) +
         dot(4, made(3), "x") + dot(5, made(3), "y") + dot(6, made(4), made(5));
}

// What a result weighs is bounded by all that XLA's own order has before it, and that follows the
// results, not the text: the second one weighs more and is computed first.
TEST(OrderForCpu, WeighsInTheOrderOfResults) {
  const auto module = ParseHloText(
      "HloModule m\nENTRY e {\n  x = f32[128,128] parameter(0)\n"
      "  y = f32[128,128] parameter(1)\n" +
      TwoDiamonds("a") + TwoDiamonds("b") +
      "  ROOT t = (f32[128,128], f32[128,128]) tuple(b.6, a.6)\n}");
  ASSERT_TRUE(module.ok()) << Message(module.status());
  const Computation& entry = module->entry_computation();
  const CpuOrder order = OrderForCpu(entry, /*is_entry=*/true, {});
  EXPECT_EQ(entry.instructions[order.units[order.order.back()].root].name, "b.6");
}

}  // namespace
}  // namespace minka
