// What a user can get wrong: a message that names the culprit and the way out, an exit code from 1
// to 125, never an abort.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "command_test.h"

namespace minka {
namespace {

class BadInputTest : public CommandTest {
 protected:
  // The whole of standard error of a command that must fail as a user's mistake does.
  std::string ErrorOf(const std::string& arguments, const std::string& environment = "") const {
    const Outcome outcome = Run(arguments, environment);
    EXPECT_EQ(outcome.exit_code, 1) << arguments << "\n" << outcome.out << outcome.err;
    EXPECT_EQ(outcome.out, "") << arguments;
    return outcome.err;
  }

  // The limit that the refusal of a command says would work; what else it says must be as given.
  static std::string LimitIn(const std::string& error, const std::string& ending) {
    static const std::regex refusal(
        "minka: no plan (?:was found that )?fits into [0-9]+ bytes per device; the smallest limit "
        "known "
        "to work is "
        "([0-9]+) bytes \\([0-9.]+ MiB\\)(.*)\n");
    std::smatch parts;
    const bool matches = std::regex_match(error, parts, refusal);
    EXPECT_TRUE(matches) << error;
    if (!matches) return "";
    EXPECT_EQ(parts[2].str(), ending);
    return parts[1].str();
  }
};

TEST_F(BadInputTest, ModulesThatAreNone) {
  Write("random.hlo.pb", std::string("\x9c\x01\xff\x00\x7f", 5) + "no module");
  EXPECT_EQ(ErrorOf("plan random.hlo.pb --mesh 2"),
            "minka: random.hlo.pb: not an HLO module: the bytes are no proto\n");
  const std::string whole = Slurp(fmt::format("{}/small_mlp_sgd.pb", JAX_MODULES));
  Write("half.hlo.pb", whole.substr(0, whole.size() / 2));
  EXPECT_EQ(ErrorOf("plan half.hlo.pb --mesh 2"),
            "minka: half.hlo.pb: not an HLO module: the bytes are no proto\n");
  EXPECT_EQ(ErrorOf("plan missing.pb --mesh 2"),
            "minka: cannot open missing.pb: No such file or directory\n");
}

TEST_F(BadInputTest, ContradictingShapes) {
  std::string text = kDotModule;
  text.replace(text.find("f32[8,32]"), 9, "f32[8,33]");
  Write("dot.hlo.txt", text);
  EXPECT_EQ(ErrorOf("plan dot.hlo.txt --mesh 2"),
            "minka: dot.hlo.txt: 'y' in 'main': dot: result 0 is f32[8,32], declared f32[8,33]\n");
}

TEST_F(BadInputTest, MoreDevicesThanExist) {
  EXPECT_EQ(
      ErrorOf("plan mlp --mesh 16x16"),
      "minka: 256 local devices asked for; 1 to 64 can be had (--cluster plans for others)\n");
  EXPECT_EQ(ErrorOf("plan mlp --mesh 2x2x2x2x2x2x2x2x2"),
            "minka: mesh '2x2x2x2x2x2x2x2x2' has 9 axes; at most 8 are possible\n");
  EXPECT_EQ(ErrorOf("plan mlp --cluster p3.16xlarge:1024"),
            "minka: the cluster p3.16xlarge has 8192 devices; at most 4096 are planned for: give a "
            "mesh of fewer\n");
  EXPECT_EQ(ErrorOf("plan mlp --cluster p3.16xlarge --mesh 4x4"),
            "minka: mesh x=4,y=4 has 16 devices; the cluster p3.16xlarge has 8\n");
  EXPECT_EQ(
      ErrorOf("train mlp --num-devices 100 --steps 1"),
      "minka: 100 local devices asked for; 1 to 64 can be had (--cluster plans for others)\n");
}

TEST_F(BadInputTest, DevicesThatAreNotHere) {
  for (const std::string command : {"run mlp --random-inputs 1", "train mlp --steps 1"}) {
    EXPECT_EQ(ErrorOf(command + " --cluster dgx-h100:1x1 --mesh 1"),
              fmt::format("minka: {} runs on this machine's devices, --cluster local or "
                          "local-cuda; minka plan plans for --cluster dgx-h100:1x1\n",
                          command.substr(0, command.find(' '))));
  }
  EXPECT_THAT(ErrorOf("plan mlp --cluster local-cuda --mesh 1 --plugin /nowhere/plugin.so"),
              testing::HasSubstr("--plugin names /nowhere/plugin.so, which does not exist"));
}

TEST_F(BadInputTest, PinsThatNameNothingOrDoNotFit) {
  EXPECT_EQ(ErrorOf("plan mlp --mesh data=2 --pin 'weights/*=[data,-]'"),
            "minka: pin \"weights/*\" names no parameter, result or operation; names look like "
            "\"params/layer_0/kernel\"\n");
  EXPECT_EQ(ErrorOf("plan mlp --mesh data=2 --pin 'params/*kernel=[model,-]'"),
            "minka: pin \"params/*kernel=[model,-]\": sharding '[model,-]': the mesh data=2 has no "
            "axis 'model'\n");
  EXPECT_EQ(ErrorOf("plan mlp --mesh data=2 --pin 'params/*kernel'"),
            "minka: pin \"params/*kernel\": expected GLOB=SHARDING, e.g. '*/kernel=[-,model]'\n");
}

TEST_F(BadInputTest, APlanForAnotherModule) {
  Write("dot.hlo.txt", kDotModule);
  ASSERT_EQ(Run("plan mlp --layers 1 --mesh 2 --out plan.json").exit_code, 0);
  EXPECT_EQ(ErrorOf("run dot.hlo.txt --plan plan.json --random-inputs 0"),
            "minka: plan.json: plan: module_hash: the plan was made for module 90ae2d3918490ad7, "
            "this module is 2d57f80139e3c205; plan again or use the module that the plan was made "
            "for\n");
  Write("plan.json", "{}");
  EXPECT_EQ(
      ErrorOf("inspect plan.json"),
      "minka: plan.json: this is no plan.json: a JSON object with the field 'options' is meant\n");
}

TEST_F(BadInputTest, AMemoryLimitThatNothingFitsIn) {
  const std::string plan = "plan mlp --layers 1 --mesh 2 --memory-limit ";
  const std::string limit = LimitIn(ErrorOf(plan + "1MiB"), "");
  EXPECT_EQ(Run(plan + limit).exit_code, 0);
  EXPECT_EQ(ErrorOf("plan mlp --mesh 2 --memory-limit much"),
            "minka: --memory-limit much is not a size; write for example 2GiB, 500MB or 4096\n");
}

TEST_F(BadInputTest, PinsAndLimitsThatLeaveNoPlan) {
  const std::string plan = "plan mlp --layers 1 --mesh a=2,b=2 ";
  EXPECT_EQ(ErrorOf(plan + "--method zero3 --no-all-gather --no-all-to-all"),
            "minka: no plan on the mesh a=2,b=2 obeys all that is asked: method zero3, "
            "--no-all-gather, --no-all-to-all; there is one without --no-all-gather or without "
            "--no-all-to-all: drop one of them\n");
  // Also under a limit, when it is not memory that is short.
  const std::string pins = "--pin 'params/*kernel=[-,-]' --pin 'optimizer/m/*kernel=[-,a+b]' ";
  for (const char* limit : {"", "--memory-limit 1GiB"}) {
    EXPECT_EQ(ErrorOf(plan + pins + "--no-all-gather --no-all-to-all " + limit),
              "minka: no plan on the mesh a=2,b=2 obeys all that is asked: method shard, --pin "
              "params/*kernel=[-,-], --pin optimizer/m/*kernel=[-,a+b], --no-all-gather, "
              "--no-all-to-all; there is one without --pin params/*kernel=[-,-] or without --pin "
              "optimizer/m/*kernel=[-,a+b] or without --no-all-gather: drop one of them\n");
  }
  const std::string pinned = plan + "--pin 'params/*kernel=[-,-]' --memory-limit ";
  const std::string limit =
      LimitIn(ErrorOf(pinned + "7MiB"), "; one fits without --pin params/*kernel=[-,-]: drop it");
  EXPECT_EQ(Run(pinned + limit).exit_code, 0);
}

TEST_F(BadInputTest, NoBatchToSplit) {
  Write("dot.hlo.txt", kDotModule);
  for (const char* method : {"data", "zero2", "zero3"}) {
    EXPECT_EQ(ErrorOf(fmt::format("plan dot.hlo.txt --mesh a=2,b=2 --method {}", method)),
              fmt::format("minka: method {} splits the batch, but nothing says which inputs of dot "
                          "are batches; name them with --batch-input PARAM[:DIM], or search with "
                          "method shard\n",
                          method));
  }
  EXPECT_EQ(ErrorOf("plan dot.hlo.txt --mesh a=2,b=2 --batch-axis a"),
            "minka: --batch-axis a splits the batch, but nothing says which inputs of dot are "
            "batches; name them with --batch-input PARAM[:DIM], or drop --batch-axis\n");
  EXPECT_EQ(Run("plan dot.hlo.txt --mesh a=2,b=2 --method data --batch-input 0").exit_code, 0);
}

TEST_F(BadInputTest, NoPluginOrAFileThatIsNone) {
  Write("dot.hlo.txt", kDotModule);
  Write("plugin.so", "no plugin");
  const std::string run = "run dot.hlo.txt --mesh 2 --random-inputs 0 --cost-model roofline ";
  EXPECT_EQ(ErrorOf(run + "--plugin nowhere.so"),
            "minka: worker 0: --plugin names nowhere.so, which does not exist\n");
  EXPECT_EQ(ErrorOf(run, "MINKA_PJRT_PLUGIN=nowhere.so"),
            "minka: worker 0: MINKA_PJRT_PLUGIN names nowhere.so, which does not exist\n");
  EXPECT_EQ(
      ErrorOf(run + "--plugin ./plugin.so"),
      fmt::format("minka: worker 0: ./plugin.so is no PJRT plugin: {}./plugin.so: file too short\n",
                  Path("")));
}

// In a mount namespace of its own in which the virtual environment is empty.
TEST_F(BadInputTest, NoPluginAnywhere) {
  const std::string hidden =
      fmt::format("unshare --map-root-user --mount sh -c 'mount --bind {} \"{}\" && exec env {}",
                  Path(""), MINKA_VENV, "PATH=/nowhere \"$0\" \"$@\"'");
  if (std::system((hidden + " /bin/true").c_str()) != 0) {
    GTEST_SKIP() << "mount namespaces are not allowed here";
  }
  Write("dot.hlo.txt", kDotModule);
  EXPECT_EQ(ErrorOf("run dot.hlo.txt --mesh 2 --random-inputs 0 --cost-model roofline", hidden),
            fmt::format("minka: worker 0: no PJRT plugin for cpu; tried\n"
                        "  --plugin: not given\n"
                        "  MINKA_PJRT_PLUGIN: not set\n"
                        "  {}/lib/python3*/site-packages/xla_plugins/xla_cpu_pjrt*/"
                        "xla_cpu_pjrt.so: no such file\n"
                        "  xla_plugins/xla_cpu_pjrt*/xla_cpu_pjrt.so in the module path of "
                        "python3: no such file\n"
                        "Run 'make deps', or 'pip install xla-cpu-pjrt', or name the file with "
                        "--plugin.\n",
                        MINKA_VENV));
}

TEST_F(BadInputTest, OutputThatCannotBeWritten) {
  Write("dot.hlo.txt", kDotModule);
  EXPECT_EQ(ErrorOf("plan dot.hlo.txt --mesh 2 --out missing/plan.json"),
            "minka: cannot write missing/plan.json: No such file or directory\n");
  EXPECT_EQ(ErrorOf("plan dot.hlo.txt --mesh 2 --json --out -"),
            "minka: --json and --out - both want standard output; give --out a file\n");
}

TEST_F(BadInputTest, FlagsThatAreWrong) {
  EXPECT_EQ(ErrorOf(""), "minka: A subcommand is required; minka --help lists what can be given\n");
  EXPECT_EQ(ErrorOf("pan mlp"),
            "minka: unknown command 'pan'; did you mean 'plan'?; minka --help lists what can be "
            "given\n");
  EXPECT_EQ(ErrorOf("parallelize mlp"),
            "minka: unknown command 'parallelize'; minka --help lists what can be given\n");
  EXPECT_EQ(ErrorOf("plan mlp --mash 2"),
            "minka: The following arguments were not expected: 2 --mash; minka plan --help lists "
            "what can be given\n");
  EXPECT_EQ(ErrorOf("plan mlp"),
            "minka: what is the plan for? Give --mesh data=2,model=4, or --num-devices 8 to search "
            "its shape\n");
  EXPECT_THAT(ErrorOf("plan gpt-1t --mesh 2"),
              testing::StartsWith("minka: no model is named gpt-1t; there are mlp, gpt-tiny, "
                                  "gpt-125m, gpt-350m, gpt-760m, gpt-1.3b, "));
  EXPECT_EQ(ErrorOf("plan gpt-tiny --mesh 8 --method zero2 --micro-batches 4"),
            "minka: method zero2 splits the batch over all 8 devices, which do not divide "
            "dimension 1 of tokens s32[4,4,128]; change the batch, the number of micro-batches or "
            "the mesh, or search with method shard\n");
  EXPECT_EQ(ErrorOf("plan mlp --mesh a=2,b=2 --batch-axis a --pin 'x=[b,-]'"),
            "minka: pin \"x=[b,-]\" and --batch-axis a disagree: the pin does not split the "
            "dimension of x that counts examples over that axis and no other; drop one of them\n");
  EXPECT_EQ(ErrorOf("plan mlp --mesh data=0"),
            "minka: mesh axis 'data=0' needs a positive size, for example data=2\n");
  EXPECT_EQ(ErrorOf("plan mlp --mesh 2 --method fast"),
            "minka: unknown method \"fast\"; known: data, zero2, zero3, shard\n");
  EXPECT_EQ(
      ErrorOf("plan mlp --mesh 2 --cost-model alpa"),
      "minka: --cost-model alpa needs --alpha and --beta, one value per mesh axis: --alpha 1,1 "
      "--beta 1,0.1\n");
  EXPECT_EQ(ErrorOf("train gpt-tiny"),
            "minka: how long to train? Give --steps 100 or --minutes 2\n");
}

TEST_F(BadInputTest, FlagsThatSayNothingWithoutAnother) {
  EXPECT_EQ(ErrorOf("train mlp --steps 1 --every 5"),
            "minka: --every requires --save; minka train --help lists what can be given\n");
  EXPECT_EQ(ErrorOf("train mlp --steps 1 --keep 3"),
            "minka: --keep requires --save; minka train --help lists what can be given\n");
}

TEST_F(BadInputTest, NumbersOutOfRange) {
  const auto number_error = [this](const std::string& command, const std::string& flag) {
    const std::string error = ErrorOf(command + " " + flag);
    const std::string end = fmt::format("; minka {} --help lists what can be given\n",
                                        command.substr(0, command.find(' ')));
    EXPECT_THAT(error, testing::EndsWith(end));
    return error.substr(0, error.size() - end.size());
  };
  const std::string train = "train mlp --steps 1 --save run";
  EXPECT_EQ(number_error(train, "--check -1"),
            "minka: --check: -1 is no whole number in [0, 2147483647]");
  EXPECT_EQ(number_error(train, "--sample -1"),
            "minka: --sample: -1 is no whole number in [0, 2147483647]");
  EXPECT_EQ(number_error(train, "--seed -1"),
            "minka: --seed: -1 is no whole number in [0, 18446744073709551615]");
  EXPECT_EQ(number_error(train, "--evaluate-every -2"),
            "minka: --evaluate-every: -2 is no whole number in [1, 9223372036854775807]");
  EXPECT_EQ(number_error(train, "--every 0"),
            "minka: --every: 0 is no whole number in [1, 9223372036854775807]");
  EXPECT_EQ(number_error(train, "--keep 0"),
            "minka: --keep: 0 is no whole number in [1, 2147483647]");
  EXPECT_EQ(number_error("train mlp", "--steps -5"),
            "minka: --steps: -5 is no whole number in [1, 9223372036854775807]");
  EXPECT_EQ(number_error("run mlp --mesh 1", "--random-inputs -1"),
            "minka: --random-inputs: -1 is no whole number in [0, 18446744073709551615]");
  EXPECT_EQ(ErrorOf("train mlp --steps 1 --minutes -1"), "minka: --minutes -1 is below 0\n");
}

}  // namespace
}  // namespace minka
