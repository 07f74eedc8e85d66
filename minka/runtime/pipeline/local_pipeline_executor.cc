#include "minka/runtime/pipeline/local_pipeline_executor.h"

#include <chrono>
#include <cstring>
#include <deque>
#include <span>
#include <string>
#include <utility>

#include "minka/base/check.h"
#include "minka/base/status.h"

namespace minka {
namespace {

// What was sent and is not received yet, by channel.
class Mailbox : public MeshChannels {
 public:
  explicit Mailbox(size_t num_channels) : channels_(num_channels) {}

  absl::Status Send(int channel, std::span<const char> bytes,
                    std::shared_ptr<const void> owner) override {
    channels_[channel].sent.push_back({bytes, std::move(owner)});
    return absl::OkStatus();
  }
  absl::Status Expect(int channel, std::span<char> destination) override {
    channels_[channel].expected.push_back(destination);
    return absl::OkStatus();
  }
  absl::Status Wait(int channel) override {
    std::deque<Message>& sent = channels_[channel].sent;
    std::deque<std::span<char>>& expected = channels_[channel].expected;
    std::memcpy(expected.front().data(), sent.front().bytes.data(), sent.front().bytes.size());
    sent.pop_front();
    expected.pop_front();
    return absl::OkStatus();
  }
  bool Has(int channel) const { return !channels_[channel].sent.empty(); }

 private:
  struct Message {
    std::span<const char> bytes;
    std::shared_ptr<const void> owner;
  };
  struct OnTheWay {
    std::deque<Message> sent;
    std::deque<std::span<char>> expected;
  };

  std::vector<OnTheWay> channels_;
};

}  // namespace

LocalPipelineExecutor::LocalPipelineExecutor(pjrt::Client client, PipelineProgram program)
    : PipelineExecutor(std::move(program)), client_(std::move(client)) {}

absl::StatusOr<std::unique_ptr<LocalPipelineExecutor>> LocalPipelineExecutor::Create(
    const pjrt::Client& client, PipelineProgram program) {
  std::unique_ptr<LocalPipelineExecutor> executor(
      new LocalPipelineExecutor(client, std::move(program)));
  const std::vector<MeshProgram>& meshes = executor->program().meshes;
  for (size_t mesh = 0; mesh < meshes.size(); ++mesh) {
    ASSIGN_OR_RETURN(
        MeshPlayer player,
        MeshPlayer::Create(client, meshes[mesh], executor->first_device(static_cast<int>(mesh))));
    executor->players_.push_back(std::move(player));
  }
  return executor;
}

absl::StatusOr<DistributedArray> LocalPipelineExecutor::Put(int parameter, const HostArray& value) {
  auto storage = std::make_shared<LocalStorage>();
  for (const MeshSlot& at : program().parameters[parameter]) {
    absl::StatusOr<MeshArray> array = PutArray(client_, LayoutOf(at), value);
    if (!array.ok()) return WithContext(array.status(), fmt::format("parameter {}", parameter));
    storage->places.push_back(std::make_shared<MeshArray>(*std::move(array)));
  }
  return DistributedArray(ParameterLayout(parameter), std::move(storage));
}

absl::StatusOr<std::vector<DistributedArray>> LocalPipelineExecutor::Restore(
    CheckpointReader& checkpoint, std::span<const TensorOfParameter> tensors) {
  std::vector<DistributedArray> arrays;
  for (const auto& [parameter, name] : tensors) {
    auto storage = std::make_shared<LocalStorage>();
    for (const MeshSlot& at : program().parameters[parameter]) {
      ASSIGN_OR_RETURN(MeshArray array, RestoreArray(client_, LayoutOf(at), checkpoint, name));
      storage->places.push_back(std::make_shared<MeshArray>(std::move(array)));
    }
    arrays.emplace_back(ParameterLayout(parameter), std::move(storage));
  }
  return arrays;
}

absl::StatusOr<std::vector<DistributedArray>> LocalPipelineExecutor::Run(
    std::span<DistributedArray* const> arguments) {
  const PipelineProgram& program = this->program();
  MINKA_CHECK(arguments.size() == program.parameters.size(), "{} arguments for {} parameters",
              arguments.size(), program.parameters.size());
  std::vector<std::vector<SlotArray>> by_mesh(players_.size());
  for (size_t parameter = 0; parameter < arguments.size(); ++parameter) {
    const std::vector<MeshSlot>& places = program.parameters[parameter];
    const LocalStorage& storage = LocalStorageOf(*arguments[parameter]);
    MINKA_CHECK(storage.places.size() == places.size(), "parameter {} lies on {} meshes, not {}",
                parameter, storage.places.size(), places.size());
    for (size_t i = 0; i < places.size(); ++i) {
      by_mesh[places[i].mesh].push_back({places[i].slot, storage.places[i]});
    }
  }
  const auto start = std::chrono::steady_clock::now();
  for (size_t mesh = 0; mesh < players_.size(); ++mesh) {
    players_[mesh].Begin(by_mesh[mesh], is_tracing_);
  }
  RETURN_IF_ERROR(PlayAll());
  for (MeshPlayer& player : players_) RETURN_IF_ERROR(Await(player.TakeUnfinished()));
  if (is_tracing_) {
    trace_.clear();
    for (const MeshPlayer& player : players_) trace_.push_back(player.trace());
  }
  const std::chrono::duration<double, std::micro> elapsed =
      std::chrono::steady_clock::now() - start;
  times_.us.push_back(elapsed.count());
  std::vector<DistributedArray> results;
  for (int i = 0; i < num_results(); ++i) {
    const MeshSlot& at = program.results[i];
    auto storage = std::make_shared<LocalStorage>();
    ASSIGN_OR_RETURN(storage->places.emplace_back(), players_[at.mesh].Result(at.slot));
    results.emplace_back(ResultLayout(i), std::move(storage));
  }
  for (MeshPlayer& player : players_) player.End();
  return results;
}

absl::Status LocalPipelineExecutor::PlayAll() {
  Mailbox mailbox(program().channels.size());
  std::vector<size_t> next(players_.size());  // instruction, by mesh
  bool has_moved = true;
  while (has_moved) {
    has_moved = false;
    for (size_t mesh = 0; mesh < players_.size(); ++mesh) {
      const std::vector<PipelineInstruction>& list = players_[mesh].program().instructions;
      for (; next[mesh] < list.size(); ++next[mesh]) {
        const auto* const receive = std::get_if<ReceiveInstruction>(&list[next[mesh]]);
        if (receive != nullptr && !mailbox.Has(receive->channel)) break;
        RETURN_IF_ERROR(players_[mesh].Execute(next[mesh], mailbox));
        has_moved = true;
      }
    }
  }
  for (size_t mesh = 0; mesh < players_.size(); ++mesh) {
    MINKA_CHECK(next[mesh] == players_[mesh].program().instructions.size(),
                "mesh {} waits at instruction {} for what nobody sends", mesh, next[mesh]);
  }
  return absl::OkStatus();
}

std::vector<const pjrt::Executable*> LocalPipelineExecutor::executables() const {
  std::vector<const pjrt::Executable*> all;
  for (const MeshPlayer& player : players_) {
    for (const pjrt::Executable& executable : player.executables()) all.push_back(&executable);
  }
  return all;
}

std::vector<std::vector<pjrt::MemoryStatistics>> LocalPipelineExecutor::memory() const {
  std::vector<std::vector<pjrt::MemoryStatistics>> by_mesh;
  for (const MeshPlayer& player : players_) by_mesh.push_back(player.memory());
  return by_mesh;
}

absl::StatusOr<std::string> LocalPipelineExecutor::OptimizedModule(int mesh, int program) {
  return players_[mesh].executables()[program].OptimizedModule();
}

absl::Status LocalPipelineExecutor::ResetMeasurements() {
  times_.us.clear();
  client_.ResetPeak();
  return absl::OkStatus();
}

absl::StatusOr<int64_t> LocalPipelineExecutor::MeasuredPeakBytes() {
  return client_.LargestPeakBytes(client_.num_devices());
}

}  // namespace minka
