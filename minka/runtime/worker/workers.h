// The driver's end: the workers of a job, and what is asked of them.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "minka/base/platform.h"
#include "minka/runtime/worker/progress_page.h"
#include "minka/runtime/worker/shared_arena.h"
#include "minka/runtime/worker/worker.pb.h"

namespace minka {

struct LocalWorkersOptions {
  std::vector<int> num_devices;        // by worker
  std::vector<std::vector<int>> cpus;  // by worker, those that it may run on; empty: all
  std::string binary;                  // of minka; empty: this program
  Platform platform = Platform::kCpu;
  std::string plugin;                                  // empty: searched
  std::string version;                                 // of minka
  size_t arena_bytes = SharedArena::kDefaultCapacity;  // shared with each worker, each way
};

struct RemoteWorker {
  std::string address;  // HOST:PORT
  int num_devices = 0;  // to be opened
};

struct RemoteWorkersOptions {
  std::vector<RemoteWorker> workers;
  Platform platform = Platform::kCpu;
  std::string token;
  std::string version;  // of minka
};

// What a worker says of itself, whether it has a driver or not. Errors as Workers::Connect.
absl::StatusOr<worker::AboutReply> AskAboutWorker(const std::string& address,
                                                  const std::string& token);

// What a worker answers to one request. Shared by who waits and who listens.
struct WorkerAnswer {
  int num_missing = 1;  // parts; other answers come in one reply
  // By part, the shared memory that it is written to; empty: it is in the replies.
  std::vector<pjrt::LentContents> regions;
  std::vector<worker::Reply> replies;
  std::chrono::steady_clock::time_point arrived;
  bool is_complete = false;
};

// Thread-safe. A worker that fails, dies or is silent for seconds ends the job: every wait returns
// what happened, and all workers are killed.
class Workers {
 public:
  // Starts them as children, which end with this process, and waits until their devices are open
  // and they know each other.
  static absl::StatusOr<std::shared_ptr<Workers>> StartLocal(const LocalWorkersOptions& options);
  // Takes workers that run already, one for each mesh. Unavailable for one that cannot be reached;
  // FailedPrecondition for a wrong token, another version or a worker that has a driver.
  static absl::StatusOr<std::shared_ptr<Workers>> Connect(const RemoteWorkersOptions& options);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  int size() const { return static_cast<int>(workers_.size()); }
  // Of their devices' platform, see LocalDevices::version.
  const std::string& version() const { return version_; }
  Platform platform() const { return platform_; }
  // For messages: "worker 0", "worker 1 at 10.0.0.2:7000".
  const std::string& name(int worker) const;
  // Does it run on this machine, as a child?
  bool IsChild(int worker) const;
  // Of the child, for tests.
  int pid(int worker) const;
  // For programs and arrays.
  uint64_t NewNumber() { return next_number_++; }

  // Requests wait until Flush or until there are many bytes of them; each worker gets its own in
  // order.
  void Tell(int worker, worker::Request request);
  // The same for an array's bytes, which are copied here, into memory that is shared with the
  // worker where they are many and it is a child. That may wait for earlier arrays to reach the
  // devices. `put`: all but the bytes.
  void Put(int worker, const worker::Put& put, std::span<const char> bytes);
  // As Tell, for what devices of the worker's mesh hold of an array, `part_bytes` each. Large parts
  // come from a child in memory that is shared with it, while there is room.
  std::shared_ptr<WorkerAnswer> Fetch(int worker, uint64_t array, std::span<const int64_t> devices,
                                      size_t part_bytes);
  // In the order of the devices. They lie in the shared memory unless it is half full: others want
  // to be fetched, however long these are kept.
  absl::StatusOr<std::vector<pjrt::LentContents>> WaitForParts(int worker, WorkerAnswer& answer);
  // As Tell, for a request that is answered.
  std::shared_ptr<WorkerAnswer> Ask(int worker, worker::Request request);
  void Flush();
  // Blocks; the replies in their order. Call Flush first.
  absl::StatusOr<std::vector<worker::Reply>> Wait(WorkerAnswer& answer);
  absl::Status status() const;
  // Ends the job: every wait returns Cancelled, children are killed.
  void Cancel() { Break(absl::CancelledError("the workers were stopped")); }

  // What to call a program's instructions in messages, by worker and number; until Forget. Called
  // by any thread.
  using InstructionNames = std::function<std::string(int worker, int instruction)>;
  void Describe(uint64_t program, InstructionNames names);
  void Forget(uint64_t program);

 private:
  struct Worker;

  explicit Workers(Platform platform);
  Worker& Add(std::string name, int num_devices);
  absl::Status Start(const LocalWorkersOptions& options, const std::string& token);
  absl::Status StartProcess(Worker& worker, const LocalWorkersOptions& options,
                            const std::string& token);
  absl::Status BeginSession(Worker& worker, const std::string& address, const std::string& token,
                            const std::string& version);
  absl::Status Open(const std::string& plugin);
  void Ask(Worker& worker, worker::Request request, std::shared_ptr<WorkerAnswer> answer);
  void FlushWorker(Worker& worker);
  // Of what is fetched.
  bool HasRoom(Worker& worker);
  // Nullopt: the job has failed.
  std::optional<ArenaRegion> WriteShared(Worker& worker, std::span<const char> bytes);
  void Listen(Worker& worker);
  void Take(Worker& worker, worker::Reply reply);
  // Until another one has failed.
  void AwaitFailure(std::chrono::milliseconds at_most);
  void Break(absl::Status why);
  // ", told to run stage 1 backward of micro-batch 3,"; empty: nothing of a program.
  std::string WhatItRan(int worker, const WorkerProgress& at) const;

  std::vector<std::unique_ptr<Worker>> workers_;
  std::string version_;
  const Platform platform_;
  std::atomic<uint64_t> next_number_ = 1;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  absl::Status failure_;  // guarded by mutex_, as what follows and all answers
  bool is_ending_ = false, is_breaking_ = false;
  std::map<uint64_t, InstructionNames> names_;  // by program
};

}  // namespace minka
