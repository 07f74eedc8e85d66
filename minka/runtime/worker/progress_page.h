// What a worker is at, in memory that it shares with a driver on the same machine: so the driver
// can still say it when the worker has died.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "minka/base/file_descriptor.h"
#include "minka/runtime/worker/shared_memory.h"

namespace minka {

enum class WorkerActivity : uint32_t {
  kStarting,    // until it listens
  kWaiting,     // for requests
  kOpening,     // the plugin and its devices
  kConnecting,  // to other workers
  kLoading,     // compiles a program
  kPutting,     // takes arrays from the driver
  kStepping,
  kFetching,   // gives arrays to the driver
  kStoring,    // writes arrays to a file
  kRestoring,  // reads arrays from files
};

struct WorkerProgress {
  WorkerActivity activity = WorkerActivity::kStarting;
  uint64_t program = 0;  // kLoading, kStepping
  uint64_t step = 0;     // kStepping, as the instruction
  int instruction = 0;
  bool operator==(const WorkerProgress&) const = default;
};

// "at step 12, instruction 7 of program 3", "while it loaded program 3", "while it waited".
std::string ToString(const WorkerProgress& progress);

// One end of the shared memory. Notes are relaxed stores of a few ns; those of one thread are seen
// in any order while it runs, all of them once its process has ended. Thread-safe.
class ProgressPage {
 public:
  static absl::StatusOr<ProgressPage> Create();
  // In a worker: the page that its driver has handed down, or one that nobody else sees where there
  // is none. To be called once: it takes the file over.
  static absl::StatusOr<ProgressPage> OfThisWorker();
  // Takes the file over; InvalidArgument where it is no page of this version.
  static absl::StatusOr<ProgressPage> Map(FileDescriptor file);

  ProgressPage() = default;  // none: to be assigned to

  // To be handed down; closed by exec otherwise.
  int file() const { return memory_.file(); }

  void Note(WorkerActivity activity, uint64_t program = 0);
  // kStepping, at instruction 0.
  void NoteStep(uint64_t program, uint64_t step);
  void NoteInstruction(int instruction);
  WorkerProgress Read() const;

 private:
  struct Shared;

  static absl::StatusOr<ProgressPage> Check(SharedMemory memory);

  SharedMemory memory_;
  Shared* shared_ = nullptr;
};

// The environment variable that names the page's file to a worker.
inline constexpr const char* kProgressPageVariable = "MINKA_WORKER_PROGRESS";

}  // namespace minka
