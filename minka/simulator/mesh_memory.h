// What a mesh of a pipeline holds while it runs its instructions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "minka/program/pipeline_program.h"

namespace minka {

// Bytes that a device holds while a program runs.
struct HeldMemory {
  int64_t given = 0;      // what the step was given, or has made of it in place: state, inputs
  int64_t made = 0;       // results of programs: saved activations, gradients
  int64_t received = 0;   // from other meshes
  int64_t temporary = 0;  // what the running program takes besides
  int64_t sum() const { return given + made + received + temporary; }
};

// One for each RunInstruction of the mesh, in their order; `temporary_bytes` by program of the
// mesh.
std::vector<HeldMemory> MemoryOfRuns(const PipelineProgram& program, const MeshProgram& mesh,
                                     std::span<const int64_t> temporary_bytes);

// The most bytes that a device of the mesh holds at once: the parts of all arrays that are alive,
// and what the running program takes besides, by program of the mesh.
int64_t PeakMemory(const PipelineProgram& program, const MeshProgram& mesh,
                   std::span<const int64_t> temporary_bytes);

}  // namespace minka
