// `minka plan`, `inspect`, `explain`, `diff` and `whatif`: no plugin is needed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "command_test.h"
#include "nlohmann/json.hpp"

namespace minka {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class PlanCommandTest : public CommandTest {};

constexpr const char* kSmallGpt = "gpt-tiny --layers 2 --sequence 32";

TEST_F(PlanCommandTest, SearchesMeshShapesAndComparesThem) {
  const Outcome plan = Run(fmt::format("plan {} --num-devices 4 --method data,shard", kSmallGpt));
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_EQ(plan.err, "");
  EXPECT_THAT(plan.out, StartsWith("   method  mesh"));
  EXPECT_THAT(plan.out, HasSubstr("data    x=4"));
  EXPECT_THAT(plan.out, HasSubstr("shard   x=2,y=2"));
  EXPECT_THAT(plan.out, HasSubstr("activations kept for the backward pass"));
  EXPECT_THAT(plan.out, HasSubstr("collectives per step"));
}

// One mesh and pipelines; a plan is of the faster, and says by which method.
TEST_F(PlanCommandTest, AClusterIsPlannedInEveryWay) {
  const std::string here = fmt::format("plan {} --cluster a100:1x4", kSmallGpt);
  const Outcome fits = Run(here + " --global-batch 64 --out plan.json");
  EXPECT_EQ(fits.exit_code, 0) << fits.err;
  EXPECT_THAT(fits.out, StartsWith("   planned as  step time  memory/device  remark\n"));
  EXPECT_THAT(fits.out, ContainsRegex("\n[* ]  one mesh +[0-9.]+ [mu]s +[0-9.]+ MiB"));
  EXPECT_THAT(fits.out, ContainsRegex("\n[* ]  pipeline +[0-9.]+ [mu]s +[0-9.]+ MiB"));
  const Outcome both[] = {Run(here + " --global-batch 64 --method shard --json"),
                          Run(here + " --global-batch 64 --method pipeline --json")};
  std::vector<nlohmann::json> plans;
  for (const Outcome& one : both) plans.push_back(nlohmann::json::parse(one.out));
  const size_t faster = plans[0]["step_time_us"] <= plans[1]["step_time_us"] ? 0 : 1;
  const auto plan = nlohmann::json::parse(Slurp(Path("plan.json")));
  EXPECT_EQ(plan["step_time_us"], plans[faster]["step_time_us"]);
  EXPECT_EQ(plan["options"]["method"], faster == 0 ? "shard" : "pipeline");
  EXPECT_EQ(Run("explain plan.json").exit_code, 0);
}

TEST_F(PlanCommandTest, OneMeshHasAsManyMicroBatchesAsItTakes) {
  const std::string here = fmt::format("plan {} --cluster a100:1x2 ", kSmallGpt);
  const Outcome tight = Run(here + "--global-batch 64 --memory-limit 24MiB --out plan.json");
  EXPECT_EQ(tight.exit_code, 0) << tight.err;
  EXPECT_THAT(tight.out, ContainsRegex("\n[*]  one mesh in micro-batches +[0-9.]+ ms"));
  EXPECT_THAT(tight.out, ContainsRegex("\n   1 micro-batch +- +- +- +- +-  not planned: "));
  EXPECT_THAT(tight.out, ContainsRegex("\n[*]  2 micro-batches +4 +x=2 +[0-9.]+ ms"));
  const auto plan = nlohmann::json::parse(Slurp(Path("plan.json")));
  EXPECT_EQ(plan["num_micro_batches"], 2);
  for (const char* const command :
       {"explain plan.json", "inspect plan.json", "report plan.json --out report.html"}) {
    const Outcome outcome = Run(command);
    EXPECT_EQ(outcome.exit_code, 0) << command << outcome.err;
  }
  const Outcome nothing = Run(here + "--global-batch 64 --memory-limit 1MiB");
  EXPECT_EQ(nothing.exit_code, 1);
  EXPECT_THAT(nothing.err,
              StartsWith("minka: one mesh: no plan was found that fits into 1048576 bytes"));
  EXPECT_THAT(nothing.err,
              HasSubstr("; pipeline: the state alone takes 11.4 MiB, the 2 devices may hold 2.00 "
                        "MiB together; raise the limit, or take more devices\n"));
}

TEST_F(PlanCommandTest, FlagsOfOneMethodLeaveOutTheOther) {
  const std::string here = fmt::format("plan {} --cluster a100:1x4 --global-batch 64 ", kSmallGpt);
  const Outcome stages = Run(here + "--stages 2 --micro-batches 4 --json");
  EXPECT_EQ(nlohmann::json::parse(stages.out)["options"]["method"], "pipeline") << stages.err;
  const std::string on_one_mesh[] = {here + "--mesh 2x2",
                                     fmt::format("plan {} --num-devices 4", kSmallGpt)};
  for (const std::string& command : on_one_mesh) {
    const Outcome outcome = Run(command);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr(" by shard: ")) << command;
    EXPECT_THAT(outcome.out, Not(HasSubstr("planned as"))) << command;
  }
}

TEST_F(PlanCommandTest, JsonIsThePlanFileAndNothingElse) {
  const Outcome plan =
      Run(fmt::format("plan {} --mesh data=2,model=2 --json --out plan.json", kSmallGpt));
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_EQ(plan.out, Slurp(Path("plan.json")));
  const auto json = nlohmann::json::parse(plan.out);
  for (const char* key :
       {"schema_version", "module_hash", "options", "step_time_us", "peak_memory_bytes",
        "memory_tier", "objective", "lower_bound", "gap", "sharding_gap", "search_seconds",
        "collectives", "collective_bytes", "parameters", "num_parameters", "stages",
        "num_micro_batches", "schedule", "cost_model"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_EQ(json["options"]["model"], "gpt-tiny");
  EXPECT_EQ(json["options"]["mesh"], "data=2,model=2");
}

TEST_F(PlanCommandTest, ModuleFilesAreReadFromAFileOrStandardInput) {
  Write("dot.hlo.txt", kDotModule);
  const std::string flags = "--mesh 2x2 --batch-input 0 --json";
  const Outcome from_file = Run("plan dot.hlo.txt " + flags);
  EXPECT_EQ(from_file.exit_code, 0) << from_file.err;
  const Outcome from_input = Run("plan - " + flags + " < dot.hlo.txt");
  EXPECT_EQ(from_input.exit_code, 0) << from_input.err;
  EXPECT_EQ(nlohmann::json::parse(from_file.out)["module_hash"],
            nlohmann::json::parse(from_input.out)["module_hash"]);
  EXPECT_EQ(Run(fmt::format("plan {}/small_gpt_adamw.pb --mesh 2x2", JAX_MODULES)).exit_code, 0);
}

TEST_F(PlanCommandTest, InspectAnswersWhereEverythingLies) {
  ASSERT_EQ(Run(fmt::format("plan {} --mesh data=2,model=2 --out plan.json", kSmallGpt)).exit_code,
            0);
  const Outcome params = Run("inspect plan.json --only params --tensor 'params/*kernel'");
  EXPECT_EQ(params.exit_code, 0) << params.err;
  EXPECT_THAT(params.out, StartsWith("kind    name"));
  EXPECT_THAT(params.out, Not(HasSubstr("optimizer")));
  const Outcome inputs = Run("inspect plan.json --only inputs --dims --json");
  const auto tensors = nlohmann::json::parse(inputs.out)["tensors"];
  EXPECT_EQ(tensors[0]["name"], "tokens");
  EXPECT_EQ(tensors[0]["batch_dim"], 0);
  const Outcome ops = Run("inspect plan.json --ops");
  EXPECT_THAT(ops.out, HasSubstr("    splits     "));
  EXPECT_EQ(Run("inspect plan.json --tensor nothing").err,
            "minka: no tensor of plan.json matches nothing\n");
  EXPECT_EQ(
      Run("inspect plan.json --only weights").err,
      "minka: \"weights\" is no kind of tensor; there are params, optimizer, inputs, outputs, "
      "activations\n");
}

TEST_F(PlanCommandTest, DiffShowsWhatLiesDifferently) {
  ASSERT_EQ(Run("plan mlp --mesh x=4 --method data --out data.json").exit_code, 0);
  ASSERT_EQ(
      Run("plan mlp --mesh x=4 --pin 'params/*=[-,x]' --pin 'params/*bias=[x]' --out pinned.json")
          .exit_code,
      1);  // a matrix sharding for biases does not fit
  ASSERT_EQ(Run("plan mlp --mesh x=4 --pin 'params/*kernel=[-,x]' --out pinned.json").exit_code, 0);
  const Outcome diff = Run("diff data.json pinned.json");
  EXPECT_EQ(diff.exit_code, 0) << diff.err;
  EXPECT_THAT(diff.out, HasSubstr("[-,-]   [-,x]"));
  EXPECT_THAT(Run("diff data.json data.json").out,
              HasSubstr("All parameters, inputs and outputs lie alike.\n"));
}

TEST_F(PlanCommandTest, ExplainPricesEveryShardingOfAParameter) {
  ASSERT_EQ(Run("plan mlp --layers 2 --mesh x=4 --out plan.json").exit_code, 0);
  const Outcome explain = Run("explain plan.json 'params/*kernel'");
  EXPECT_EQ(explain.exit_code, 0) << explain.err;
  EXPECT_THAT(explain.out, HasSubstr("[-,-]"));
  EXPECT_THAT(explain.out, HasSubstr("[x,-]"));
  EXPECT_THAT(explain.out, HasSubstr("[-,x]"));
}

TEST_F(PlanCommandTest, NoNoteIsOnTheDimensionThatCountsMicroBatches) {
  const Outcome plan = Run("plan mlp --layers 1 --global-batch 24 --mesh 2 --micro-batches 3");
  ASSERT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_THAT(plan.out, Not(HasSubstr("stays whole")));
}

TEST_F(PlanCommandTest, ExplainPlansWithTheLimitsOfThePlan) {
  const std::string plan = "plan mlp --layers 2 --mesh x=4 --out plan.json ";
  ASSERT_EQ(Run(plan + "--no-replicated-parameters --pin 'params/*kernel=[-,x]'").exit_code, 0);
  const Outcome explain = Run("explain plan.json 'params/layer_0/kernel'");
  EXPECT_EQ(explain.exit_code, 0) << explain.err;
  EXPECT_THAT(
      explain.out,
      HasSubstr("pin \"params/layer_0/kernel=[-,-]\" and --no-replicated-parameters disagree"));
  // The pin on the parameter itself is left out.
  EXPECT_THAT(explain.out, Not(HasSubstr("want params/layer_0/kernel in different")));
}

TEST_F(PlanCommandTest, ExplainKeepsWhatElseThePlanWasAskedFor) {
  // The row of the sharding that the plan has is the plan again, pins on other parameters, limits
  // and gap included.
  const auto explains_itself = [&](const std::string& flags, const std::string& parameter) {
    const Outcome plan = Run("plan mlp --layers 2 --mesh x=4 --gap 0 --out plan.json " + flags);
    EXPECT_EQ(plan.exit_code, 0) << plan.err;
    const size_t time = plan.out.find("step time    ") + 13;
    const size_t size = plan.out.find(" predicted") - time;
    const Outcome explain = Run("explain plan.json " + parameter);
    EXPECT_EQ(explain.exit_code, 0) << explain.err;
    const size_t row = explain.out.find("\n*");
    EXPECT_NE(row, std::string::npos) << explain.out;
    EXPECT_THAT(explain.out.substr(row, explain.out.find('\n', row + 1) - row),
                HasSubstr(plan.out.substr(time, size)));
    return explain.out;
  };
  const std::string kernel = "params/layer_0/kernel";
  explains_itself("--pin 'params/layer_1/kernel=[-,-]' --pin 'x=[-,-]'", kernel);
  explains_itself("--no-replicated-parameters --no-all-gather", kernel);
  // A pin on the parameter itself gives way.
  const std::string out = explains_itself("--pin 'params/*kernel=[x,-]'", kernel);
  EXPECT_THAT(out, HasSubstr("[-,x]"));
  EXPECT_THAT(out, Not(HasSubstr("different shardings")));
}

TEST_F(PlanCommandTest, AMemoryLimitIsMetByRecomputingSomeLayers) {
  const std::string plan = "plan gpt-tiny --layers 4 --global-batch 64 --mesh data=4 ";
  const auto json = [&](const std::string& flags) {
    const Outcome outcome = Run(plan + "--method data --json " + flags);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out);
  };
  const int64_t none = json("--remat none")["peak_memory_bytes"];
  const int64_t all = json("--remat all")["peak_memory_bytes"];
  ASSERT_LT(all, none);
  const std::string limit = fmt::format("--memory-limit {}", (none + all) / 2);
  const auto mixed = json(limit + " --out plan.json");
  EXPECT_EQ(mixed["remat"].size(), 6);
  EXPECT_LE(mixed["peak_memory_bytes"], (none + all) / 2);
  EXPECT_TRUE(mixed["gap"].is_null());
  EXPECT_THAT(Run(plan + "--method data " + limit).out, HasSubstr("\n  recomputed   layer"));
  EXPECT_THAT(Run(plan + "--method data --remat none " + limit).err,
              HasSubstr("no plan fits into"));
  EXPECT_EQ(Run("inspect plan.json --only params").exit_code, 0);
}

TEST_F(PlanCommandTest, LayersOfAModuleFileAreFoundWhereItNamesItsLoss) {
  const std::string plan = fmt::format("plan {}/small_gpt_adamw.pb --mesh 2 ", JAX_MODULES);
  EXPECT_THAT(Run(plan + "--loss 112 --remat all --out plan.json").out,
              HasSubstr("recomputed   layers 0-4 all, of 6"));
  EXPECT_EQ(Run("inspect plan.json --only params").exit_code, 0);
  EXPECT_THAT(Run(plan + "--remat all").err,
              HasSubstr("the step does not say which result is its loss"));
  EXPECT_THAT(Run(plan + "--loss 3").err, HasSubstr("loss 3: the result is "));
}

TEST_F(PlanCommandTest, RematerialisationIsRefusedByName) {
  const auto error = [&](const std::string& arguments) { return Run("plan " + arguments).err; };
  EXPECT_EQ(
      error("mlp --mesh x=4 --remat some"),
      "minka: --remat some: unknown rematerialisation \"some\"; there are none, dots and all; "
      "auto leaves it to the search\n");
  EXPECT_EQ(
      error("mlp --mesh x=4 --remat all,none"),
      "minka: rematerialisation is chosen for 2 layers; the step has 7 (those in front of the "
      "first and behind the last boundary count)\n");
  Write("dot.hlo.txt", kDotModule);
  EXPECT_THAT(error("dot.hlo.txt --mesh 2x2 --remat all"),
              HasSubstr("the step does not say which result is its loss"));
}

TEST_F(PlanCommandTest, HelpSaysEveryDefault) {
  const Outcome help = Run("plan --help");
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.out, HasSubstr("--memory-limit"));
  EXPECT_THAT(help.out, HasSubstr("Default: every shape of the devices"));
}

TEST_F(PlanCommandTest, WhatIfPlansEveryValueWithEveryOther) {
  const Outcome table = Run(fmt::format(
      "whatif {} --mesh 2 --mesh=4 --method data,shard --pin 'tokens=[x,-]' --json", kSmallGpt));
  EXPECT_EQ(table.exit_code, 0) << table.err;
  const auto rows = nlohmann::json::parse(table.out)["rows"];
  ASSERT_EQ(rows.size(), 4u);
  double least = 1e300;
  for (const auto& row : rows) least = std::min(least, row["step_time_us"].get<double>());
  int num_best = 0;
  for (const auto& row : rows) {
    const Outcome plan = Run(fmt::format(
        "plan {} --mesh {} --method {} --pin 'tokens=[x,-]' --json", kSmallGpt,
        row["flags"]["mesh"].get<std::string>(), row["flags"]["method"].get<std::string>()));
    const auto json = nlohmann::json::parse(plan.out);
    EXPECT_EQ(row["step_time_us"], json["step_time_us"]);
    EXPECT_EQ(row["peak_memory_bytes"], json["peak_memory_bytes"]);
    if (!row["best"].get<bool>()) continue;
    ++num_best;
    EXPECT_EQ(row["step_time_us"], least);
  }
  EXPECT_EQ(num_best, 1);
}

TEST_F(PlanCommandTest, WhatIfSaysWhyThereIsNoPlan) {
  const Outcome table = Run(
      fmt::format("whatif {} --mesh 2 --memory-limit 1GiB,1MiB --global-batch 8,16", kSmallGpt));
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("memory-limit  global-batch  plan"));
  EXPECT_THAT(table.out, HasSubstr("per example"));
  EXPECT_THAT(table.out, HasSubstr("none [1]"));
  EXPECT_THAT(table.out,
              HasSubstr("[1] no plan was found that fits into 1048576 bytes per device"));

  const Outcome nothing = Run(fmt::format("whatif {} --mesh 2 --memory-limit 1KiB", kSmallGpt));
  EXPECT_NE(nothing.exit_code, 0);
  EXPECT_THAT(nothing.err, HasSubstr("no plan was found that fits into 1024 bytes per device"));
  const Outcome unknown = Run("whatif gpt-tiny --mesh 2,4 --meshes 2");
  EXPECT_NE(unknown.exit_code, 0);
  EXPECT_THAT(unknown.err, HasSubstr("--meshes"));
  EXPECT_THAT(Run("whatif gpt-tiny --method").err, HasSubstr("--method wants a value"));
  EXPECT_THAT(Run("whatif - --num-devices 2,4 < /dev/null").err,
              HasSubstr("give the module as a file"));
}

}  // namespace
}  // namespace minka
