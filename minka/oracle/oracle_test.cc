#include "minka/oracle/oracle.h"

#include "gtest/gtest.h"
#include "minka/ir/builder.h"

namespace minka {
namespace {

// Replaces x by x + 1.
Step Counting() {
  ModuleBuilder module("step");
  ComputationBuilder b = module.Entry();
  const Value x = b.Parameter({ElementType::kF32, {4}}, "x");
  b.SetResults({b.Binary(Opcode::kAdd, x, b.FullLike(x, 1))});
  return {.module = *std::move(module).Finish(),
          .parameters = {{.role = ParameterRole::kState, .state_result = 0}},
          .results = {{ResultRole::kState, "x"}}};
}

OneDeviceResults From0To1() {
  const Literal one = FilledLiteral({ElementType::kF32, {4}}, 1),
                zero = FilledLiteral({ElementType::kF32, {4}}, 0);
  return {.single = {one},
          .reference = {FilledLiteral({ElementType::kF64, {4}}, 1)},
          .before = {zero},
          .nudged = {{one}},
          .nudged_before = {{zero}}};
}

TEST(CompareResults, SayWhatDiffersAndWhere) {
  const auto failures = [](const MeshResults& results) {
    return CompareResults(Counting(), results, From0To1()).Failures();
  };
  EXPECT_EQ(failures({.values = {FilledLiteral({ElementType::kF32, {4}}, 1)}}), "");
  EXPECT_EQ(
      failures({.values = {FilledLiteral({ElementType::kF32, {4}}, 1.5)}}),
      "result 0 (x, f32[4]): error 1, allowed 1.91e-06 (one device's 0, from nudged inputs 0, "
      "norm 2, of the change 2); largest difference 0.5\n");
  EXPECT_EQ(failures({.values = {FilledLiteral({ElementType::kF32, {4}}, 0)}}),
            "result 0 (x, f32[4]): the state is as before the first step, on one device it changes "
            "by 2 (norm 2)\n");
  EXPECT_EQ(failures({.values = {FilledLiteral({ElementType::kF32, {4}}, 1)},
                      .replica_faults = {"on device 3"}}),
            "result 0 (x, f32[4]): replicas differ: on device 3\n");
}

TEST(CompareResults, NamesTheDeviceWhosePartIsWrong) {
  std::string bytes = *FilledLiteral({ElementType::kF32, {4}}, 1).bytes;
  bytes.replace(8, 8, *FilledLiteral({ElementType::kF32, {2}}, 2).bytes);
  MeshResults results{
      .values = {{{ElementType::kF32, {4}}, std::make_shared<const std::string>(bytes)}},
      .parts = {{.of_elements = {0, 0, 1, 1}, .devices = {0, 6}}}};
  const OracleReport report = CompareResults(Counting(), results, From0To1());
  EXPECT_EQ(report.outputs[0].device, 6);
  EXPECT_EQ(report.Failures(),
            "result 0 (x, f32[4]): error 1.41 in the part of device 6, allowed 1.91e-06 (one "
            "device's 0, from nudged inputs 0, norm 1.41, of the change 1.41); largest difference "
            "1\n");
}

}  // namespace
}  // namespace minka
