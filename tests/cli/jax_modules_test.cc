// Train steps that flax models lower to run on every shape of eight devices and compute what one
// device computes, nothing of them replicated for want of a rule.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "command_test.h"
#include "nlohmann/json.hpp"

namespace minka {
namespace {

struct Subject {
  const char* module;
  const char* mesh;
  const char* method;
  int num_micro_batches = 1;
};

class JaxModules : public CommandTest, public testing::WithParamInterface<Subject> {};

TEST_P(JaxModules, ComputeOnEightDevicesWhatOneComputes) {
  const Subject& subject = GetParam();
  const Outcome outcome = Run(fmt::format(
      "run {}/{}.pb --mesh {} --method {} --batch-input 'batch*' --random-inputs 1 "
      "--micro-batches {} --work-limit 2000000000 --cost-model roofline --check --json",
      JAX_MODULES, subject.module, subject.mesh, subject.method, subject.num_micro_batches));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  const double share = json["unsupported_flops_share"];
  std::printf("%s on %s: %.2f %% of the flops replicated for want of a rule\n", GetParam().module,
              GetParam().mesh, 100 * share);
  EXPECT_EQ(share, 0) << json["unsupported_ops"];
}

std::vector<Subject> Subjects() {
  std::vector<Subject> subjects;
  for (const char* module : {"small_gpt_clipped", "small_lstm", "small_moe", "small_resnet"}) {
    subjects.push_back({module, "8", "data"});
    for (const char* mesh : {"2x4", "2x2x2"}) subjects.push_back({module, mesh, "shard"});
  }
  subjects.push_back({"small_lstm", "2x2", "shard", 2});
  subjects.push_back({"small_lstm", "2", "zero3", 4});
  return subjects;
}

INSTANTIATE_TEST_SUITE_P(All, JaxModules, testing::ValuesIn(Subjects()), [](const auto& info) {
  return fmt::format("{}_{}_{}{}", info.param.module, info.param.mesh, info.param.method,
                     info.param.num_micro_batches > 1 ? "_micro" : "");
});

// Module, and which result is its loss: layers are found in front of it.
class JaxPipelines : public CommandTest,
                     public testing::WithParamInterface<std::pair<const char*, int>> {};

TEST_P(JaxPipelines, ComputeInStagesWhatOneDeviceComputes) {
  const auto& [module, loss] = GetParam();
  const Outcome outcome = Run(fmt::format(
      "run {}/{}.pb --method pipeline --stages 2 --submeshes 1x2,1x4 --schedule zero-bubble-h1 "
      "--batch-input 'batch*' --loss {} --random-inputs 1 --micro-batches 4 --steps 1 --check "
      "--json "
      "--cost-model roofline",
      JAX_MODULES, module, loss));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json["check"], "ok");
  EXPECT_EQ(json["memory_tier"], "compiled");
  const double predicted = json["peak_memory_bytes"], measured = json["measured_peak_memory_bytes"];
  EXPECT_GE(predicted, measured);
  EXPECT_LE(predicted, 1.01 * measured);
}

INSTANTIATE_TEST_SUITE_P(All, JaxPipelines,
                         testing::Values(std::pair("small_gpt_clipped", 64),
                                         std::pair("small_moe", 58)),
                         [](const auto& info) { return info.param.first; });

}  // namespace
}  // namespace minka
