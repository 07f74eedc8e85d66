// What a worker does for its driver: one session's requests, carried out in their order.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "minka/runtime/mesh/local_devices.h"
#include "minka/runtime/mesh/stored_array.h"
#include "minka/runtime/pipeline/mesh_player.h"
#include "minka/runtime/transport/ucx_transport.h"
#include "minka/runtime/worker/program_proto.h"
#include "minka/runtime/worker/progress_page.h"
#include "minka/runtime/worker/worker.pb.h"

namespace minka {

// Owns what the session made; all of it goes with it. Requests may come from anybody: what they
// name is checked.
class WorkerSession {
 public:
  // False: nobody reads any more.
  using Write = std::function<bool(const worker::Reply& reply)>;

  // `progress` outlives the session. `interface`: where arrays come in, see UcxTransportOptions.
  WorkerSession(std::string interface, ProgressPage& progress, Write write);

  // One at a time. After an error the session is of no use any more.
  absl::Status Handle(const worker::Request& request);
  // From any thread, at any time: no request waits for another worker any more.
  void Cancel();

 private:
  struct LoadedProgram {
    ReceivedProgram received;
    MeshPlayer player;
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

  absl::Status Send(const worker::Reply& reply);
  absl::Status SendParts(const std::string& bytes);
  absl::StatusOr<LoadedProgram*> FindProgram(uint64_t number);
  absl::StatusOr<std::shared_ptr<MeshArray>> FindArray(uint64_t number);
  absl::StatusOr<const pjrt::Buffer*> FindPart(uint64_t array, int device);
  // Where an argument of the program lies.
  absl::StatusOr<ArrayLayout> LayoutOfArgument(uint64_t program, int slot);

  const std::string interface_;
  ProgressPage& progress_;
  Write write_;
  worker::Open open_;
  std::optional<LocalDevices> devices_;
  std::map<uint64_t, LoadedProgram> programs_;
  std::map<uint64_t, std::shared_ptr<MeshArray>> arrays_;
  std::string pieces_;  // of the array that comes in now
  std::mutex cancel_mutex_;
  bool is_cancelled_ = false;                // guarded by cancel_mutex_
  std::unique_ptr<UcxTransport> transport_;  // set under cancel_mutex_
  bool is_connected_ = false;
};

}  // namespace minka
