#include "minka/runtime/worker/workers.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <future>
#include <random>
#include <thread>
#include <utility>

#include "grpcpp/grpcpp.h"
#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/runtime/worker/progress_page.h"
#include "minka/runtime/worker/wire.h"
#include "minka/runtime/worker/worker.grpc.pb.h"
#include "minka/runtime/worker/worker_process.h"

namespace minka {
namespace {

using ClientStream = grpc::ClientReaderWriter<worker::Requests, worker::Reply>;

// More than this is sent without waiting for Flush.
constexpr size_t kBatchBytes = size_t{4} << 20;
// Arrays of fewer bytes are not worth a region of the shared memory.
constexpr size_t kLeastSharedBytes = size_t{64} << 10;
constexpr auto kArenaPoll = std::chrono::microseconds(100);
// A worker that has not answered for the sum of the two does not live, so that it is noticed within
// five seconds.
constexpr int kWorkerKeepaliveMs = 800, kWorkerTimeoutMs = 2200;
constexpr auto kTimeToConnect = std::chrono::seconds(5);
// How long after a connection broke the worker's death may be noticed, which says more.
constexpr auto kDeathNotice = std::chrono::milliseconds(500);

std::string RandomToken() {
  std::random_device device;
  std::string token;
  for (int i = 0; i < 8; ++i) token += fmt::format("{:08x}", device());
  return token;
}

// Null: it cannot be reached.
std::shared_ptr<grpc::Channel> ChannelTo(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kWorkerKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kWorkerTimeoutMs);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  std::shared_ptr<grpc::Channel> channel =
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  if (channel->WaitForConnected(std::chrono::system_clock::now() + kTimeToConnect)) return channel;
  return nullptr;
}

absl::Status CannotReach(const std::string& name, const std::string& address) {
  return Unavailable("{} cannot be reached; minka worker --listen {} on that machine starts one",
                     name, address);
}

worker::Region RegionToProto(const ArenaRegion& region) {
  worker::Region out;
  out.set_number(region.number);
  out.set_offset(region.offset);
  out.set_size(region.size);
  return out;
}

bool IsLastReply(const worker::Reply& reply) {
  return !reply.has_part() || reply.part().is_last() || reply.part().is_in_region();
}

}  // namespace

absl::StatusOr<worker::AboutReply> AskAboutWorker(const std::string& address,
                                                  const std::string& token) {
  const std::shared_ptr<grpc::Channel> channel = ChannelTo(address);
  if (channel == nullptr) return CannotReach("it", address);
  grpc::ClientContext context;
  context.AddMetadata(kTokenKey, token);
  context.set_deadline(std::chrono::system_clock::now() + kTimeToConnect);
  worker::AboutReply about;
  const grpc::Status status = worker::Worker::NewStub(channel)->About(&context, {}, &about);
  if (status.ok()) return about;
  return FailedPrecondition("{}", status.error_message());
}

struct Workers::Worker {
  int number = 0;
  std::string name;                        // for messages
  int num_devices = 0, first_device = 0;   // of its machine
  std::unique_ptr<WorkerProcess> process;  // set under Workers::mutex_; null: not a child
  std::unique_ptr<worker::Worker::Stub> stub;
  grpc::ClientContext context;
  std::unique_ptr<ClientStream> stream;
  std::thread listener;

  std::mutex put_mutex;    // the pieces of an array follow each other; before write_mutex
  std::mutex write_mutex;  // before Workers::mutex_
  worker::Requests batch;
  size_t batch_bytes = 0;

  std::deque<std::shared_ptr<WorkerAnswer>> awaited;  // guarded by Workers::mutex_
};

Workers::Workers(Platform platform) : platform_(platform) {}

absl::StatusOr<std::shared_ptr<Workers>> Workers::StartLocal(const LocalWorkersOptions& options) {
  std::shared_ptr<Workers> workers(new Workers(options.platform));
  const std::string token = RandomToken();
  int first_device = 0;
  for (const int num_devices : options.num_devices) {
    Worker& added = workers->Add(fmt::format("worker {}", workers->size()), num_devices);
    added.first_device = first_device;
    first_device += num_devices;
  }
  RETURN_IF_ERROR(workers->Start(options, token));
  for (const std::unique_ptr<Worker>& worker : workers->workers_) {
    RETURN_IF_ERROR(
        workers->BeginSession(*worker, worker->process->address(), token, options.version));
  }
  RETURN_IF_ERROR(workers->Open(options.plugin));
  return workers;
}

absl::StatusOr<std::shared_ptr<Workers>> Workers::Connect(const RemoteWorkersOptions& options) {
  std::shared_ptr<Workers> workers(new Workers(options.platform));
  for (const RemoteWorker& worker : options.workers) {
    workers->Add(fmt::format("worker {} at {}", workers->size(), worker.address),
                 worker.num_devices);
  }
  for (size_t i = 0; i < options.workers.size(); ++i) {
    RETURN_IF_ERROR(workers->BeginSession(*workers->workers_[i], options.workers[i].address,
                                          options.token, options.version));
  }
  RETURN_IF_ERROR(workers->Open(/*plugin=*/""));
  return workers;
}

Workers::Worker& Workers::Add(std::string name, int num_devices) {
  Worker& worker = *workers_.emplace_back(std::make_unique<Worker>());
  worker.number = size() - 1;
  worker.name = std::move(name);
  worker.num_devices = num_devices;
  return worker;
}

absl::Status Workers::Start(const LocalWorkersOptions& options, const std::string& token) {
  std::vector<std::future<absl::Status>> started;
  for (const std::unique_ptr<Worker>& worker : workers_) {
    started.push_back(
        std::async(std::launch::async, [&] { return StartProcess(*worker, options, token); }));
  }
  absl::Status all = absl::OkStatus();
  for (std::future<absl::Status>& one : started) all.Update(one.get());
  return all;
}

absl::Status Workers::StartProcess(Worker& worker, const LocalWorkersOptions& options,
                                   const std::string& token) {
  WorkerProcessOptions process{
      .executable = options.binary,
      .arguments = {"worker", "--child"},
      // Pipes of the driver's parent, which are not handed down.
      .environment = {{"MINKA_CHILD_PIPE", std::nullopt}, {"MINKA_CHILD_TERMINAL", std::nullopt}},
      .name = worker.name,
      .token = token,
      .arena_bytes = options.arena_bytes};
  if (static_cast<size_t>(worker.number) < options.cpus.size()) {
    process.cpus = options.cpus[worker.number];
  }
  process.on_death = [this, &worker](const WorkerDeath& death) {
    Break(Unavailable("{}{} {}", worker.name, WhatItRan(worker.number, death.progress),
                      ToString(death)));
  };
  ASSIGN_OR_RETURN(std::unique_ptr<WorkerProcess> started,
                   WorkerProcess::Start(std::move(process)));
  const std::lock_guard lock(mutex_);
  worker.process = std::move(started);
  return absl::OkStatus();
}

absl::Status Workers::BeginSession(Worker& worker, const std::string& address,
                                   const std::string& token, const std::string& version) {
  const std::shared_ptr<grpc::Channel> channel = ChannelTo(address);
  if (channel == nullptr) return CannotReach(worker.name, address);
  worker.stub = worker::Worker::NewStub(channel);
  worker.context.AddMetadata(kTokenKey, token);
  worker.context.AddMetadata(kVersionKey, version);
  worker.stream = worker.stub->Serve(&worker.context);
  worker.listener = std::thread([this, &worker] { Listen(worker); });
  return absl::OkStatus();
}

absl::Status Workers::Open(const std::string& plugin) {
  std::random_device device;
  const uint64_t job = uint64_t{device()} << 32 | device();
  std::vector<std::shared_ptr<WorkerAnswer>> answers;
  for (const std::unique_ptr<Worker>& worker : workers_) {
    worker::Request request;
    worker::Open& open = *request.mutable_open();
    open.set_num_devices(worker->num_devices);
    open.set_first_device(worker->first_device);
    open.set_plugin(plugin);
    open.set_peer(worker->number);
    open.set_num_peers(size());
    open.set_job(job);
    open.set_platform(std::string(PlatformName(platform_)));
    answers.push_back(Ask(worker->number, std::move(request)));
  }
  Flush();
  worker::Request connect;
  for (int i = 0; i < size(); ++i) {
    ASSIGN_OR_RETURN(const std::vector<worker::Reply> replies, Wait(*answers[i]));
    const worker::Opened& opened = replies.front().opened();
    connect.mutable_connect()->add_addresses(opened.address());
    if (i == 0) version_ = opened.version();
  }
  for (int i = 0; i < size(); ++i) Tell(i, connect);
  return absl::OkStatus();
}

Workers::~Workers() {
  {
    std::unique_lock lock(mutex_);
    is_ending_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return !is_breaking_; });
  }
  for (const std::unique_ptr<Worker>& worker : workers_) {
    if (worker->stream == nullptr) continue;
    const std::lock_guard lock(worker->write_mutex);
    worker->context.TryCancel();
  }
  for (const std::unique_ptr<Worker>& worker : workers_) {
    if (worker->listener.joinable()) worker->listener.join();
  }
  // Processes end, and report no more deaths, before what their reports use.
  for (const std::unique_ptr<Worker>& worker : workers_) worker->process.reset();
}

const std::string& Workers::name(int worker) const { return workers_[worker]->name; }

bool Workers::IsChild(int worker) const { return workers_[worker]->process != nullptr; }

int Workers::pid(int worker) const { return workers_[worker]->process->pid(); }

void Workers::Tell(int worker, worker::Request request) {
  Worker& to = *workers_[worker];
  const std::lock_guard lock(to.write_mutex);
  to.batch_bytes += request.ByteSizeLong();
  *to.batch.add_requests() = std::move(request);
  if (to.batch_bytes > kBatchBytes) FlushWorker(to);
}

void Workers::Put(int worker, const worker::Put& put, std::span<const char> bytes) {
  Worker& to = *workers_[worker];
  const SharedArena* const arena = to.process ? &to.process->arenas().put : nullptr;
  const bool is_shared = arena != nullptr && arena->capacity() >= kLeastSharedBytes &&
                         bytes.size() >= kLeastSharedBytes;
  size_t piece_bytes = kPieceBytes;
  // What takes most of the memory goes in pieces, of which one is read while the next is written.
  if (is_shared) {
    piece_bytes = bytes.size() <= arena->capacity() / 2 ? bytes.size() : arena->capacity() / 8;
  }
  const std::lock_guard lock(to.put_mutex);
  for (size_t begin = 0; begin == 0 || begin < bytes.size(); begin += piece_bytes) {
    const std::span<const char> piece =
        bytes.subspan(begin, std::min(piece_bytes, bytes.size() - begin));
    worker::Request request;
    worker::Put& out = *request.mutable_put();
    out = put;
    if (is_shared) {
      const std::optional<ArenaRegion> region = WriteShared(to, piece);
      if (!region) return;
      *out.mutable_region() = RegionToProto(*region);
    } else {
      out.set_bytes(piece.data(), piece.size());
    }
    out.set_is_last(begin + piece.size() == bytes.size());
    Tell(worker, std::move(request));
  }
}

std::optional<ArenaRegion> Workers::WriteShared(Worker& worker, std::span<const char> bytes) {
  SharedArena& arena = worker.process->arenas().put;
  const auto take = [&] {
    const std::lock_guard lock(worker.write_mutex);
    return arena.Take(bytes.size());
  };
  std::optional<ArenaRegion> region = take();
  while (!region) {
    // There will be, once the worker has come to what it was told before.
    Flush();
    if (!status().ok()) return std::nullopt;
    std::this_thread::sleep_for(kArenaPoll);
    region = take();
  }
  std::memcpy(arena.BytesOf(*region).data(), bytes.data(), bytes.size());
  return region;
}

std::shared_ptr<WorkerAnswer> Workers::Ask(int worker, worker::Request request) {
  auto answer = std::make_shared<WorkerAnswer>();
  Worker& to = *workers_[worker];
  const std::lock_guard lock(to.write_mutex);
  Ask(to, std::move(request), answer);
  return answer;
}

// Precondition: its write_mutex is held.
void Workers::Ask(Worker& worker, worker::Request request, std::shared_ptr<WorkerAnswer> answer) {
  {
    const std::lock_guard lock(mutex_);
    worker.awaited.push_back(std::move(answer));
  }
  worker.batch_bytes += request.ByteSizeLong();
  *worker.batch.add_requests() = std::move(request);
}

std::shared_ptr<WorkerAnswer> Workers::Fetch(int worker, uint64_t array,
                                             std::span<const int64_t> devices, size_t part_bytes) {
  Worker& from = *workers_[worker];
  auto answer = std::make_shared<WorkerAnswer>();
  answer->num_missing = static_cast<int>(devices.size());
  answer->regions.resize(devices.size());
  worker::Request request;
  worker::Get& get = *request.mutable_get();
  get.set_array(array);
  get.mutable_devices()->Assign(devices.begin(), devices.end());
  const std::lock_guard lock(from.write_mutex);
  const bool is_shared = from.process != nullptr && part_bytes >= kLeastSharedBytes;
  for (size_t i = 0; is_shared && i < devices.size(); ++i) {
    SharedArena& arena = from.process->arenas().fetched;
    const std::optional<ArenaRegion> region = arena.Take(part_bytes);
    if (!region) break;
    // Who waits for the answer, or else who listens for it, lets it go.
    answer->regions[i] = arena.Lend(*region).value();
    *get.add_regions() = RegionToProto(*region);
  }
  Ask(from, std::move(request), answer);
  return answer;
}

bool Workers::HasRoom(Worker& worker) {
  const std::lock_guard lock(worker.write_mutex);
  const SharedArena& arena = worker.process->arenas().fetched;
  return arena.BytesTaken() <= arena.capacity() / 2;
}

absl::StatusOr<std::vector<pjrt::LentContents>> Workers::WaitForParts(int worker,
                                                                      WorkerAnswer& answer) {
  ASSIGN_OR_RETURN(const std::vector<worker::Reply> replies, Wait(answer));
  std::vector<pjrt::LentContents> parts;
  std::string pieces;
  for (const worker::Reply& reply : replies) {
    if (reply.part().is_in_region()) {
      pjrt::LentContents part = std::move(answer.regions[parts.size()]);
      const bool is_copied = part.owner != nullptr && !HasRoom(*workers_[worker]);
      if (is_copied) part = pjrt::LendString({part.bytes.data(), part.bytes.size()});
      parts.push_back(std::move(part));
      continue;
    }
    pieces += reply.part().bytes();
    if (!reply.part().is_last()) continue;
    parts.push_back(pjrt::LendString(std::exchange(pieces, {})));
  }
  return parts;
}

void Workers::Flush() {
  for (const std::unique_ptr<Worker>& worker : workers_) {
    const std::lock_guard lock(worker->write_mutex);
    FlushWorker(*worker);
  }
}

// What cannot be written is noticed by who listens.
void Workers::FlushWorker(Worker& worker) {
  if (worker.batch.requests().empty()) return;
  worker.stream->Write(worker.batch);
  worker.batch.Clear();
  worker.batch_bytes = 0;
}

absl::StatusOr<std::vector<worker::Reply>> Workers::Wait(WorkerAnswer& answer) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return answer.is_complete || !failure_.ok(); });
  if (!answer.is_complete) return failure_;
  return std::move(answer.replies);
}

absl::Status Workers::status() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Workers::Describe(uint64_t program, InstructionNames names) {
  const std::lock_guard lock(mutex_);
  names_[program] = std::move(names);
}

void Workers::Forget(uint64_t program) {
  const std::lock_guard lock(mutex_);
  names_.erase(program);
}

void Workers::Listen(Worker& worker) {
  worker::Reply reply;
  while (worker.stream->Read(&reply)) {
    if (reply.has_failed()) {
      // That a peer is gone is another one's doing, which may be known in a moment.
      auto code = static_cast<absl::StatusCode>(reply.failed().code());
      if (code == absl::StatusCode::kOk) code = absl::StatusCode::kUnknown;
      if (code == absl::StatusCode::kUnavailable || code == absl::StatusCode::kCancelled) {
        AwaitFailure(2 * kDeathNotice);
      }
      Break(MakeError(code, fmt::format("{}: {}", worker.name, reply.failed().message())));
      continue;
    }
    Take(worker, std::move(reply));
  }
  const grpc::Status end = worker.stream->Finish();
  AwaitFailure(kDeathNotice);
  const bool is_refused = end.error_code() == grpc::StatusCode::UNAUTHENTICATED ||
                          end.error_code() == grpc::StatusCode::FAILED_PRECONDITION ||
                          end.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED;
  if (is_refused) return Break(FailedPrecondition("{}: {}", worker.name, end.error_message()));
  const WorkerProgress at = worker.process ? worker.process->progress() : WorkerProgress();
  const std::string where = worker.process ? " " + ToString(at) : "";
  Break(Unavailable("{}{} does not answer any more{} ({})", worker.name,
                    WhatItRan(worker.number, at), where, end.error_message()));
}

void Workers::AwaitFailure(std::chrono::milliseconds at_most) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, at_most, [&] { return is_ending_ || !failure_.ok(); });
}

void Workers::Take(Worker& worker, worker::Reply reply) {
  const std::lock_guard lock(mutex_);
  if (worker.awaited.empty()) return;
  WorkerAnswer& answer = *worker.awaited.front();
  if (IsLastReply(reply)) --answer.num_missing;
  answer.replies.push_back(std::move(reply));
  if (answer.num_missing > 0) return;
  answer.arrived = std::chrono::steady_clock::now();
  answer.is_complete = true;
  worker.awaited.pop_front();
  changed_.notify_all();
}

// What follows a failure, such as other workers that wait in vain, says nothing more.
void Workers::Break(absl::Status why) {
  std::vector<WorkerProcess*> processes;
  {
    const std::lock_guard lock(mutex_);
    if (is_ending_ || !failure_.ok()) return;
    failure_ = std::move(why);
    is_breaking_ = true;
    for (const std::unique_ptr<Worker>& worker : workers_) {
      if (worker->process != nullptr) processes.push_back(worker->process.get());
    }
    changed_.notify_all();
  }
  for (const std::unique_ptr<Worker>& worker : workers_) worker->context.TryCancel();
  for (WorkerProcess* process : processes) process->Kill();
  const std::lock_guard lock(mutex_);
  is_breaking_ = false;
  changed_.notify_all();
}

std::string Workers::WhatItRan(int worker, const WorkerProgress& at) const {
  if (at.activity != WorkerActivity::kStepping) return "";
  const std::lock_guard lock(mutex_);
  const auto found = names_.find(at.program);
  if (found == names_.end()) return "";
  return fmt::format(", told to {},", found->second(worker, at.instruction));
}

}  // namespace minka
