// `--method pipeline` of `minka plan`, `inspect`, `run` and `train`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <map>
#include <set>

#include "command_test.h"
#include "minka/tensors/safetensors.h"
#include "nlohmann/json.hpp"
#include "tests/support/background_command.h"

namespace minka {
namespace {

namespace fs = std::filesystem;

using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class PipelineCommandTest : public CommandTest {};

struct Descendants {
  std::set<pid_t> all;
  std::vector<pid_t> workers;  // by pid
};

// Of the process, with itself.
Descendants DescendantsOf(pid_t ancestor) {
  std::map<pid_t, pid_t> parents;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string status = Slurp(entry.path() / "status");
    const size_t parent = status.find("\nPPid:");
    if (parent != std::string::npos)
      parents[std::stoi(name)] = std::stoi(status.substr(parent + 6));
  }
  Descendants found{.all = {ancestor}};
  for (size_t before = 0; before != found.all.size();) {
    before = found.all.size();
    for (const auto& [pid, parent] : parents) {
      if (found.all.contains(parent)) found.all.insert(pid);
    }
  }
  for (const pid_t pid : found.all) {
    std::string line = Slurp(fmt::format("/proc/{}/cmdline", pid));
    std::ranges::replace(line, '\0', ' ');
    if (line.find(" worker --child") != std::string::npos) found.workers.push_back(pid);
  }
  return found;
}

// Contents by file; the manifest says when the checkpoint was made.
std::map<std::string, std::string> TensorsIn(const std::string& folder) {
  std::map<std::string, std::string> contents;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    contents[entry.path().filename()] = Slurp(entry.path());
  }
  return contents;
}

constexpr const char* kSmallGpt = "gpt-tiny --layers 2 --sequence 32 --cost-model roofline";

TEST_F(PipelineCommandTest, APlanIsShownKeptInspectedAndRun) {
  const Outcome plan = Run(fmt::format(
      "plan {} --method pipeline --num-devices 4 --stages 2 --micro-batches 2 --out plan.json "
      "--trace trace.json",
      kSmallGpt));
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_THAT(plan.out, StartsWith("gpt-tiny as a pipeline: 2 stages on 2 meshes, 2 micro-batches, "
                                   "schedule 1f1b\n"));
  EXPECT_THAT(plan.out, HasSubstr("\nmesh 0  |0"));
  const auto json = nlohmann::json::parse(Slurp(Path("plan.json")));
  EXPECT_EQ(json["method"], "pipeline");
  EXPECT_EQ(json["stages"].size(), 2u);
  EXPECT_EQ(json["stages"][1]["plan"]["method"], "shard");
  // A name for each mesh; forward and backward of each micro-batch and the update on each.
  EXPECT_EQ(nlohmann::json::parse(Slurp(Path("trace.json")))["traceEvents"].size(), 2u * (1 + 5));

  const std::string inspected = Run("inspect plan.json").out;
  EXPECT_THAT(inspected, StartsWith(plan.out));
  EXPECT_THAT(inspected, testing::ContainsRegex("\nfrom mesh  to .* sent as .* received as "));
  EXPECT_THAT(inspected, HasSubstr("\nstage 1, layers "));
  EXPECT_THAT(inspected,
              testing::ContainsRegex("\nparams/head/kernel .*(data|operator|zero|idle)"));
  EXPECT_THAT(Run("inspect plan.json --stage 1 --only params").out,
              HasSubstr("params/head/kernel"));
  EXPECT_THAT(Run("inspect plan.json --stage 2").err, HasSubstr("there are stages 0 to 1"));

  std::string forward_only = Slurp(Path("plan.json"));
  forward_only.replace(forward_only.find("\"schedule\": \"1f1b\""), 18,
                       "\"schedule\": \"inference\"");
  Write("forward_only.json", forward_only);
  EXPECT_THAT(Run("inspect forward_only.json").err, HasSubstr("runs forward passes only"));

  const Outcome run = Run(
      "run gpt-tiny --layers 2 --sequence 32 --plan plan.json --random-inputs 1 --steps 1 --check "
      "--dump-to dump --trace measured.json --json");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(nlohmann::json::parse(run.out)["check"], "ok");
  EXPECT_EQ(nlohmann::json::parse(run.out)["memory_tier"], "compiled");
  // Each mesh as predicted and as measured; the latter with sends, receives and what runs once.
  int num_measured = 0;
  const auto trace = nlohmann::json::parse(Slurp(Path("measured.json")));
  for (const auto& event : trace["traceEvents"]) {
    if (event["pid"] == 1 && event["name"] == "run stage 1 backward of micro-batch 1") {
      ++num_measured;
      EXPECT_GT(event["dur"], 0);
    }
  }
  EXPECT_EQ(num_measured, 1);
  EXPECT_THAT(Slurp(Path("dump/mesh1.instructions.txt")),
              HasSubstr("\nrun stage 1 forward of micro-batch 1: "));
  EXPECT_THAT(Slurp(Path("dump/cross_mesh_transfers.txt")), StartsWith("mesh 0 to mesh 1: "));
  for (const std::string program : {"stage0.forward", "stage1.backward", "stage1.apply"}) {
    EXPECT_THAT(Slurp(Path("dump/" + program + ".hlo.txt")), StartsWith("HloModule "));
    EXPECT_THAT(Slurp(Path("dump/" + program + ".optimized.hlo.txt")), StartsWith("HloModule "));
    EXPECT_THAT(Slurp(Path("dump/" + program + ".inputs.txt")), HasSubstr("  on each device f32["));
    EXPECT_THAT(Slurp(Path("dump/" + program + ".outputs.txt")),
                HasSubstr("  on each device f32["));
    const auto memory = nlohmann::json::parse(Slurp(Path("dump/" + program + ".memory.json")));
    EXPECT_GT(memory["argument_bytes"], 0);
  }
  EXPECT_THAT(Slurp(Path("dump/step_inputs.txt")),
              testing::ContainsRegex("state     mesh 1  params/head/kernel  f32"));
  EXPECT_THAT(Slurp(Path("dump/step_outputs.txt")), HasSubstr("loss      mesh 1  loss  f32[]"));
}

TEST_F(PipelineCommandTest, ExplainSaysWhatIsNextToAPipelineAndDiffWhatIsDifferent) {
  const std::string plan =
      fmt::format("plan {} --method pipeline --num-devices 4 --micro-batches 2 ", kSmallGpt);
  const Outcome two = Run(plan + "--stages 2 --out two.json --pin 'params/head/kernel=[-,x]'");
  ASSERT_EQ(two.exit_code, 0) << two.err;
  ASSERT_EQ(Run(plan + "--stages 4 --out four.json").exit_code, 0);
  const Outcome any = Run(plan + "--top 1");
  EXPECT_THAT(any.out, testing::ContainsRegex("^   pipeline  .*\n\\*  [234] stages on "));
  EXPECT_THAT(any.out, testing::ContainsRegex("\nand [0-9]+ more \\(--top [0-9]+\\)\n"));

  const Outcome whole = Run("explain two.json");
  EXPECT_EQ(whole.exit_code, 0) << whole.err;
  EXPECT_THAT(whole.out, StartsWith("gpt-tiny as a pipeline: where the "));
  EXPECT_THAT(whole.out, HasSubstr("\nmeshes sent in no time "));
  EXPECT_THAT(whole.out, testing::ContainsRegex("\n   layer [0-9] on stage [01] "));
  EXPECT_THAT(Run("explain two.json --stage 1").out, StartsWith("stage 1 of gpt-tiny: layers "));
  const Outcome kernel = Run("explain two.json --tensor params/head/kernel");
  EXPECT_EQ(kernel.exit_code, 0) << kernel.err;
  EXPECT_THAT(kernel.out, StartsWith("The best plans of stage 1 on mesh 1, "));
  EXPECT_THAT(kernel.out, testing::ContainsRegex("\n\\*  \\[-,x\\] "));
  EXPECT_EQ(Run("explain two.json --tensor nothing").err,
            "minka: no parameter of two.json matches nothing; minka inspect two.json lists them\n");
  EXPECT_THAT(Run("explain two.json --stage 7").err, HasSubstr("there are stages 0 to 1"));

  const Outcome diff = Run("diff two.json four.json");
  EXPECT_EQ(diff.exit_code, 0) << diff.err;
  EXPECT_THAT(diff.out, testing::ContainsRegex("\nbubble .* %  .* %\n"));
  EXPECT_THAT(diff.out,
              testing::ContainsRegex("\nparams params/head/kernel +1  \\[-,x\\] +\\[-,-\\]\n"));
  EXPECT_THAT(diff.out, HasSubstr(" others lie alike, on other stages\n"));
  EXPECT_THAT(Run("diff two.json two.json").out,
              HasSubstr("All parameters, inputs and outputs lie alike.\n"));
  ASSERT_EQ(Run(fmt::format("plan {} --mesh x=4 --out one.json", kSmallGpt)).exit_code, 0);
  const Outcome with_one = Run("diff one.json two.json");
  EXPECT_EQ(with_one.exit_code, 0) << with_one.err;
  EXPECT_THAT(with_one.out, testing::ContainsRegex("\nmesh +x=4 +"));
  EXPECT_THAT(with_one.out, Not(HasSubstr("different modules")));
}

TEST_F(PipelineCommandTest, LayersAndStagesAreAsListed) {
  const std::string plan =
      fmt::format("plan {} --method pipeline --num-devices 4 --micro-batches 2 --json ", kSmallGpt);
  const auto planned = [&](const std::string& flags) {
    const Outcome outcome = Run(plan + flags);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out);
  };
  const auto by_name =
      planned("--pipeline-layers 'params/layer_0/*,params/layer_1/*' --stages 1,2");
  EXPECT_EQ(by_name["layer_starts"].size(), 2u);
  EXPECT_EQ(by_name["stage_of_layer"], (std::vector<int>{0, 1, 1}));
  EXPECT_EQ(planned("--pipeline-layers 0,2 --stages 2")["stage_of_layer"].size(), 2u);
  EXPECT_EQ(Run(plan + "--pipeline-layers 'params/layer_7/*' --stages 2").err,
            "minka: a layer shall begin at \"params/layer_7/*\", which names nothing in the "
            "forward pass of gpt-tiny; there are names of operations, their names in the model and "
            "names of parameters\n");

  Write("stages.json", R"({"stages": [{"layers": 1, "mesh": "data=2", "batch_axis": "data"},
    {"layers": [1, 2, 3], "mesh": "data=1,model=2", "pins": ["params/head/kernel=[-,model]"]}]})");
  const auto by_file = planned("--stages stages.json --out plan.json");
  EXPECT_EQ(by_file["stage_of_layer"], (std::vector<int>{0, 1, 1, 1}));
  EXPECT_EQ(by_file["stages"][1]["plan"]["stages"][0]["mesh"], "data=1,model=2");
  const Outcome run = Run(
      "run gpt-tiny --layers 2 --sequence 32 --plan plan.json --random-inputs 1 --steps 1 --check "
      "--in-process --json");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  // The plan says by itself what stood in the file.
  ASSERT_TRUE(fs::remove(Path("stages.json")));
  EXPECT_EQ(Run("explain plan.json --tensor params/head/kernel --stage 1").exit_code, 0);
  EXPECT_THAT(Run(plan + "--stages stages.json").err, HasSubstr("stages.json"));
  Write("stages.json", R"({"stages": [{"layers": 1, "mesh": "data=2"}, {"layer": 3}]})");
  EXPECT_THAT(Run(plan + "--stages stages.json").err,
              HasSubstr("stages[1] has a field layer; layers, submesh, mesh"));
}

TEST_F(PipelineCommandTest, MicroBatchesAreChosenWhereNobodySaysHowMany) {
  const Outcome plan = Run(fmt::format(
      "plan {} --global-batch 4 --method pipeline --num-devices 2 --stages 2 --top 0 --out "
      "plan.json",
      kSmallGpt));
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  for (const char* number : {"1 micro-batch ", "2 micro-batches ", "4 micro-batches "}) {
    EXPECT_THAT(plan.out, testing::ContainsRegex(fmt::format("\n[* ]  {}", number)));
  }
  const auto json = nlohmann::json::parse(Slurp(Path("plan.json")));
  EXPECT_THAT(plan.out,
              HasSubstr(fmt::format("\n*  {} micro-batch", json["num_micro_batches"].get<int>())));
  EXPECT_FALSE(json["options"].contains("micro-batches"));
  EXPECT_EQ(Run("explain plan.json").exit_code, 0);
}

TEST_F(PipelineCommandTest, StagesGetUnequalMeshesWhereTheyDoNotDivideTheDevices) {
  ASSERT_EQ(Run(fmt::format("plan {} --method pipeline --num-devices 4 --stages 3 "
                            "--micro-batches 2 --out plan.json",
                            kSmallGpt))
                .exit_code,
            0);
  const Outcome run = Run(
      "run gpt-tiny --layers 2 --sequence 32 --plan plan.json --random-inputs 1 --steps 1 --check "
      "--json --in-process");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(nlohmann::json::parse(run.out)["check"], "ok");
  const auto plan = nlohmann::json::parse(Slurp(Path("plan.json")));
  std::vector<std::string> meshes;
  for (const auto& stage : plan["stages"]) {
    meshes.push_back(stage["plan"]["stages"][0]["mesh"]);
  }
  EXPECT_THAT(meshes, testing::UnorderedElementsAre("x=1", "x=1", "x=2"));
}

std::vector<std::vector<std::string>> CellsOf(const std::string& tsv) {
  std::vector<std::vector<std::string>> rows;
  std::istringstream lines(tsv);
  for (std::string line; std::getline(lines, line);) {
    // Or the last cell is lost where it is empty.
    std::istringstream cells(line + '\t');
    rows.emplace_back();
    for (std::string cell; std::getline(cells, cell, '\t');) rows.back().push_back(cell);
  }
  return rows;
}

// Planned for hosts that nobody has here, looked at, and run on this machine's devices.
TEST_F(PipelineCommandTest, HostsOfSeveralKindsGetTheirStages) {
  const std::string plan_here =
      "plan mlp --global-batch 64 --layers 4 --cluster a100:1x2,v100:1x2 ";
  const Outcome planned =
      Run(plan_here + "--method pipeline --micro-batches 2 --submeshes 1x2,1x2 --out plan.json");
  EXPECT_EQ(planned.exit_code, 0) << planned.err;
  EXPECT_THAT(planned.out, HasSubstr("x=2 of a100-40gb"));
  EXPECT_THAT(planned.out, HasSubstr("x=2 of v100-16gb"));
  for (const char* command :
       {"explain plan.json --stage 1", "report plan.json --out page.html", "inspect plan.json",
        "run mlp --global-batch 64 --layers 4 --plan plan.json --random-inputs 1 --steps 1 "
        "--check"}) {
    const Outcome outcome = Run(command);
    EXPECT_EQ(outcome.exit_code, 0) << command << ": " << outcome.err;
    if (*command != 'r') EXPECT_THAT(outcome.out, HasSubstr("x=2 of v100-16gb")) << command;
  }
  EXPECT_THAT(Slurp(Path("page.html")), HasSubstr("v100-16gb, host 0, device 1"));
  for (const char* command :
       {"--method pipeline --micro-batches 2 --stage-shares 3,1 --out shared.json", ""}) {
    const Outcome outcome = Run(*command != 0 ? plan_here + command : "explain shared.json");
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  }
  const std::map<std::string, std::string> refusals = {
      {"--method shard", "--method pipeline plans stages on each"},
      {"--method pipeline --stage-shares 1", "each kind has a share above 0"},
      {"--method pipeline --stage-shares 1,2 --submeshes 1x2,1x2", "says what is searched"},
      {"--method pipeline --cost-model measured", "knows one kind of hosts"}};
  for (const auto& [flags, why] : refusals) {
    const Outcome refused = Run(plan_here + flags);
    EXPECT_NE(refused.exit_code, 0) << flags;
    EXPECT_THAT(refused.err, HasSubstr(why)) << flags;
  }
}

// The candidates say what the plan was made of, and restricting them restricts it.
TEST_F(PipelineCommandTest, CandidatesAreListedAndRestricted) {
  const std::string plan = fmt::format("plan {} --method pipeline --num-devices 8 ", kSmallGpt) +
                           "--micro-batches 2 --memory-limit 1GiB ";
  const Outcome listed = Run(plan + "--candidates all.tsv --out plan.json");
  ASSERT_EQ(listed.exit_code, 0) << listed.err;
  EXPECT_THAT(listed.out, HasSubstr("each stage on 1, 2, 4 devices, in "));
  const std::vector<std::vector<std::string>> rows = CellsOf(Slurp(Path("all.tsv")));
  ASSERT_GT(rows.size(), 4U);
  std::map<std::string, size_t> columns;
  for (size_t i = 0; i < rows[0].size(); ++i) columns[rows[0][i]] = i;
  const auto json = nlohmann::json::parse(Slurp(Path("plan.json")));
  std::set<std::string> stages;
  int num_dropped = 0;
  for (size_t i = 1; i < rows.size(); ++i) {
    ASSERT_EQ(rows[i].size(), rows[0].size()) << i;
    const auto cell = [&](const std::string& column) { return rows[i][columns.at(column)]; };
    if (!cell("stage_of_plan").empty()) {
      stages.insert(cell("stage_of_plan"));
      const auto& stage = json["stages"][std::stoi(cell("stage_of_plan"))];
      EXPECT_EQ(stage["plan"]["stages"][0]["layers"][0], std::stoi(cell("first_layer")));
    }
    if (!cell("equal_to").empty()) continue;
    num_dropped += !cell("why_dropped").empty();
    EXPECT_EQ(cell("available_bytes"), fmt::to_string(1 << 30));
    EXPECT_NEAR(2 * (std::stod(cell("forward_us")) + std::stod(cell("backward_us"))) +
                    std::stod(cell("update_us")),
                std::stod(cell("step_us")), 1e-4 * std::stod(cell("step_us")));
  }
  EXPECT_EQ(stages.size(), json["stages"].size());
  EXPECT_GT(num_dropped, 0);

  const Outcome restricted =
      Run(plan + "--submesh-choices 1x4 --candidates four.json --out 4.json");
  ASSERT_EQ(restricted.exit_code, 0) << restricted.err;
  for (const auto& candidate : nlohmann::json::parse(Slurp(Path("four.json")))["candidates"]) {
    if (!candidate.contains("equal_to")) {
      EXPECT_EQ(candidate["devices"], 4);
    }
  }
  for (const auto& stage : nlohmann::json::parse(Slurp(Path("4.json")))["stages"])
    EXPECT_THAT(stage["plan"]["stages"][0]["mesh"].get<std::string>(),
                testing::AnyOf("x=4", "x=2,y=2"));
}

TEST_F(PipelineCommandTest, TrainsAndResumesWithoutAPipeline) {
  const Outcome train = Run(fmt::format(
      "train {} --method pipeline --dp 1 --op 2 --pp 2 --micro-batches 2 --steps 2 --check 1 "
      "--data /usr/share/common-licenses/GPL-3 --save saved --out plan.json",
      kSmallGpt));
  EXPECT_EQ(train.exit_code, 0) << train.err;
  EXPECT_THAT(train.out, HasSubstr("\ntrained 2 steps"));
  const Outcome resumed = Run(fmt::format(
      "train {} --method data --num-devices 2 --steps 3 --data /usr/share/common-licenses/GPL-3 "
      "--resume saved --out plan.json",
      kSmallGpt));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.out, HasSubstr("made after step 2"));
}

TEST_F(PipelineCommandTest, AKilledWorkerIsNamedAndTrainingGoesOnFromItsCheckpoint) {
  const std::string training = fmt::format(
      "train {} --method pipeline --num-devices 2 --micro-batches 2 --steps 40 --sample 0 "
      "--data /usr/share/common-licenses/GPL-3 --every 5 --keep 100",
      kSmallGpt);
  std::vector<std::string> arguments = {MINKA_BINARY};
  std::istringstream words(training + " --save disturbed");
  for (std::string word; words >> word;) arguments.push_back(word);
  BackgroundCommand train({.arguments = arguments, .folder = Path("."), .name = "train"});
  ASSERT_TRUE(Await(seconds(60), [&] { return fs::exists(Path("disturbed/step_00000005")); }))
      << train.Err();
  const Descendants family = DescendantsOf(train.pid());
  ASSERT_EQ(family.workers.size(), 2u);
  kill(family.workers.back(), SIGKILL);
  EXPECT_EQ(train.Wait(seconds(20)), 1);
  EXPECT_THAT(train.Err(), testing::ContainsRegex("minka: worker [01].* died of SIGKILL"));
  for (const pid_t pid : family.all) EXPECT_NE(kill(pid, 0), 0) << pid << " is left over";

  const Outcome resumed = Run(training + " --save disturbed --resume disturbed");
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.out, HasSubstr("\nresumed disturbed"));
  const Outcome whole = Run(training + " --save whole");
  EXPECT_EQ(whole.exit_code, 0) << whole.err;
  const auto tensors = TensorsIn(Path("whole/step_00000040"));
  EXPECT_FALSE(tensors.empty());
  EXPECT_EQ(TensorsIn(Path("disturbed/step_00000040")) == tensors, true);
}

TEST_F(PipelineCommandTest, RefusalsNameTheCulprit) {
  const auto refusal = [&](const std::string& flags) {
    const Outcome outcome = Run(fmt::format("plan {} {}", kSmallGpt, flags));
    EXPECT_EQ(outcome.exit_code, 1);
    return outcome.err;
  };
  EXPECT_EQ(refusal("--method pipeline --num-devices 4 --stages 9"),
            "minka: 9 stages are asked for, but gpt-tiny has 4 layers, and each stage one at least "
            "(--pipeline-layers N parts it into N)\n");
  EXPECT_EQ(
      refusal("--method pipeline --num-devices 4 --stages 9 --pipeline-layers 5"),
      "minka: 9 stages are asked for, but gpt-tiny has 5 layers, and each stage one at least\n");
  EXPECT_THAT(refusal("--method pipeline --num-devices 4 --pipeline-layers 5000"),
              HasSubstr("5000 layers are asked for, but the forward pass of gpt-tiny has "));
  EXPECT_THAT(refusal("--method pipeline --num-devices 4 --pipeline-layers 0"),
              HasSubstr("--pipeline-layers 0 is neither marked, nor a number of layers"));
  EXPECT_THAT(refusal("--method pipeline --num-devices 4 --stages 1,4"),
              HasSubstr("5 layers are given to stages; gpt-tiny has 4"));
  EXPECT_THAT(refusal("--method pipeline --num-devices 2 --stages 6,1 --submeshes 1x1,1x1"),
              HasSubstr("7 layers are given to stages; gpt-tiny has 4"));
  EXPECT_THAT(refusal("--method pipeline --num-devices 4 --micro-batches many"),
              HasSubstr("--micro-batches many is neither auto nor a number of 1 or more"));
  EXPECT_THAT(refusal("--method pipeline --num-devices 2 --stages 3"),
              HasSubstr("2 devices do not go evenly on 3 stages; name the submeshes"));
  EXPECT_THAT(refusal("--method shard --num-devices 4 --stages 2"),
              HasSubstr("belong to --method pipeline, not to shard"));
  EXPECT_THAT(refusal("--method pipeline --num-devices 2 --stages 2 --schedule 2f2b"),
              HasSubstr("unknown schedule \"2f2b\"; known: gpipe, 1f1b"));
  EXPECT_THAT(refusal("--method pipeline --num-devices 2 --stages 2 --schedule inference"),
              HasSubstr("runs forward passes only, and gpt-tiny has a backward pass"));
  EXPECT_THAT(refusal("--method pipeline --submeshes 2,2"), HasSubstr("2 is no hosts x devices"));
  EXPECT_THAT(refusal("--method pipeline --num-devices 2 --submesh-choices 2"),
              HasSubstr("--submesh-choices 2: 2 is no hosts x devices"));
  EXPECT_THAT(refusal("--method pipeline --num-devices 2 --submesh-choices 1x4"),
              HasSubstr("a submesh of 4 devices may be chosen, but there are 2"));
  EXPECT_THAT(refusal("--method pipeline --submeshes 1x1,1x1 --submesh-choices 1x1"),
              HasSubstr("--submesh-choices says what meshes are searched; these are given"));
  EXPECT_THAT(refusal("--method pipeline --num-devices 8 --dp 3 --pp 2"),
              HasSubstr("must be the number of devices"));
  EXPECT_THAT(refusal("--method pipeline --num-devices 2 --stages 2 --memory-limit 7MiB"),
              HasSubstr("bytes per device, 7340032 are allowed"));
  EXPECT_THAT(
      Run(fmt::format("plan {}/small_gpt_adamw.pb --method pipeline --num-devices 2", JAX_MODULES))
          .err,
      HasSubstr("--pipeline-layers N parts it into N layers"));
}

TEST_F(PipelineCommandTest, AModuleWithoutBoundariesIsPartedByNumber) {
  const std::string module = fmt::format(
      "{}/small_moe.pb --batch-input 58 --batch-input 59 --loss 58 --method pipeline --stages 2 "
      "--num-devices 2 --micro-batches 2",
      JAX_MODULES);
  const auto plan = [&](const std::string& flags) {
    const Outcome outcome = Run(fmt::format("plan {} --json {}", module, flags));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out);
  };
  EXPECT_EQ(plan("")["num_layers"], 0);
  const auto by_number = plan("--pipeline-layers 3 --out plan.json");
  EXPECT_EQ(by_number["num_layers"], 3);
  EXPECT_EQ(by_number["stage_of_layer"].size(), 3u);
  EXPECT_EQ(by_number["options"]["pipeline-layers"], "3");
  const Outcome run = Run(fmt::format(
      "run {}/small_moe.pb --batch-input 58 --batch-input 59 --loss 58 --plan plan.json "
      "--in-process --random-inputs 1 --steps 1 --check --json",
      JAX_MODULES));
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(nlohmann::json::parse(run.out)["check"], "ok");

  // A loop over time is one operation: nothing lies between boundaries.
  const Outcome lstm = Run(fmt::format(
      "plan {}/small_lstm.pb --batch-input 46 --batch-input 47 --loss 46 --method pipeline "
      "--stages 2 --num-devices 2 --json",
      JAX_MODULES));
  EXPECT_EQ(lstm.exit_code, 0) << lstm.err;
  EXPECT_EQ(nlohmann::json::parse(lstm.out)["num_layers"], 8);
}

// Weights stacked for a loop over layers, of which each stage holds its layers' rows.
class ScannedModuleTest : public PipelineCommandTest {
 protected:
  static constexpr const char* kStages =
      "--method pipeline --stages 3,2 --submeshes 1x2,1x2 --micro-batches 2 --cost-model roofline";
  const std::string module_ = fmt::format(
      "{}/small_mlp_scanned.pb --batch-input 13 --batch-input 14 --loss 13", JAX_MODULES);
};

TEST_F(ScannedModuleTest, EachStageHoldsItsLayersRowsAlone) {
  const Outcome plan = Run(fmt::format("plan {} {} --json", module_, kStages));
  ASSERT_EQ(plan.exit_code, 0) << plan.err;
  const auto json = nlohmann::json::parse(plan.out);
  std::vector<std::set<std::string>> rows(2);
  for (size_t stage = 0; stage < 2; ++stage) {
    for (const auto& parameter : json["stages"][stage]["plan"]["parameters"]) {
      const std::string name = parameter["name"];
      if (name.starts_with("state['params']['layers']['dense']['kernel']"))
        rows[stage].insert(name.substr(name.size() - 3));
    }
  }
  EXPECT_THAT(rows[0], testing::ElementsAre("[0]", "[1]", "[2]"));
  EXPECT_THAT(rows[1], testing::ElementsAre("[3]"));
  for (const auto& transfers : json["transfers"]) {
    const bool per_micro_batch = transfers[2];
    EXPECT_LE(transfers[5], per_micro_batch ? 2 * 8 * 32 * 4 : 16) << transfers;
  }
}

TEST_F(ScannedModuleTest, APlanIsRunComparedAndLookedAtByTheNamesOfTheModule) {
  const Outcome plan = Run(fmt::format(
      "plan {} {} --pin \"*params*dense*kernel']=[-,-,x]\" --out plan.json", module_, kStages));
  ASSERT_EQ(plan.exit_code, 0) << plan.err;
  const Outcome run = Run(fmt::format(
      "run {} --plan plan.json --random-inputs 1 --steps 1 --check --outputs rows.safetensors "
      "--dump-to dump --json",
      module_));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(nlohmann::json::parse(run.out)["check"], "ok");
  EXPECT_THAT(Slurp(Path("dump/step_inputs.txt")),
              HasSubstr("mesh 1  state['params']['layers']['dense']['kernel'][3]  f32[1,32,32]  "
                        "[-,-,x]  on each device"));
  // Arrays are the module's, as without a pipeline.
  const Outcome whole = Run(fmt::format(
      "run {} --mesh 1 --random-inputs 1 --steps 1 --outputs whole.safetensors --cost-model "
      "roofline",
      module_));
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  const TensorFile of_rows = ReadTensors(Path("rows.safetensors")).value();
  const TensorFile of_whole = ReadTensors(Path("whole.safetensors")).value();
  ASSERT_EQ(of_rows.tensors.size(), 14u);
  for (const auto& [name, tensor] : of_whole.tensors) {
    EXPECT_EQ(of_rows.tensors.at(name).shape, tensor.shape) << name;
  }

  const std::string pinned = "\"*params*dense*kernel']\"";
  EXPECT_THAT(Run("inspect plan.json --stage 1 --tensor " + pinned).out,
              testing::ContainsRegex("\\['kernel'\\]\\[3\\] +f32\\[1,32,32\\] +\\[-,-,x\\]"));
  const std::string explained = Run("explain plan.json --stage 1 " + pinned).out;
  EXPECT_THAT(explained, HasSubstr("with state['params']['layers']['dense']['kernel'][3] pinned"));
  // With the other stage's rows pinned, too, it takes as long as planned.
  const size_t begin = plan.out.find("step time    ") + 13;
  const std::string step_time = plan.out.substr(begin, plan.out.find(" predicted") - begin);
  EXPECT_THAT(explained, testing::ContainsRegex("\n\\*  \\[-,-,x\\] +" + step_time));
  ASSERT_EQ(Run(fmt::format("plan {} --mesh 2 --out mesh.json", module_)).exit_code, 0);
  EXPECT_THAT(Run("diff mesh.json plan.json").out,
              testing::ContainsRegex(
                  "params state\\['params'\\]\\['layers'\\]\\['dense'\\]\\['kernel'\\] +1 "
                  "+\\[-,-,-\\] +\\[-,-,x\\]\n"));
}

TEST_F(ScannedModuleTest, APinThatSplitsTheLayersIsRefused) {
  EXPECT_THAT(
      Run(fmt::format("plan {} {} --pin \"*params*dense*kernel']=[x,-,-]\"", module_, kStages)).err,
      HasSubstr("pin \"*params*dense*kernel']=[x,-,-]\" splits dimension 0 of "
                "state['params']['layers']['dense']['kernel'], which counts its layers; in a "
                "pipeline each layer lies on its stage: pin *params*dense*kernel']=[-,-,-]"));
}

}  // namespace
}  // namespace minka
