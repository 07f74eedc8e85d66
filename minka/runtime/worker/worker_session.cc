#include "minka/runtime/worker/worker_session.h"

#include <algorithm>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/runtime/worker/wire.h"

namespace minka {
namespace {

// Channels of different programs are told apart by their low bits: what is sent first is received
// first, also where the bits are those of an earlier program.
constexpr uint64_t kProgramMask = 0xffff;

// Channels over the transport between workers.
class WorkerChannels : public MeshChannels {
 public:
  WorkerChannels(Transport& transport, uint64_t program, const std::map<int, int>& peers)
      : transport_(transport), program_(program), peers_(peers) {}

  absl::Status Send(int channel, std::span<const char> bytes,
                    std::shared_ptr<const void> owner) override {
    return transport_.Send(peers_.at(channel), TagOf(channel), bytes, std::move(owner));
  }

  absl::Status Expect(int channel, std::span<char> destination) override {
    ASSIGN_OR_RETURN(expected_[channel].pending.emplace_back(),
                     transport_.Receive(peers_.at(channel), TagOf(channel), destination));
    return absl::OkStatus();
  }

  absl::Status Wait(int channel) override {
    Expected& expected = expected_[channel];
    return expected.pending[expected.num_waited_for++]->Wait();
  }

 private:
  struct Expected {
    std::vector<std::unique_ptr<PendingReceive>> pending;
    size_t num_waited_for = 0;
  };

  uint64_t TagOf(int channel) const {
    return (program_ & kProgramMask) << kChannelBits | static_cast<uint64_t>(channel);
  }

  Transport& transport_;
  const uint64_t program_;
  const std::map<int, int>& peers_;
  std::map<int, Expected> expected_;  // by channel
};

void NoteFailure(const absl::Status& status, worker::Failed& failed) {
  failed.set_code(static_cast<int>(status.code()));
  failed.set_message(Message(status));
}

ArenaRegion RegionFromProto(const worker::Region& region) {
  return {.number = region.number(), .offset = region.offset(), .size = region.size()};
}

bool Has(const std::vector<SlotUse>& uses, int slot, bool SlotUse::* use) {
  return slot >= 0 && static_cast<size_t>(slot) < uses.size() && uses[slot].*use;
}

}  // namespace

WorkerSession::WorkerSession(std::string interface, ProgressPage& progress,
                             const SharedArenas* arenas, Write write,
                             std::function<void()> on_run_end)
    : interface_(std::move(interface)),
      progress_(progress),
      arenas_(arenas),
      write_(std::move(write)),
      on_run_end_(std::move(on_run_end)) {}

void WorkerSession::Cancel() {
  const std::lock_guard lock(cancel_mutex_);
  is_cancelled_ = true;
  if (transport_ != nullptr) transport_->Cancel();
}

absl::Status WorkerSession::Handle(const worker::Request& request) {
  if (!devices_ && request.kind_case() != worker::Request::kOpen) {
    return FailedPrecondition("a session begins with opening the devices");
  }
  switch (request.kind_case()) {
    case worker::Request::kOpen:
      progress_.Note(WorkerActivity::kOpening);
      return Open(request.open());
    case worker::Request::kConnect:
      progress_.Note(WorkerActivity::kConnecting);
      return Connect(request.connect());
    case worker::Request::kLoad:
      // What a compiler tries out would be timed beside them.
      RETURN_IF_ERROR(FinishSteps());
      progress_.Note(WorkerActivity::kLoading, request.load().program());
      return Load(request.load());
    case worker::Request::kUnload:
      programs_.erase(request.unload().program());
      return absl::OkStatus();
    case worker::Request::kPut:
      progress_.Note(WorkerActivity::kPutting);
      return Put(request.put());
    case worker::Request::kStep:
      return Step(request.step());
    case worker::Request::kGet:
      RETURN_IF_ERROR(FinishSteps());
      progress_.Note(WorkerActivity::kFetching);
      return Get(request.get());
    case worker::Request::kStore:
      RETURN_IF_ERROR(FinishSteps());
      progress_.Note(WorkerActivity::kStoring);
      return Store(request.store());
    case worker::Request::kRestore:
      RETURN_IF_ERROR(FinishSteps());
      progress_.Note(WorkerActivity::kRestoring);
      return Restore(request.restore());
    case worker::Request::kFree:
      for (const uint64_t array : request.free().arrays()) arrays_.erase(array);
      return absl::OkStatus();
    case worker::Request::kMeasure:
      RETURN_IF_ERROR(FinishSteps());
      return Measure(request.measure());
    case worker::Request::kOptimized:
      RETURN_IF_ERROR(FinishSteps());
      return SendOptimized(request.optimized());
    case worker::Request::KIND_NOT_SET:
      break;
  }
  return InvalidArgument("a request that this version does not know");
}

absl::Status WorkerSession::FinishOldestStep() {
  const UnfinishedStep step = std::move(unfinished_.front());
  unfinished_.pop_front();
  RETURN_IF_ERROR(WithContext(Await(step.runs), fmt::format("step {}", step.number)));
  return Send(step.reply);
}

absl::Status WorkerSession::FinishSteps() {
  while (!unfinished_.empty()) RETURN_IF_ERROR(FinishOldestStep());
  return absl::OkStatus();
}

absl::Status WorkerSession::AnswerFinishedSteps() {
  const auto is_done = [](const UnfinishedRun& run) { return run.done.IsReady(); };
  while (!unfinished_.empty() && std::ranges::all_of(unfinished_.front().runs, is_done)) {
    RETURN_IF_ERROR(FinishOldestStep());
  }
  return absl::OkStatus();
}

absl::Status WorkerSession::Send(const worker::Reply& reply) {
  if (write_(reply)) return absl::OkStatus();
  return Unavailable("the driver is gone");
}

absl::Status WorkerSession::SendParts(const std::string& bytes) {
  for (size_t begin = 0; begin == 0 || begin < bytes.size(); begin += kPieceBytes) {
    worker::Reply reply;
    worker::Part& part = *reply.mutable_part();
    part.set_bytes(bytes.substr(begin, kPieceBytes));
    part.set_is_last(begin + kPieceBytes >= bytes.size());
    RETURN_IF_ERROR(Send(reply));
  }
  return absl::OkStatus();
}

absl::Status WorkerSession::Open(const worker::Open& open) {
  if (devices_) return FailedPrecondition("the devices are open already");
  open_ = open;
  const std::optional<Platform> platform = PlatformNamed(open.platform());
  if (!platform) return InvalidArgument("there is no platform \"{}\"", open.platform());
  ASSIGN_OR_RETURN(devices_, OpenLocalDevices({.num_devices = open.num_devices(),
                                               .plugin_path = open.plugin(),
                                               .kind = *platform,
                                               .first_device = open.first_device()}));
  ASSIGN_OR_RETURN(auto transport, UcxTransport::Create({.peer = open.peer(),
                                                         .num_peers = open.num_peers(),
                                                         .job_nonce = open.job(),
                                                         .interface = interface_}));
  const std::string address = transport->address();
  {
    const std::lock_guard lock(cancel_mutex_);
    if (is_cancelled_) transport->Cancel();
    transport_ = std::move(transport);
  }
  worker::Reply reply;
  reply.mutable_opened()->set_address(address);
  reply.mutable_opened()->set_version(devices_->version());
  return Send(reply);
}

absl::Status WorkerSession::Connect(const worker::Connect& connect) {
  RETURN_IF_ERROR(transport_->Connect({connect.addresses().begin(), connect.addresses().end()}));
  is_connected_ = true;
  return absl::OkStatus();
}

absl::Status WorkerSession::Load(const worker::Load& load) {
  if (programs_.contains(load.program())) {
    return InvalidArgument("program {} is loaded already", load.program());
  }
  ASSIGN_OR_RETURN(ReceivedProgram received, MeshProgramFromProto(load.mesh_program(), open_));
  ASSIGN_OR_RETURN(MeshPlayer player,
                   MeshPlayer::Create(devices_->client, received.program, /*first_device=*/0));
  worker::Reply reply;
  for (const pjrt::MemoryStatistics& memory : player.memory()) {
    worker::Memory& out = *reply.mutable_loaded()->add_programs();
    out.set_argument_bytes(memory.argument_bytes);
    out.set_output_bytes(memory.output_bytes);
    out.set_alias_bytes(memory.alias_bytes);
    out.set_temp_bytes(memory.temp_bytes);
    out.set_generated_code_bytes(memory.generated_code_bytes);
  }
  programs_.emplace(load.program(),
                    LoadedProgram{.received = std::move(received), .player = std::move(player)});
  return Send(reply);
}

absl::StatusOr<WorkerSession::LoadedProgram*> WorkerSession::FindProgram(uint64_t number) {
  const auto found = programs_.find(number);
  if (found == programs_.end()) return NotFound("program {} is not loaded", number);
  return &found->second;
}

absl::StatusOr<std::shared_ptr<MeshArray>> WorkerSession::FindArray(uint64_t number) {
  const auto found = arrays_.find(number);
  if (found == arrays_.end()) return NotFound("there is no array {}", number);
  return found->second;
}

absl::StatusOr<const pjrt::Buffer*> WorkerSession::FindPart(uint64_t number, int device) {
  ASSIGN_OR_RETURN(const std::shared_ptr<MeshArray> array, FindArray(number));
  if (device >= 0 && static_cast<size_t>(device) < array->parts.size()) {
    return &array->parts[device];
  }
  return InvalidArgument("array {} has no part on device {}", number, device);
}

absl::StatusOr<ArrayLayout> WorkerSession::LayoutOfArgument(uint64_t number, int slot) {
  ASSIGN_OR_RETURN(const LoadedProgram* const program, FindProgram(number));
  if (Has(program->received.uses, slot, &SlotUse::is_given)) return program->player.LayoutOf(slot);
  return InvalidArgument("program {} takes no argument in slot {}", number, slot);
}

absl::Status WorkerSession::Put(const worker::Put& put) {
  ASSIGN_OR_RETURN(const ArrayLayout layout, LayoutOfArgument(put.program(), put.slot()));
  pjrt::LentContents piece{.bytes = put.bytes()};
  if (put.has_region()) {
    ASSIGN_OR_RETURN(const SharedArenas* const arenas, Arenas());
    RegisterOnce(arenas->put, is_put_arena_registered_);
    ASSIGN_OR_RETURN(piece, arenas->put.Lend(RegionFromProto(put.region())));
  }
  const auto size = static_cast<size_t>(layout.shape.num_bytes());
  const size_t num_bytes = pieces_.size() + piece.bytes.size();
  if (num_bytes > size || (put.is_last() && num_bytes < size)) {
    return InvalidArgument("{} bytes come for slot {}, which is {}", num_bytes, put.slot(),
                           ToString(layout.shape));
  }
  const bool is_one_piece = pieces_.empty() && put.is_last();
  if (!is_one_piece) {
    if (pieces_.empty()) pieces_.reserve(size);
    pieces_.append(piece.bytes.data(), piece.bytes.size());
    if (!put.is_last()) return absl::OkStatus();
    const auto whole = std::make_shared<const std::string>(std::exchange(pieces_, {}));
    piece = {.bytes = *whole, .owner = whole};
  }
  ASSIGN_OR_RETURN(MeshArray array,
                   PutArray(devices_->client, layout, {layout.shape, std::move(piece)}));
  arrays_[put.array()] = std::make_shared<MeshArray>(std::move(array));
  return absl::OkStatus();
}

void WorkerSession::RegisterOnce(const SharedArena& arena, bool& is_registered) {
  if (std::exchange(is_registered, true)) return;
  // Without it arrays arrive all the same, by another copy.
  devices_->client.RegisterHostMemory(arena.bytes()).IgnoreError();
}

absl::StatusOr<const SharedArenas*> WorkerSession::Arenas() const {
  if (arenas_ == nullptr) return InvalidArgument("no memory is shared with this worker");
  return arenas_;
}

absl::Status WorkerSession::Step(const worker::Step& step) {
  ASSIGN_OR_RETURN(LoadedProgram* const program, FindProgram(step.program()));
  MeshPlayer& player = program->player;
  const std::vector<SlotUse>& uses = program->received.uses;
  if (!program->received.peers.empty() && !is_connected_) {
    return FailedPrecondition("the workers are not connected with each other");
  }
  std::vector<SlotArray> arguments;
  std::set<int> filled;
  for (const worker::SlotArray& argument : step.arguments()) {
    filled.insert(argument.slot());
    if (!Has(uses, argument.slot(), &SlotUse::is_given)) {
      return InvalidArgument("program {} takes no argument in slot {}", step.program(),
                             argument.slot());
    }
    ASSIGN_OR_RETURN(std::shared_ptr<MeshArray> array, FindArray(argument.array()));
    arguments.push_back({argument.slot(), std::move(array)});
  }
  for (size_t slot = 0; slot < uses.size(); ++slot) {
    if (!uses[slot].is_needed || filled.contains(static_cast<int>(slot))) continue;
    return InvalidArgument("program {} lacks an argument in slot {}", step.program(), slot);
  }
  progress_.NoteStep(step.program(), step.step());
  player.Begin(arguments, step.is_traced());
  arguments.clear();
  WorkerChannels channels(*transport_, step.program(), program->received.peers);
  for (size_t i = 0; i < player.program().instructions.size(); ++i) {
    progress_.NoteInstruction(static_cast<int>(i));
    absl::Status status = player.Execute(i, channels);
    if (!status.ok()) {
      return WithContext(status, fmt::format("step {}, instruction {} ({})", step.step(), i,
                                             InstructionName(player.program(), i)));
    }
  }
  for (const worker::SlotArray& result : step.results()) {
    if (!Has(uses, result.slot(), &SlotUse::is_left)) {
      return InvalidArgument("program {} leaves nothing in slot {}", step.program(), result.slot());
    }
    ASSIGN_OR_RETURN(arrays_[result.array()], player.Result(result.slot()));
  }
  player.End();
  worker::Reply reply;
  worker::Stepped& stepped = *reply.mutable_stepped();
  if (step.is_traced()) {
    for (const InstructionTime& time : player.trace()) {
      worker::Interval& interval = *stepped.add_intervals();
      interval.set_instruction(time.instruction);
      interval.set_begin_us(time.begin_us);
      interval.set_end_us(time.end_us);
    }
  }
  unfinished_.push_back(
      {.number = step.step(), .runs = player.TakeUnfinished(), .reply = std::move(reply)});
  for (const UnfinishedRun& run : unfinished_.back().runs) {
    RETURN_IF_ERROR(run.done.OnReady([end = on_run_end_](const absl::Status&) { end(); }));
  }
  return AnswerFinishedSteps();
}

absl::Status WorkerSession::Get(const worker::Get& get) {
  for (int i = 0; i < get.devices_size(); ++i) {
    ASSIGN_OR_RETURN(const pjrt::Buffer* const part, FindPart(get.array(), get.devices(i)));
    if (i < get.regions_size() && get.regions(i).size() > 0) {
      ASSIGN_OR_RETURN(const SharedArenas* const arenas, Arenas());
      ASSIGN_OR_RETURN(const std::span<char> destination,
                       arenas->fetched.Destination(RegionFromProto(get.regions(i))));
      RegisterOnce(arenas->fetched, is_fetched_arena_registered_);
      RETURN_IF_ERROR(part->ReadInto(destination));
      worker::Reply reply;
      reply.mutable_part()->set_is_in_region(true);
      reply.mutable_part()->set_is_last(true);
      RETURN_IF_ERROR(Send(reply));
      continue;
    }
    ASSIGN_OR_RETURN(const std::string bytes, part->ToHost());
    RETURN_IF_ERROR(SendParts(bytes));
  }
  return absl::OkStatus();
}

absl::Status WorkerSession::Store(const worker::Store& store) {
  worker::Reply reply;
  worker::Stored& out = *reply.mutable_stored();
  const absl::StatusOr<StoredFile> stored = WriteParts(store);
  if (stored.ok()) {
    out.set_num_bytes(stored->num_bytes);
    out.mutable_hashes()->Assign(stored->hashes.begin(), stored->hashes.end());
  } else {
    NoteFailure(stored.status(), *out.mutable_failed());
  }
  return Send(reply);
}

absl::StatusOr<StoredFile> WorkerSession::WriteParts(const worker::Store& store) {
  std::vector<NamedPart> parts;
  for (const worker::StorePart& part : store.parts()) {
    ASSIGN_OR_RETURN(const pjrt::Buffer* const buffer, FindPart(part.array(), part.device()));
    parts.push_back({part.name(), buffer});
  }
  return StoreParts(store.path(), parts);
}

absl::Status WorkerSession::Restore(const worker::Restore& restore) {
  worker::Reply reply;
  const absl::Status status = ReadArrays(restore);
  worker::Restored& out = *reply.mutable_restored();
  if (!status.ok()) NoteFailure(status, *out.mutable_failed());
  return Send(reply);
}

absl::Status WorkerSession::ReadArrays(const worker::Restore& restore) {
  ASSIGN_OR_RETURN(CheckpointReader checkpoint, CheckpointReader::Open(restore.path()));
  if (checkpoint.hash() != restore.hash()) {
    return FailedPrecondition(
        "{} is another checkpoint here than the driver sees; its folder must be one that the "
        "driver "
        "and all workers share",
        restore.path());
  }
  for (const worker::RestoreArray& array : restore.arrays()) {
    ASSIGN_OR_RETURN(const ArrayLayout layout, LayoutOfArgument(array.program(), array.slot()));
    ASSIGN_OR_RETURN(MeshArray restored,
                     RestoreArray(devices_->client, layout, checkpoint, array.name()));
    arrays_[array.array()] = std::make_shared<MeshArray>(std::move(restored));
  }
  return absl::OkStatus();
}

absl::Status WorkerSession::SendOptimized(const worker::Optimized& optimized) {
  ASSIGN_OR_RETURN(const LoadedProgram* const program, FindProgram(optimized.program()));
  const std::vector<pjrt::Executable>& executables = program->player.executables();
  if (optimized.number() < 0 || static_cast<size_t>(optimized.number()) >= executables.size()) {
    return InvalidArgument("program {} has {} modules, not one of number {}", optimized.program(),
                           executables.size(), optimized.number());
  }
  ASSIGN_OR_RETURN(const std::string module, executables[optimized.number()].OptimizedModule());
  return SendParts(module);
}

absl::Status WorkerSession::Measure(const worker::Measure& measure) {
  worker::Reply reply;
  const pjrt::Client& client = devices_->client;
  reply.mutable_measured()->set_peak_bytes(client.LargestPeakBytes(client.num_devices()));
  reply.mutable_measured()->set_num_arrays(static_cast<int64_t>(arrays_.size()));
  if (measure.reset()) devices_->client.ResetPeak();
  return Send(reply);
}

}  // namespace minka
