// `minka run` and `minka train` on local devices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "command_test.h"
#include "nlohmann/json.hpp"

namespace minka {
namespace {

using testing::HasSubstr;

class RunCommandTest : public CommandTest {};

TEST_F(RunCommandTest, RunsAModuleAndComparesWithOneDevice) {
  Write("dot.hlo.txt", kDotModule);
  const Outcome run =
      Run("run dot.hlo.txt --mesh data=2,model=2 --batch-input 0 --random-inputs 7 --check "
          "--outputs out.safetensors --cost-model roofline --dump-to dump");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("compared with one device after 1 step, 1 results:\n"));
  EXPECT_THAT(Slurp(Path("out.safetensors")),
              HasSubstr("\"0\":{\"dtype\":\"F32\",\"shape\":[8,32]"));
  for (const char* name : {"manifest.json", "step_inputs.txt", "step_outputs.txt", "memory.json"}) {
    EXPECT_NE(Slurp(Path(fmt::format("dump/{}", name))), "") << name;
  }
}

TEST_F(RunCommandTest, ChecksStatisticsOfEachMicroBatch) {
  Write("norm.hlo.txt", R"(HloModule norm

ENTRY main {
  x = f32[16,8] parameter(0)
  w = f32[8,8] parameter(1)
  scale = f32[8] parameter(2)
  offset = f32[8] parameter(3)
  dot = f32[16,8] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  norm = (f32[16,8], f32[8], f32[8]) batch-norm-training(dot, scale, offset), epsilon=0.001, feature_index=1
  y = f32[16,8] get-tuple-element(norm), index=0
  ROOT results = (f32[16,8], f32[8,8]) tuple(y, w)
}
)");
  const Outcome run =
      Run("run norm.hlo.txt --mesh 2 --batch-input 0 --state 1:1 --random-inputs 7 --check "
          "--cost-model roofline --micro-batches 4 --per-micro-batch");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("compared with one device after 1 step, 2 results:\n"));
}

TEST_F(RunCommandTest, APlanFileAndOutputsOfOneRunAreInputsOfAnother) {
  Write("dot.hlo.txt", kDotModule);
  ASSERT_EQ(Run("plan dot.hlo.txt --mesh 2x2 --out plan.json").exit_code, 0);
  const std::string command =
      "run dot.hlo.txt --plan plan.json --random-inputs 3 --json --outputs ";
  const Outcome first = Run(command + "first.safetensors");
  EXPECT_EQ(first.exit_code, 0) << first.err;
  const auto json = nlohmann::json::parse(first.out);
  for (const char* key : {"predicted_step_time_us", "num_measured_steps", "measured_step_time_us",
                          "measured_step_time_std_us", "measured_step_time_median_us",
                          "measured_step_time_quartiles_us", "stolen_share", "core_round_trip_ns",
                          "first_step_time_us", "measured_peak_memory_bytes",
                          "total_allocation_bytes", "host_time_us", "prepare_input_seconds",
                          "create_state_seconds", "compile_seconds", "unsupported_ops"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_EQ(json["memory_tier"], "compiled");
  ASSERT_EQ(Run(command + "second.safetensors").exit_code, 0);
  EXPECT_EQ(Slurp(Path("first.safetensors")), Slurp(Path("second.safetensors")));
}

// Each step adds one to its state: how many steps made the results shows in them.
TEST_F(RunCommandTest, TimesWarmStepsAndWritesTheResultsOfTheFirst) {
  Write("count.hlo.txt", R"(HloModule count

ENTRY main {
  w = f32[8] parameter(0)
  one = f32[] constant(1)
  ones = f32[8] broadcast(one), dimensions={}
  ROOT next = f32[8] add(w, ones)
}
)");
  const std::string run =
      "run count.hlo.txt --mesh 2 --state 0:0 --random-inputs 3 --cost-model roofline ";
  const Outcome timed = Run(run + "--steps 7 --json --outputs seven.safetensors");
  ASSERT_EQ(timed.exit_code, 0) << timed.err;
  const auto json = nlohmann::json::parse(timed.out);
  EXPECT_EQ(json["num_measured_steps"], 7);
  EXPECT_GT(json["first_step_time_us"], 0);
  const auto& quartiles = json["measured_step_time_quartiles_us"];
  EXPECT_LE(quartiles[0], json["measured_step_time_median_us"]);
  EXPECT_LE(json["measured_step_time_median_us"], quartiles[1]);
  EXPECT_GT(quartiles[0], 0);
  const Outcome once = Run(run + "--steps 1 --outputs one.safetensors");
  ASSERT_EQ(once.exit_code, 0) << once.err;
  EXPECT_THAT(once.out, HasSubstr("median of 1 warm step, "));
  EXPECT_THAT(once.out, HasSubstr("; the first step, cold, "));
  EXPECT_EQ(Slurp(Path("one.safetensors")), Slurp(Path("seven.safetensors")));
  EXPECT_THAT(Run(run + "--steps 0").err, HasSubstr("--steps: 0 is no whole number in [1, "));
}

TEST_F(RunCommandTest, PinsAndLimitsHoldForEveryMethod) {
  const std::string run =
      "run mlp --layers 1 --mesh a=2,b=2 --random-inputs 0 --cost-model roofline --json --method ";
  for (const char* method : {"shard", "data", "zero2", "zero3"}) {
    const Outcome pinned = Run(fmt::format("{}{} --pin 'params/*kernel=[-,b]'", run, method));
    EXPECT_EQ(pinned.exit_code, 0) << pinned.err;
    const auto json = nlohmann::json::parse(pinned.out);
    EXPECT_EQ(json["parameters"][0]["name"], "params/layer_0/kernel");
    EXPECT_EQ(json["parameters"][0]["sharding"], "[-,b]") << method;
    const Outcome limited = Run(fmt::format("{}{} --batch-axis c", run, method));
    EXPECT_THAT(limited.err, HasSubstr("the batch is to lie on axis \"c\"")) << method;
  }
}

TEST_F(RunCommandTest, PlanningFlagsBesideAPlanAreRefusedByName) {
  Write("dot.hlo.txt", kDotModule);
  ASSERT_EQ(Run("plan dot.hlo.txt --mesh 2x2 --out plan.json").exit_code, 0);
  const std::string run = "run dot.hlo.txt --plan plan.json --random-inputs 3 ";
  const Outcome refused = Run(run + "--pin '1=[-,y]' --gap 0.1 --threads 1");
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_EQ(refused.err,
            "minka: --plan plan.json is a plan already made; drop --pin, --gap, --threads, or drop "
            "--plan to search for another one\n");
  // How much the compiled program takes no plan says.
  EXPECT_EQ(Run(run + "--memory-limit 1GiB").exit_code, 0);
  EXPECT_THAT(Run(run + "--memory-limit 16").err, HasSubstr("raise the memory limit"));
}

TEST_F(RunCommandTest, ADyingPluginBecomesAMessageAndAReport) {
  Write("dot.hlo.txt", kDotModule);
  const std::string command = fmt::format(
      "run dot.hlo.txt --mesh 2 --random-inputs 0 --cost-model roofline --plugin {} --repro "
      "report.tar.gz",
      ABORTING_PLUGIN);
  const Outcome in_worker = Run(command);
  EXPECT_EQ(in_worker.exit_code, 1);
  EXPECT_EQ(in_worker.err,
            "minka: worker 0 died of SIGABRT (Aborted) while it opened its devices; the last that "
            "it wrote:\nF0000 plugin.cc:7] Check failed: all is well\n");
  const Outcome run = Run(command + " --in-process");
  EXPECT_EQ(run.exit_code, 70);
  EXPECT_EQ(run.err,
            "F0000 plugin.cc:7] Check failed: all is well\n"
            "minka: the process that runs the plugin died of SIGABRT (Aborted) in phase "
            "\"devices\"; the last that it wrote:\n"
            "F0000 plugin.cc:7] Check failed: all is well\n");
  EXPECT_EQ(std::system(fmt::format("cd {} && tar xzf report.tar.gz", Path("")).c_str()), 0);
  EXPECT_EQ(Slurp(Path("module.hlo.pb")), kDotModule);
  EXPECT_THAT(Slurp(Path("messages.txt")), HasSubstr("Check failed"));
  EXPECT_EQ(nlohmann::json::parse(Slurp(Path("command.json")))["exit_code"], 70);
}

TEST_F(RunCommandTest, TrainsOnTheBytesOfAFile) {
  std::string text;
  for (int i = 0; i < 2000; ++i) text += fmt::format("{} and {}. ", i % 7, i % 11);
  Write("text.txt", text);
  const Outcome train =
      Run("train gpt-tiny --layers 1 --sequence 32 --global-batch 8 --data text.txt --steps 4 "
          "--num-devices 4 --memory-limit 80% --check 2 --sample 5 --cost-model roofline --json");
  EXPECT_EQ(train.exit_code, 0) << train.err;
  const auto json = nlohmann::json::parse(train.out);
  EXPECT_EQ(json["num_steps"], 4);
  EXPECT_EQ(json["losses"].size(), 4);
  EXPECT_LT(json["peak_memory_bytes"], json["memory_limit_bytes"]);
  EXPECT_GT(json["held_out_loss"], 0);
  EXPECT_NE(Slurp(Path("plan.json")), "");
}

}  // namespace
}  // namespace minka
