// A mesh's program on its way to the worker that runs it.
#pragma once

#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/program/pipeline_program.h"
#include "minka/runtime/worker/worker.pb.h"

namespace minka {

// By channel that instructions of the mesh name: the mesh at its other end.
std::map<int, int> PeersOf(const PipelineProgram& program, int mesh);

// Signatures are left out: the slots that a program runs on say the same.
worker::MeshProgram MeshProgramToProto(const MeshProgram& program, const std::map<int, int>& peers);

// What a step may do with a slot.
struct SlotUse {
  bool is_given = false;   // a step may fill it: no instruction does
  bool is_needed = false;  // a step must fill it: an instruction reads it
  bool is_left = false;    // holds a whole array after a step, if it was given before where it may
};

struct ReceivedProgram {
  MeshProgram program;
  std::map<int, int> peers;   // by channel
  std::vector<SlotUse> uses;  // by slot
};

// Any message is safe, and what is accepted can be run: modules are verified and have the mesh's
// replicas, every number names something, programs take and give what their slots hold on a device
// (each the same in all its runs), a slot is full when it is read and empty when it is filled, and
// every channel is used once: for both directions where it leads back to the worker. An argument
// whose memory a result takes is gone, unless the result is put into the same slot. `open` is what
// the session began with. InvalidArgument names program, slot or instruction.
absl::StatusOr<ReceivedProgram> MeshProgramFromProto(const worker::MeshProgram& proto,
                                                     const worker::Open& open);

}  // namespace minka
