// What a worker does for its driver: one session's requests, carried out in their order.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "minka/runtime/mesh/local_devices.h"
#include "minka/runtime/mesh/stored_array.h"
#include "minka/runtime/pipeline/mesh_player.h"
#include "minka/runtime/transport/ucx_transport.h"
#include "minka/runtime/worker/program_proto.h"
#include "minka/runtime/worker/progress_page.h"
#include "minka/runtime/worker/shared_arena.h"
#include "minka/runtime/worker/worker.pb.h"

namespace minka {

// Owns what the session made; all of it goes with it. Requests may come from anybody: what they
// name is checked.
class WorkerSession {
 public:
  // False: nobody reads any more.
  using Write = std::function<bool(const worker::Reply& reply)>;

  // `progress` and `arenas` (null: none) outlive the session. `interface`: where arrays of other
  // workers come in, see UcxTransportOptions. `on_run_end`: called by any thread, and perhaps after
  // the session's end, when a program is done that Handle did not wait for.
  WorkerSession(std::string interface, ProgressPage& progress, const SharedArenas* arenas,
                Write write, std::function<void()> on_run_end);

  // One at a time. After an error the session is of no use any more. A step may go on when this
  // returns; its answer then waits for AnswerFinishedSteps, or another request that is answered.
  absl::Status Handle(const worker::Request& request);
  // Answers the steps that are done, those before one that is not; errors as Handle.
  absl::Status AnswerFinishedSteps();
  bool HasUnfinishedSteps() const { return !unfinished_.empty(); }
  // From any thread, at any time: no request waits for another worker any more.
  void Cancel();

 private:
  struct LoadedProgram {
    ReceivedProgram received;
    MeshPlayer player;
  };

  // A step of which programs may still run, and its answer.
  struct UnfinishedStep {
    uint64_t number = 0;
    std::vector<UnfinishedRun> runs;
    worker::Reply reply;
  };

  absl::Status Open(const worker::Open& open);
  absl::Status Connect(const worker::Connect& connect);
  absl::Status Load(const worker::Load& load);
  absl::Status Put(const worker::Put& put);
  absl::Status Step(const worker::Step& step);
  absl::Status Get(const worker::Get& get);
  absl::Status Store(const worker::Store& store);
  absl::StatusOr<StoredFile> WriteParts(const worker::Store& store);
  absl::Status Restore(const worker::Restore& restore);
  absl::Status ReadArrays(const worker::Restore& restore);
  absl::Status Measure(const worker::Measure& measure);
  absl::Status SendOptimized(const worker::Optimized& optimized);

  // Waits for the steps that go on, and answers them.
  absl::Status FinishSteps();
  absl::Status FinishOldestStep();
  absl::Status Send(const worker::Reply& reply);
  absl::Status SendParts(const std::string& bytes);
  // InvalidArgument where nothing is shared.
  absl::StatusOr<const SharedArenas*> Arenas() const;
  // With the devices, once something goes through it: that takes some of the machine's memory.
  void RegisterOnce(const SharedArena& arena, bool& is_registered);
  absl::StatusOr<LoadedProgram*> FindProgram(uint64_t number);
  absl::StatusOr<std::shared_ptr<MeshArray>> FindArray(uint64_t number);
  absl::StatusOr<const pjrt::Buffer*> FindPart(uint64_t array, int device);
  // Where an argument of the program lies.
  absl::StatusOr<ArrayLayout> LayoutOfArgument(uint64_t program, int slot);

  const std::string interface_;
  ProgressPage& progress_;
  const SharedArenas* const arenas_;
  bool is_put_arena_registered_ = false, is_fetched_arena_registered_ = false;
  Write write_;
  const std::function<void()> on_run_end_;
  worker::Open open_;
  std::optional<LocalDevices> devices_;
  std::map<uint64_t, LoadedProgram> programs_;
  std::map<uint64_t, std::shared_ptr<MeshArray>> arrays_;
  std::string pieces_;                     // of the array that comes in now
  std::deque<UnfinishedStep> unfinished_;  // the oldest first
  std::mutex cancel_mutex_;
  bool is_cancelled_ = false;                // guarded by cancel_mutex_
  std::unique_ptr<UcxTransport> transport_;  // set under cancel_mutex_
  bool is_connected_ = false;
};

}  // namespace minka
