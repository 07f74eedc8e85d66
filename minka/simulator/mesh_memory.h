// What a mesh of a pipeline holds while it runs its instructions.
#pragma once

#include <cstdint>
#include <span>

#include "minka/program/pipeline_program.h"

namespace minka {

// The most bytes that a device of the mesh holds at once: the parts of all arrays that are alive,
// and what the running program takes besides, by program of the mesh.
int64_t PeakMemory(const PipelineProgram& program, const MeshProgram& mesh,
                   std::span<const int64_t> temporary_bytes);

}  // namespace minka
