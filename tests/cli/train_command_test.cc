// `minka train` as a process: runs that are killed and resumed.
#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <set>
#include <thread>

#include "command_test.h"
#include "nlohmann/json.hpp"

namespace minka {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
namespace fs = std::filesystem;

// The flags but mesh, length and checkpoints; steps take milliseconds.
constexpr const char* kSmall =
    "train gpt-tiny --layers 1 --sequence 16 --global-batch 8 --optimizer lion --dtype bf16 "
    "--loss-scale dynamic --cost-model roofline --data text.txt --sample 0 --json --out plan.json";

// Takes a moment to compile and reads random inputs.
constexpr const char* kSmallest =
    "train mlp --layers 1 --global-batch 8 --mesh 1 --cost-model roofline --json --out plan.json";

class TrainCommand : public CommandTest {
 protected:
  TrainCommand() {
    std::string text;
    for (int i = 0; text.size() < 20000; ++i) text += fmt::format("line {} of {}\n", i, i * i);
    Write("text.txt", text);
  }

  json Trained(const std::string& flags) const { return JsonOf(kSmall, flags); }

  json JsonOf(const char* training, const std::string& flags) const {
    const Outcome outcome = Run(fmt::format("{} {}", training, flags));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return json::parse(outcome.out, nullptr, false);
  }

  // Starts a training in a process group of its own and kills the whole group once a checkpoint has
  // appeared and a moment has passed.
  void KillAfter(const std::string& checkpoint, const std::string& flags) const {
    const std::string command = fmt::format("cd {} && exec {} {} {} > /dev/null 2> killed.txt",
                                            Path(""), MINKA_BINARY, kSmall, flags);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::setpgid(0, 0);
      ::execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
      ::_exit(127);
    }
    ::setpgid(child, child);
    int status = 0;
    bool has_ended = false;
    for (int i = 0; i < 6000 && !has_ended && !fs::exists(Path(checkpoint)); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      has_ended = ::waitpid(child, &status, WNOHANG) == child;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    ::kill(-child, SIGKILL);
    if (!has_ended) ::waitpid(child, &status, 0);
    EXPECT_FALSE(has_ended) << Slurp(Path("killed.txt"));
    EXPECT_TRUE(WIFSIGNALED(status));
  }
};

TEST_F(TrainCommand, AKilledRunResumesToTheSameLossCurve) {
  const json whole = Trained("--mesh 2x2 --steps 40");
  KillAfter("run/step_00000010", "--mesh 2x2 --steps 1000000 --save run --every 5");
  const json resumed = Trained("--mesh 2x2 --steps 40 --resume run --save run --every 5");
  const int first = resumed["first_step"];
  EXPECT_GE(first, 10);
  EXPECT_EQ(first % 5, 0);
  ASSERT_LT(first, 40) << "the machine took a thousand steps before it killed one process";
  ASSERT_EQ(resumed["losses"].size(), 40u - first);
  for (int step = first; step < 40; ++step)
    EXPECT_EQ(resumed["losses"][step - first], whole["losses"][step]) << step;
  EXPECT_EQ(resumed["saved_to"], "run/step_00000040");

  // On another mesh, by another method, from an older checkpoint: the same curve but for rounding.
  const json other = Trained("--mesh 4 --method data --steps 40 --resume run/step_00000035");
  ASSERT_EQ(other["losses"].size(), 5u);
  for (int step = 35; step < 40; ++step)
    EXPECT_NEAR(other["losses"][step - 35].get<double>(), whole["losses"][step].get<double>(),
                0.02);
}

TEST_F(TrainCommand, AResumedRunPrunesItsOwnCheckpointsAlone) {
  JsonOf(kSmallest, "--steps 2 --save other --every 1");
  JsonOf(kSmallest, "--steps 3 --save run --every 1");
  const auto names = [this](const std::string& folder) {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(Path(folder))) {
      names.insert(entry.path().filename().string());
    }
    return names;
  };
  // In the folder of another run.
  JsonOf(kSmallest, "--steps 5 --resume run --save other --every 1 --keep 1");
  EXPECT_THAT(names("other"), ElementsAre("step_00000001", "step_00000002", "step_00000005"));
  // In its own: what the run saved before it was resumed goes, too.
  JsonOf(kSmallest, "--steps 5 --resume run --save run --every 1 --keep 2");
  EXPECT_THAT(names("run"), ElementsAre("step_00000004", "step_00000005"));
  // From a checkpoint that is not its newest: nobody could tell afterwards which is.
  const Outcome refused =
      Run(fmt::format("{} --steps 6 --resume run/step_00000004 --save run --keep 1", kSmallest));
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_EQ(refused.err,
            "minka: run/step_00000005 has more steps behind it than run/step_00000004, which is "
            "resumed, and what is saved would mix with it; resume it, save to another folder, or "
            "move it away\n");
  EXPECT_THAT(names("run"), ElementsAre("step_00000004", "step_00000005"));
}

TEST_F(TrainCommand, AResumedRunShowsTheMeanOfItsOwnLosses) {
  JsonOf(kSmallest, "--steps 3 --save run");
  const Outcome resumed = Run(fmt::format("{} --steps 4 --resume run", kSmallest));
  const double loss = json::parse(resumed.out)["losses"][0];
  EXPECT_THAT(resumed.err, HasSubstr(fmt::format("step 4  loss {:.3f}  ", loss)));
}

TEST_F(TrainCommand, AResumedRunSaysWhatDiffers) {
  JsonOf(kSmallest, "--steps 1 --save run --micro-batches 2");
  const json same = JsonOf(kSmallest, "--steps 2 --resume run --micro-batches 2");
  EXPECT_TRUE(same["resume_notes"].empty()) << same["resume_notes"];
  const json other = JsonOf(kSmallest, "--steps 2 --resume run --clip-norm 1 --per-micro-batch");
  EXPECT_THAT(other["resume_notes"].get<std::vector<std::string>>(),
              ElementsAre("--clip-norm is 1, the checkpoint was made with the default",
                          "--micro-batches is the default, the checkpoint was made with 2",
                          "--per-micro-batch is true, the checkpoint was made with the default"));
}

TEST_F(TrainCommand, CheckpointsThatDoNotFitAreRefused) {
  const json first = Trained("--mesh 2 --steps 3 --save run --every 1 --keep 2");
  EXPECT_FALSE(fs::exists(Path("run/step_00000001")));
  EXPECT_TRUE(fs::exists(Path("run/step_00000002")));
  const auto refusal = [&](const std::string& flags) {
    const Outcome outcome = Run(fmt::format("{} --mesh 2 {}", kSmall, flags));
    EXPECT_EQ(outcome.exit_code, 1);
    return outcome.err;
  };
  EXPECT_THAT(refusal("--steps 5 --save run"),
              HasSubstr("run/step_00000003 is the checkpoint of another run"));
  EXPECT_THAT(refusal("--steps 3 --resume run"),
              HasSubstr("run/step_00000003 has 3 steps behind it, so that none of 3 is left"));
  EXPECT_THAT(refusal("--steps 9 --resume run --seed 2"),
              HasSubstr("run/step_00000003 was trained with seed 1, not 2"));
  EXPECT_THAT(refusal("--steps 9 --resume nowhere"),
              HasSubstr("nowhere is no checkpoint (manifest.json is not there) and holds none"));
  // Before this machine is profiled for the costs that are the default.
  const Outcome other = Run("train gpt-tiny --layers 2 --steps 9 --resume run --data text.txt",
                            "XDG_CACHE_HOME=" + Path("empty_cache"));
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_FALSE(fs::exists(Path("empty_cache")));
  EXPECT_THAT(other.err, HasSubstr("run/step_00000003 is a checkpoint of gpt-tiny"));
  const std::string file = Path("run/step_00000003/state_00000.safetensors");
  fs::resize_file(file, fs::file_size(file) - 1);
  EXPECT_THAT(refusal("--steps 9 --resume run"), HasSubstr("state_00000.safetensors has"));
  const json older = Trained("--mesh 2 --steps 4 --resume run/step_00000002");
  EXPECT_EQ(older["losses"][0], first["losses"][2]);
}

}  // namespace
}  // namespace minka
