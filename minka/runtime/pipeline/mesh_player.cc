#include "minka/runtime/pipeline/mesh_player.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <utility>

#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/ir/hlo_proto.h"
#include "minka/ir/verifier.h"

namespace minka {
namespace {

// How many arrays may be on their way to a mesh before it asks for them.
constexpr size_t kReceivesAhead = 2;

double SteadyMicroseconds() {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Literal NumberLiteral(int32_t number) {
  return {
      {ElementType::kS32, {}},
      std::make_shared<const std::string>(reinterpret_cast<const char*>(&number), sizeof(number))};
}

}  // namespace

absl::Status Await(std::span<const UnfinishedRun> runs) {
  absl::Status first;
  for (const UnfinishedRun& run : runs) {
    first.Update(WithContext(run.done.Await(), run.program));
  }
  return first;
}

MeshPlayer::MeshPlayer(pjrt::Client client, MeshProgram program, int first_device)
    : client_(std::move(client)), program_(std::move(program)), first_device_(first_device) {
  PrepareTransfers();
}

void MeshPlayer::PrepareTransfers() {
  std::map<std::pair<int, int>, int> numbers;  // by slot and tile list
  const auto number_of = [&](int slot, int tiles) {
    const auto [found, is_new] =
        numbers.try_emplace({slot, tiles}, static_cast<int>(tiles_.size()));
    if (is_new) tiles_.emplace_back(LayoutOf(slot), program_.tile_lists[tiles]);
    return found->second;
  };
  tiles_of_.resize(program_.instructions.size());
  sendings_.resize(program_.instructions.size(), TilePlayer::Sending::kInPlace);
  for (size_t i = 0; i < program_.instructions.size(); ++i) {
    const PipelineInstruction& instruction = program_.instructions[i];
    if (const auto* send = std::get_if<SendInstruction>(&instruction)) {
      tiles_of_[i] = number_of(send->slot, send->tiles);
      if (IsTakenAfter(i, send->slot)) sendings_[i] = TilePlayer::Sending::kCopied;
    } else if (const auto* receive = std::get_if<ReceiveInstruction>(&instruction)) {
      tiles_of_[i] = number_of(receive->slot, receive->tiles);
      receives_.push_back(i);
    }
  }
}

bool MeshPlayer::IsTakenAfter(size_t instruction, int slot) const {
  for (size_t i = instruction + 1; i < program_.instructions.size(); ++i) {
    if (const auto* run = std::get_if<RunInstruction>(&program_.instructions[i])) {
      for (const Alias& alias : program_.programs[run->program].module.aliases) {
        if (run->arguments[alias.parameter] == slot) return true;
      }
    } else if (const auto* free = std::get_if<FreeInstruction>(&program_.instructions[i])) {
      if (std::ranges::find(free->slots, slot) != free->slots.end()) return false;
    }
  }
  return false;
}

absl::StatusOr<MeshPlayer> MeshPlayer::Create(const pjrt::Client& client, MeshProgram program,
                                              int first_device) {
  MeshPlayer player(client, std::move(program), first_device);
  const auto num_devices = static_cast<int>(player.program_.mesh.num_devices());
  std::vector<int> devices;
  for (int device = 0; device < num_devices; ++device) devices.push_back(first_device + device);
  if (devices.back() >= client.num_devices()) {
    return InvalidArgument("the mesh {} has more devices than the {} at hand",
                           player.program_.mesh.ToString(), client.num_devices() - first_device);
  }
  for (const StageProgram& program_of_stage : player.program_.programs) {
    RETURN_IF_ERROR(WithContext(Verify(program_of_stage.module), program_of_stage.module.name));
    ASSIGN_OR_RETURN(pjrt::Executable executable,
                     pjrt::Executable::Compile(client, ExportHlo(program_of_stage.module),
                                               {.num_replicas = num_devices, .devices = devices}));
    player.executables_.push_back(std::move(executable));
  }
  for (size_t number = 0; number < player.program_.numbers.size(); ++number) {
    ASSIGN_OR_RETURN(MeshArray array,
                     PutArray(client, player.LayoutOf(player.program_.numbers[number]),
                              NumberLiteral(static_cast<int32_t>(number))));
    player.numbers_.push_back(std::make_shared<MeshArray>(std::move(array)));
  }
  return player;
}

void MeshPlayer::Begin(std::span<const SlotArray> arguments, bool is_traced) {
  End();
  unfinished_.clear();  // of a step that failed
  is_traced_ = is_traced;
  if (is_traced) trace_.clear();
  slots_.resize(program_.slots.size());
  for (size_t i = 0; i < numbers_.size(); ++i) slots_[program_.numbers[i]].array = numbers_[i];
  for (const SlotArray& argument : arguments) slots_[argument.slot].array = argument.array;
}

void MeshPlayer::End() {
  slots_.clear();
  incoming_.clear();
  num_expected_ = 0;
}

absl::Status MeshPlayer::ExpectAhead(size_t instruction, MeshChannels& channels) {
  while (num_expected_ < receives_.size() && incoming_.size() < kReceivesAhead) {
    const size_t at = receives_[num_expected_++];
    MINKA_CHECK(at >= instruction, "a receive is behind instruction {}", instruction);
    const int channel = std::get<ReceiveInstruction>(program_.instructions[at]).channel;
    ASSIGN_OR_RETURN(incoming_.emplace_back(),
                     tiles_[tiles_of_[at]].Expect(channel, *pool_, channels));
  }
  return absl::OkStatus();
}

absl::Status MeshPlayer::Execute(size_t instruction, MeshChannels& channels) {
  const double begin_us = is_traced_ ? SteadyMicroseconds() : 0;
  RETURN_IF_ERROR(ExpectAhead(instruction, channels));
  RETURN_IF_ERROR(Play(instruction, channels));
  if (is_traced_) {
    trace_.push_back({static_cast<int>(instruction), begin_us, SteadyMicroseconds()});
  }
  return absl::OkStatus();
}

absl::Status MeshPlayer::Play(size_t instruction, MeshChannels& channels) {
  const PipelineInstruction& what = program_.instructions[instruction];
  if (const auto* run = std::get_if<RunInstruction>(&what)) return RunProgram(*run);
  if (const auto* send = std::get_if<SendInstruction>(&what)) {
    ASSIGN_OR_RETURN(const MeshArray* const array, ArrayIn(send->slot));
    return tiles_[tiles_of_[instruction]].Send(*array, sendings_[instruction], send->channel,
                                               *pool_, channels);
  }
  if (const auto* receive = std::get_if<ReceiveInstruction>(&what)) {
    TilePlayer::Incoming incoming = std::move(incoming_.front());
    ASSIGN_OR_RETURN(MeshArray array,
                     tiles_[tiles_of_[instruction]].Receive(std::move(incoming), receive->channel,
                                                            client_, channels));
    incoming_.erase(incoming_.begin());
    slots_[receive->slot] = {.array = std::make_shared<MeshArray>(std::move(array)),
                             .is_made_here = true};
    return absl::OkStatus();
  }
  for (const int slot : std::get<FreeInstruction>(what).slots) slots_[slot] = {};
  return absl::OkStatus();
}

absl::StatusOr<MeshArray*> MeshPlayer::ArrayIn(int slot) {
  MeshArray* const array = slots_[slot].array.get();
  if (array != nullptr && array->parts.size() == static_cast<size_t>(program_.mesh.num_devices())) {
    return array;
  }
  return FailedPrecondition("{} has no array of the mesh {}", program_.slots[slot].name,
                            program_.mesh.ToString());
}

absl::Status MeshPlayer::RunProgram(const RunInstruction& run) {
  const pjrt::Executable& executable = executables_[run.program];
  const auto num_devices = static_cast<size_t>(program_.mesh.num_devices());
  std::vector<std::vector<pjrt::Buffer*>> buffers(num_devices);
  for (const int slot : run.arguments) {
    ASSIGN_OR_RETURN(MeshArray* const array, ArrayIn(slot));
    for (size_t device = 0; device < num_devices; ++device) {
      buffers[device].push_back(&array->parts[device]);
    }
  }
  ASSIGN_OR_RETURN(pjrt::Launch launch, executable.Execute(buffers));
  // A CPU client runs programs of several devices one after the other, and what is launched ahead
  // takes threads that their collectives wait for.
  if (client_.kind() == Platform::kCpu || is_traced_) {
    RETURN_IF_ERROR(WithContext(launch.Await(), executable.name()));
  } else {
    for (pjrt::Event& done : launch.completions) {
      unfinished_.push_back({executable.name(), std::move(done)});
    }
  }
  for (size_t i = 0; i < run.results.size(); ++i) {
    auto array = std::make_shared<MeshArray>();
    for (std::vector<pjrt::Buffer>& of_device : launch.results) {
      array->parts.push_back(std::move(of_device[i]));
    }
    slots_[run.results[i]] = {.array = std::move(array), .is_made_here = true};
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<MeshArray>> MeshPlayer::Result(int slot) {
  RETURN_IF_ERROR(ArrayIn(slot).status());
  ContentsOfSlot& contents = slots_[slot];
  if (!contents.is_made_here || !std::exchange(contents.is_taken, true)) return contents.array;
  const ArrayLayout layout = LayoutOf(slot);
  ASSIGN_OR_RETURN(const Literal value, GetArray(layout, *contents.array));
  ASSIGN_OR_RETURN(MeshArray copy, PutArray(client_, layout, value));
  return std::make_shared<MeshArray>(std::move(copy));
}

ArrayLayout MeshPlayer::LayoutOf(int slot) const {
  const ArraySlot& of_slot = program_.slots[slot];
  return {of_slot.shape, of_slot.sharding, program_.mesh, first_device_};
}

std::vector<pjrt::MemoryStatistics> MeshPlayer::memory() const {
  std::vector<pjrt::MemoryStatistics> memory;
  for (const pjrt::Executable& executable : executables_) memory.push_back(executable.memory());
  return memory;
}

}  // namespace minka
