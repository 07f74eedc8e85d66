// What runs a pipeline's step, in this process or in workers.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/program/pipeline_program.h"
#include "minka/runtime/mesh/step_executor.h"
#include "minka/runtime/pipeline/mesh_player.h"
#include "minka/runtime/pjrt/executable.h"

namespace minka {

// An array of a parameter that several meshes read lies on all of them.
class PipelineExecutor : public StepExecutor {
 public:
  ArrayLayout ParameterLayout(int parameter) const override;
  ArrayLayout ResultLayout(int result) const override;
  int NumPlaces(int parameter) const override {
    return static_cast<int>(program_.parameters[parameter].size());
  }
  int num_results() const override { return static_cast<int>(program_.results.size()); }

  const PipelineProgram& program() const { return program_; }
  // What each program takes on a device, by mesh and program.
  virtual std::vector<std::vector<pjrt::MemoryStatistics>> memory() const = 0;
  // What the compiler made of a mesh's program, as HloModuleProto.
  virtual absl::StatusOr<std::string> OptimizedModule(int mesh, int program) = 0;

  // Whether steps launched from now on are traced, which takes some microseconds of each.
  void set_is_tracing(bool is_tracing) { is_tracing_ = is_tracing; }
  // By mesh, of the last traced step that was waited for; by one clock for all.
  const std::vector<std::vector<InstructionTime>>& trace() const { return trace_; }

 protected:
  explicit PipelineExecutor(PipelineProgram program);
  // Meshes take the devices one behind the other.
  int first_device(int mesh) const { return first_devices_[mesh]; }
  ArrayLayout LayoutOf(const MeshSlot& at) const;

  bool is_tracing_ = false;
  std::vector<std::vector<InstructionTime>> trace_;

 private:
  PipelineProgram program_;
  std::vector<int> first_devices_;  // by mesh
};

}  // namespace minka
