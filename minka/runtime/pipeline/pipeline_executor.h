// Runs the instruction lists of a pipeline's meshes in this process, all on the devices of one
// client. One thread plays every mesh in turn: a plugin runs multi-device launches of one client
// one after the other anyhow.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/program/pipeline_program.h"
#include "minka/runtime/mesh/step_executor.h"
#include "minka/runtime/pjrt/client.h"
#include "minka/runtime/pjrt/executable.h"

namespace minka {

// An array of a parameter that several meshes read has the parts of all its places, one place
// behind the other.
class PipelineExecutor : public StepExecutor {
 public:
  // Compiles every program. Meshes take the client's devices one behind the other.
  static absl::StatusOr<PipelineExecutor> Create(const pjrt::Client& client,
                                                 PipelineProgram program);

  ArrayLayout ParameterLayout(int parameter) const override;
  ArrayLayout ResultLayout(int result) const override;
  int num_results() const override { return static_cast<int>(program_.results.size()); }

  absl::StatusOr<MeshArray> Put(int parameter, const Literal& value) const override;
  absl::StatusOr<std::vector<MeshArray>> Run(std::span<MeshArray* const> arguments) override;

  std::vector<const pjrt::Executable*> executables() const override;
  const PipelineProgram& program() const { return program_; }
  // What each program takes besides arguments and results, by mesh and program.
  std::vector<std::vector<int64_t>> temporary_bytes() const;
  void ResetMeasurements() override;
  int64_t measured_peak_bytes() const override;

 private:
  class StepRun;

  PipelineExecutor(pjrt::Client client, PipelineProgram program);
  ArrayLayout LayoutOf(const MeshSlot& at) const;

  pjrt::Client client_;
  PipelineProgram program_;
  std::vector<int> first_devices_;                          // by mesh
  std::vector<std::vector<pjrt::Executable>> executables_;  // by mesh and program
  std::vector<std::vector<MeshArray>> numbers_;             // by mesh, see MeshProgram::numbers
};

}  // namespace minka
