// Where pipelines, and single meshes, run: on devices of this process, or on workers.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "minka/base/platform.h"
#include "minka/program/pipeline_program.h"
#include "minka/runtime/mesh/local_devices.h"
#include "minka/runtime/pipeline/local_pipeline_executor.h"
#include "minka/runtime/pipeline/pipeline_executor.h"

namespace minka {

// Arrays of one of its executors may be arguments of another.
class Session {
 public:
  virtual ~Session() = default;
  // Compiles every program, each for its mesh.
  virtual absl::StatusOr<std::unique_ptr<PipelineExecutor>> Load(PipelineProgram program) = 0;
  // Of the devices' platform, see LocalDevices::version.
  virtual std::string version() const = 0;
  virtual Platform platform() const = 0;
  // From any thread: ends what its workers do, and them, so that whoever waits for them is told
  // "Cancelled" soon; it is of no use any more. What runs in this process goes on.
  virtual void Cancel() {}

 protected:
  Session() = default;
  Session(const Session&) = default;
  Session& operator=(const Session&) = default;
};

class LocalSession : public Session {
 public:
  explicit LocalSession(LocalDevices devices) : devices_(std::move(devices)) {}

  absl::StatusOr<std::unique_ptr<PipelineExecutor>> Load(PipelineProgram program) override {
    return LocalPipelineExecutor::Create(devices_.client, std::move(program));
  }
  std::string version() const override { return devices_.version(); }
  Platform platform() const override { return devices_.client.kind(); }

 private:
  LocalDevices devices_;
};

}  // namespace minka
