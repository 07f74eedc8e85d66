#include "minka/driver/train.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/file.h"
#include "minka/base/status.h"
#include "tests/support/temporary_folder.h"

namespace minka {
namespace {

std::string TextFile() {
  const std::string path = TemporaryPath("text.txt");
  std::string text;
  while (text.size() < 20000) text += "the quick brown fox jumps over the lazy dog. ";
  EXPECT_TRUE(WriteFile(path, text).ok());
  return path;
}

TrainOptions SmallTraining() {
  TrainOptions options;
  options.model_options = {.global_batch = 8, .sequence = 32, .num_layers = 1};
  options.data.path = TextFile();
  options.length.num_steps = 12;
  options.request.meshes = {*Mesh::Parse("2x4")};
  return options;
}

TEST(Train, LearnsUnderTheMemoryLimitAndSaysWhatItDid) {
  TrainOptions options = SmallTraining();
  options.memory_limit_of_data = 0.6;
  options.check_steps = 1;
  options.sample_bytes = 3;
  options.plan_path = TemporaryPath("train_plan.json");
  int64_t last_step = 0;
  size_t num_candidates = 0;
  TrainEvents events;
  events.on_plan = [&](const PlanResult& considered, const Plan& plan) {
    num_candidates = considered.candidates.size();
    EXPECT_EQ(considered.candidates[0].method, Method::kData);
    EXPECT_FALSE(considered.candidates[0].fits);
    EXPECT_EQ(plan.method, "shard");
  };
  events.on_progress = [&](const TrainProgress& progress) { last_step = progress.step; };
  const auto report = Train(options, events);
  ASSERT_TRUE(report.ok()) << Message(report.status());
  EXPECT_EQ(num_candidates, 2u);
  EXPECT_EQ(last_step, 12);
  EXPECT_LT(report->losses.back(), report->losses.front());
  EXPECT_TRUE(report->check->ok());
  EXPECT_EQ(report->sample.size(), 3u);
  EXPECT_LT(*report->held_out_loss, std::log(256.0));
  EXPECT_LE(report->plan.peak_memory_bytes, *report->memory_limit_bytes);
  EXPECT_LE(report->measured_peak_memory_bytes, report->plan.peak_memory_bytes);
  EXPECT_TRUE(ReadFile(options.plan_path).ok());
}

TEST(Train, ImageNetworksLearnFromDigits) {
  for (const std::string model : {"wresnet-tiny", "unet-tiny"}) {
    TrainOptions options;
    options.model = model;
    options.model_options = {.global_batch = 16};
    options.length.num_steps = 12;
    options.num_devices = 2;
    options.request.meshes = {*Mesh::Parse("2")};
    options.request.search.gap = 0.01;
    const auto report = Train(options, {});
    ASSERT_TRUE(report.ok()) << Message(report.status());
    EXPECT_EQ(report->data_source, "the digits of scikit-learn");
    EXPECT_LT(report->losses.back(), report->losses.front()) << model;
    EXPECT_EQ(report->held_out_accuracy.has_value(), model == "wresnet-tiny");
    EXPECT_TRUE(std::isfinite(*report->held_out_loss));
  }
}

TEST(Train, AFolderThatCannotBeWrittenIsNoticedBeforePlanning) {
  TrainOptions options = SmallTraining();
  options.checkpoints.save_dir = options.data.path + "/run";
  std::vector<std::string> phases;
  const TrainEvents events{.on_phase = [&](std::string_view phase) { phases.emplace_back(phase); }};
  EXPECT_EQ(Message(Train(options, events).status()),
            "cannot make the folder " + options.checkpoints.save_dir + ": Not a directory");
  EXPECT_THAT(phases, testing::ElementsAre("data"));
}

TEST(Train, NeedsALength) {
  TrainOptions options = SmallTraining();
  options.length = {};
  EXPECT_EQ(Message(Train(options, {}).status()), "training needs a number of steps or of minutes");
}

}  // namespace
}  // namespace minka
