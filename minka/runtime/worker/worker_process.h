// A worker on the driver's machine: a child process that is watched from its start to its end, and
// never outlives its driver.
//
// Its standard input brings the token in the first line and stays open until the worker shall end;
// its standard output says where it listens; both, as its standard error, are read to its end.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/base/file_descriptor.h"
#include "minka/runtime/worker/progress_page.h"
#include "minka/runtime/worker/shared_arena.h"

namespace minka {

struct WorkerDeath {
  std::optional<int> exit_code;  // nullopt: it died of a signal
  std::string signal;            // "SIGKILL (Killed)"
  WorkerProgress progress;       // where it ended
  std::string messages;          // the last 64 KiB that it wrote
};

// "died of SIGKILL (Killed) at step 12, instruction 7 of program 3; the last that it wrote: ..."
std::string ToString(const WorkerDeath& death);

struct WorkerProcessOptions {
  std::string executable;  // empty: this one
  std::vector<std::string> arguments;
  // Added to this process's, or left out of it: nullopt.
  std::map<std::string, std::optional<std::string>> environment;
  std::vector<int> cpus;                               // that it may run on; empty: as this process
  std::string name = "worker";                         // for messages: "worker 1 (mesh 1)"
  std::string token;                                   // one line, less than 4 KiB
  size_t arena_bytes = SharedArena::kDefaultCapacity;  // of each that is shared with it
  std::chrono::milliseconds start_timeout{30'000};
  bool forwards_messages = false;  // line by line to standard error, after the name
  // Called once, where the worker has ended and nobody here asked it to; by another thread, perhaps
  // before Start returns. It must not destroy the WorkerProcess.
  std::function<void(const WorkerDeath&)> on_death;
};

// Thread-safe but for destruction. Signals of the terminal do not reach the worker.
class WorkerProcess {
 public:
  // Returns when the worker listens. Unavailable, with the last that it wrote, where it ends before
  // or does not listen in time; InvalidArgument where it cannot be started as it is wanted.
  static absl::StatusOr<std::unique_ptr<WorkerProcess>> Start(WorkerProcessOptions options);
  // Asks the worker to end and kills it after a second.
  ~WorkerProcess();
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  const std::string& name() const { return options_.name; }
  pid_t pid() const { return pid_; }
  const std::string& address() const { return address_; }  // "HOST:PORT"
  WorkerProgress progress() const { return progress_.Read(); }
  // The driver's end of what it shares with the worker.
  SharedArenas& arenas() { return *arenas_; }

  // Returns at once, so that several can end together.
  void AskToEnd();
  // Returns when the worker is gone.
  void Kill();

 private:
  enum class State { kStarting, kListening, kEnded };
  // The read end of what the worker writes, and what of it is no whole line yet.
  struct Output {
    FileDescriptor file;
    std::string unread;  // guarded by mutex_
  };

  explicit WorkerProcess(WorkerProcessOptions options) : options_(std::move(options)) {}

  absl::Status AwaitStart();
  // The rest runs in thread_: the kernel kills the worker when the thread that started it ends.
  void Run();
  absl::Status Spawn();
  void Watch();
  void Drain(Output& output);
  bool Read(Output& output);  // false: there is no more now
  void TakeLine(const Output& output, std::string line);
  bool TakeAddress(const std::string& line);  // false: the line does not say it
  void Reap();
  std::string RecentMessages() const;  // mutex_ is held

  const WorkerProcessOptions options_;
  ProgressPage progress_;
  std::optional<SharedArenas> arenas_;  // always, once started
  FileDescriptor process_;              // a pidfd
  pid_t pid_ = 0;
  std::string address_;
  Output output_, messages_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_, as are pid_, process_ and address_ until Start returns:
  FileDescriptor input_;
  State state_ = State::kStarting;
  absl::Status spawned_;
  bool is_asked_to_end_ = false, is_killed_ = false;
  std::string recent_;  // whole lines
  std::optional<WorkerDeath> death_;

  std::thread thread_;
};

// In the worker.

// The first line of standard input; to be called before anything else reads it.
absl::StatusOr<std::string> ReadToken();
// Says on standard output where it listens, which Start waits for.
void AnnounceAddress(std::string_view address);
// Returns when the driver wants no more, or is gone.
void AwaitEndOfInput();

}  // namespace minka
