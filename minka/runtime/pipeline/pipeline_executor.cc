#include "minka/runtime/pipeline/pipeline_executor.h"

#include <utility>

namespace minka {

PipelineExecutor::PipelineExecutor(PipelineProgram program) : program_(std::move(program)) {
  int first_device = 0;
  for (const MeshProgram& mesh : program_.meshes) {
    first_devices_.push_back(first_device);
    first_device += static_cast<int>(mesh.mesh.num_devices());
  }
}

ArrayLayout PipelineExecutor::LayoutOf(const MeshSlot& at) const {
  const ArraySlot& slot = program_.slot(at);
  return {slot.shape, slot.sharding, program_.meshes[at.mesh].mesh, first_devices_[at.mesh]};
}

ArrayLayout PipelineExecutor::ParameterLayout(int parameter) const {
  return LayoutOf(program_.parameters[parameter].front());
}

ArrayLayout PipelineExecutor::ResultLayout(int result) const {
  return LayoutOf(program_.results[result]);
}

}  // namespace minka
