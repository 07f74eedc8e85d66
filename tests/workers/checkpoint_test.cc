// Checkpoints that workers write and read: what one plan saved, any other takes up, and what goes
// wrong leaves the checkpoint before.
#include "minka/driver/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <thread>

#include "absl/cleanup/cleanup.h"
#include "minka/base/check.h"
#include "minka/base/file.h"
#include "minka/base/status.h"
#include "minka/driver/parallelize.h"
#include "minka/frontend/nn.h"
#include "minka/frontend/trace.h"
#include "minka/models/mlp.h"
#include "minka/runtime/worker/worker_pipeline_executor.h"
#include "tests/support/temporary_folder.h"

namespace minka {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

const TracedStep& Traced() {
  static const TracedStep traced =
      Trace(Mlp({.batch = 32, .hidden = 32, .num_layers = 6}), AdamW({})).value();
  return traced;
}

ParallelMethod Stages(const std::vector<const char*>& meshes) {
  Pipeline pipeline{.num_micro_batches = 4};
  pipeline.options.num_stages = static_cast<int>(meshes.size());
  for (const char* mesh : meshes) pipeline.options.meshes.push_back(*Mesh::Parse(mesh));
  return pipeline;
}

// Four layers whose weights are one parameter.
Model StackModel() {
  const Shape shape{ElementType::kF32, {32, 32}};
  return {.name = "stack",
          .inputs = {{"x", shape}, {"y", shape}},
          .forward = [](const Scope& scope, std::span<const Tensor> inputs) {
            const Tensor weights = scope.Parameter(
                "layers", {4, 32, 32}, {.initializer = {Initializer::Kind::kNormal, 0.1}});
            Tensor x = inputs[0];
            for (int64_t i = 0; i < 4; ++i) {
              x = (scope / fmt::format("layer_{}", i)).Block(x, [&](const Scope&, Tensor in) {
                const Tensor row = Slice(weights, {i, 0, 0}, {i + 1, 32, 32});
                return Tanh(MatMul(in, Reshape(row, {32, 32})));
              });
            }
            return ModelOutput{.loss = MeanSquaredError(x, inputs[1])};
          }};
}

Parallelized Start(const ParallelMethod& method, int num_devices, bool is_on_workers = true,
                   const TracedStep& traced = Traced()) {
  ParallelizeOptions options;
  if (is_on_workers) options.workers = WorkerOptions{.binary = MINKA_BINARY};
  auto run = Parallelize(traced, Cluster::Local(num_devices), method, options);
  MINKA_CHECK(run.ok(), "{}", Message(run.status()));
  return *std::move(run);
}

Workers& WorkersOf(const Parallelized& run) {
  return dynamic_cast<WorkersSession&>(run.session()).workers();
}

std::vector<std::string> Contents(const State& state) {
  std::vector<std::string> contents;
  for (const DistributedArray& array : state.arrays) {
    contents.push_back(array.empty() ? "" : *array.ToHost().value().bytes);
  }
  return contents;
}

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest() { fs::remove_all(folder_); }  // of an earlier repetition

  absl::StatusOr<std::string> Save(Parallelized& run, const State& state, int keep = 9) const {
    return SaveCheckpoint({.folder = folder_, .keep = keep}, {.model = "mlp"}, run.runner(), state);
  }

  absl::StatusOr<State> Restore(Parallelized& run) const {
    ASSIGN_OR_RETURN(CheckpointReader checkpoint, CheckpointReader::Open(folder_));
    RETURN_IF_ERROR(CheckFits(checkpoint, run.step()));
    return RestoreCheckpoint(checkpoint, run.runner());
  }

  // Of what is no left-over.
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      const std::string name = entry.path().filename();
      if (!name.starts_with('.')) names.push_back(name);
    }
    std::ranges::sort(names);
    return names;
  }

  const std::string folder_ =
      TemporaryPath(testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(CheckpointTest, EveryPlanTakesUpWhatEveryOtherSaved) {
  std::map<std::string, Parallelized> runs;
  runs.emplace("one device", Start(DataParallel{}, 1, /*is_on_workers=*/false));
  runs.emplace("one mesh", Start(Shard{.mesh = "x=2,y=2"}, 4));
  runs.emplace("split state", Start(Zero3{}, 4));
  runs.emplace("two stages", Start(Stages({"x=2", "x=2"}), 4));
  runs.emplace("three stages", Start(Stages({"x=1", "x=2", "x=1"}), 4));
  for (auto& [from, saving] : runs) {
    fs::remove_all(folder_);
    const State state = saving.Initialize(/*seed=*/7).value();
    const auto path = Save(saving, state);
    ASSERT_TRUE(path.ok()) << Message(path.status());
    const std::vector<std::string> contents = Contents(state);
    for (auto& [to, restoring] : runs) {
      const auto restored = Restore(restoring);
      ASSERT_TRUE(restored.ok()) << Message(restored.status());
      EXPECT_EQ(Contents(*restored), contents) << from << " to " << to;
      EXPECT_EQ(restored->seed, 7u);
    }
  }
}

// One tensor by the values of its array, or of its rows one behind the other.
std::map<std::string, std::string> ContentsByName(const Parallelized& run, const State& state) {
  std::map<std::string, std::string> contents;
  const std::vector<std::string> arrays = Contents(state);
  for (size_t i = 0; i < run.given().parameters.size(); ++i) {
    std::string& of_parameter = contents[run.given().parameters[i].name];
    for (const int row : run.rows().parameters[i]) of_parameter += arrays[row];
  }
  return contents;
}

TEST_F(CheckpointTest, RowsOfAStackGoToTheWholeAndBack) {
  const TracedStep traced = Trace(StackModel(), AdamW({})).value();
  std::map<std::string, Parallelized> runs;
  runs.emplace("whole", Start(Shard{.mesh = "x=2"}, 2, /*is_on_workers=*/false, traced));
  runs.emplace("two stages", Start(Stages({"x=1", "x=2"}), 3, /*is_on_workers=*/true, traced));
  runs.emplace("four stages", Start(Stages({"x=1", "x=1", "x=1", "x=1"}), 4,
                                    /*is_on_workers=*/true, traced));
  EXPECT_EQ(runs.at("whole").step().parameters.size(), traced.step.parameters.size());
  // The weights and the two averages of AdamW have a row for each layer.
  EXPECT_EQ(runs.at("two stages").step().parameters.size(), traced.step.parameters.size() + 9);
  const Shape shape{ElementType::kF32, {32, 32}};
  const Batch batch = {FilledLiteral(shape, 0.5), FilledLiteral(shape, 1)};
  for (auto& [from, saving] : runs) {
    fs::remove_all(folder_);
    const State state = saving.Initialize(/*seed=*/7).value();
    const auto contents = ContentsByName(saving, state);
    EXPECT_EQ(contents, ContentsByName(runs.at("whole"), runs.at("whole").Initialize(7).value()));
    const auto path = Save(saving, state);
    ASSERT_TRUE(path.ok()) << Message(path.status());
    for (auto& [to, restoring] : runs) {
      absl::StatusOr<State> restored = Restore(restoring);
      ASSERT_TRUE(restored.ok()) << Message(restored.status());
      EXPECT_EQ(ContentsByName(restoring, *restored), contents) << from << " to " << to;
      const auto after = restoring(*std::move(restored), batch);
      ASSERT_TRUE(after.ok()) << Message(after.status());
      EXPECT_GT(after->Loss().value(), 0);
    }
  }
}

TEST_F(CheckpointTest, EachWorkerWritesWhatItHoldsAndEveryByteIsWrittenOnce) {
  Parallelized run = Start(Stages({"x=2", "x=2"}), 4);
  const State state = run.Initialize(1).value();
  ASSERT_TRUE(Save(run, state).ok());
  const CheckpointReader checkpoint = CheckpointReader::Open(folder_).value();
  int64_t num_bytes = 0;
  for (const CheckpointTensor& tensor : checkpoint.manifest().tensors) {
    num_bytes += tensor.shape.num_bytes();
  }
  ASSERT_EQ(checkpoint.manifest().files.size(), 2u);
  int64_t stored = 0;
  for (const CheckpointFile& file : checkpoint.manifest().files) {
    const auto tensors = ReadTensors(checkpoint.path() + "/" + file.name);
    ASSERT_TRUE(tensors.ok()) << Message(tensors.status());
    EXPECT_GT(tensors->tensors.size(), 4u);
    for (const auto& [name, tensor] : tensors->tensors) stored += tensor.shape.num_bytes();
  }
  EXPECT_EQ(stored, num_bytes);
}

TEST_F(CheckpointTest, ARunGoesOnFromWhatItSaved) {
  Parallelized run = Start(Stages({"x=2", "x=2"}), 4);
  State state = run.Initialize(1).value();
  const Shape shape{ElementType::kF32, {32, 32}};
  const Batch batch = {FilledLiteral(shape, 0.5), FilledLiteral(shape, 1)};
  const auto step = [&](State from) { return std::move(run(std::move(from), batch)->state); };
  state = step(std::move(state));
  ASSERT_TRUE(Save(run, state).ok());
  const std::vector<std::string> wanted = Contents(step(std::move(state)));
  absl::StatusOr<State> restored = Restore(run);
  ASSERT_TRUE(restored.ok()) << Message(restored.status());
  EXPECT_EQ(restored->num_steps, 1);
  EXPECT_EQ(Contents(step(*std::move(restored))), wanted);
}

TEST_F(CheckpointTest, AFullDiskLeavesTheCheckpointBeforeAndTheRunGoesOn) {
  fs::create_directories(folder_);
  if (::mount("tmpfs", folder_.c_str(), "tmpfs", 0, "size=160k") != 0) {
    GTEST_SKIP() << "mounting a small file system: " << std::strerror(errno);
  }
  const absl::Cleanup unmount = [&] { ::umount2(folder_.c_str(), MNT_DETACH); };
  Parallelized run = Start(Stages({"x=1", "x=1"}), 2);
  State state = run.Initialize(1).value();
  const auto first = Save(run, state);
  ASSERT_TRUE(first.ok()) << Message(first.status());
  state.num_steps = 1;
  EXPECT_THAT(Message(Save(run, state).status()),
              AllOf(StartsWith("worker "), HasSubstr(": cannot write " + folder_),
                    HasSubstr("No space left on device")));
  EXPECT_EQ(CheckpointReader::Open(folder_)->path(), *first);
  ASSERT_EQ(::mount("tmpfs", folder_.c_str(), "tmpfs", MS_REMOUNT, "size=1m"), 0);
  EXPECT_TRUE(Save(run, state).ok());
  EXPECT_EQ(Contents(Restore(run).value()), Contents(state));
}

TEST_F(CheckpointTest, DamageIsNamedAndTheRunGoesOn) {
  Parallelized run = Start(Stages({"x=1", "x=1"}), 2);
  const State state = run.Initialize(1).value();
  const std::string path = Save(run, state).value();
  const std::string file = path + "/state_00001.safetensors";
  std::string contents = ReadFile(file).value();
  contents.back() ^= 1;
  ASSERT_TRUE(WriteFile(file, contents).ok());
  EXPECT_THAT(Message(Restore(run).status()),
              AllOf(StartsWith("worker 1: " + file + " is damaged: its '"),
                    HasSubstr("is not what the manifest has the hash of")));
  contents.back() ^= 1;
  ASSERT_TRUE(WriteFile(file, contents).ok());
  EXPECT_EQ(Contents(Restore(run).value()), Contents(state));
}

TEST_F(CheckpointTest, AWorkerKilledWhileItWritesLeavesTheCheckpointBefore) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    fs::remove_all(folder_);
    std::mt19937_64 random(seed);
    std::vector<std::string> wanted;
    {
      Parallelized run = Start(Stages({"x=1", "x=1"}), 2);
      State state = run.Initialize(seed).value();
      ASSERT_TRUE(Save(run, state).ok());
      wanted = Contents(state);
      const pid_t pid = WorkersOf(run).pid(static_cast<int>(random() % 2));
      std::thread kills([&] {
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 100'000));
        kill(pid, SIGKILL);
      });
      absl::Status status;
      while (status.ok()) {
        ++state.num_steps;
        status = Save(run, state, /*keep=*/1).status();
      }
      kills.join();
      EXPECT_THAT(Message(status), HasSubstr("died of SIGKILL (Killed)"));
      fmt::print("after {} saves: {}\n", state.num_steps, Message(status));
      EXPECT_EQ(Names().size(), 1u) << testing::PrintToString(Names());
    }
    Parallelized one_device = Start(DataParallel{}, 1, /*is_on_workers=*/false);
    const auto restored = Restore(one_device);
    ASSERT_TRUE(restored.ok()) << Message(restored.status());
    EXPECT_EQ(Contents(*restored), wanted);
  }
}

}  // namespace
}  // namespace minka
