// Where pipelines run: on devices of this process, or on workers.
#pragma once

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "minka/program/pipeline_program.h"
#include "minka/runtime/pipeline/local_pipeline_executor.h"
#include "minka/runtime/pipeline/pipeline_executor.h"
#include "minka/runtime/pjrt/client.h"

namespace minka {

// Arrays of one of its executors may be arguments of another.
class Session {
 public:
  virtual ~Session() = default;
  // Compiles every program, each for its mesh.
  virtual absl::StatusOr<std::unique_ptr<PipelineExecutor>> Load(PipelineProgram program) = 0;

 protected:
  Session() = default;
  Session(const Session&) = default;
  Session& operator=(const Session&) = default;
};

class LocalSession : public Session {
 public:
  explicit LocalSession(pjrt::Client client) : client_(std::move(client)) {}

  absl::StatusOr<std::unique_ptr<PipelineExecutor>> Load(PipelineProgram program) override {
    return LocalPipelineExecutor::Create(client_, std::move(program));
  }

 private:
  pjrt::Client client_;
};

}  // namespace minka
