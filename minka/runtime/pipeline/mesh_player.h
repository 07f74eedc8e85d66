// Plays the instruction list of one mesh on its devices, in this process.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "minka/ir/literal.h"
#include "minka/program/pipeline_program.h"
#include "minka/runtime/mesh/mesh_array.h"
#include "minka/runtime/pjrt/client.h"
#include "minka/runtime/pjrt/executable.h"

namespace minka {

// The ways of a mesh's arrays to and from other meshes. They travel whole, through the host.
class MeshChannels {
 public:
  virtual ~MeshChannels() = default;
  // Goes on at once, whether or not it is received.
  virtual absl::Status Send(int channel, const Literal& value) = 0;
  // A Receive of the channel follows soon: memory for it may be taken.
  virtual absl::Status Expect(int channel, const Shape& shape) = 0;
  // Waits for it. Precondition: it was expected.
  virtual absl::StatusOr<Literal> Receive(int channel) = 0;

 protected:
  MeshChannels() = default;
  MeshChannels(const MeshChannels&) = default;
  MeshChannels& operator=(const MeshChannels&) = default;
};

// When an instruction ran, by this machine's steady clock.
struct InstructionTime {
  int instruction = 0;
  double begin_us = 0, end_us = 0;
};

struct SlotArray {
  int slot = 0;
  std::shared_ptr<MeshArray> array;
};

// A step is Begin, Execute of every instruction in its order, Result as often as wanted, End.
// Move-only; not thread-safe.
class MeshPlayer {
 public:
  // Compiles every program. Device i of the mesh is device first_device + i of the client.
  static absl::StatusOr<MeshPlayer> Create(const pjrt::Client& client, MeshProgram program,
                                           int first_device);

  // Puts the arrays into slots that no instruction fills; those that the list donates are consumed.
  // A traced step notes when its instructions run.
  void Begin(std::span<const SlotArray> arguments, bool is_traced);
  // Waits until the devices are done with it. FailedPrecondition: a slot that it reads is empty.
  absl::Status Execute(size_t instruction, MeshChannels& channels);
  // What lies in the slot now. An argument that is handed through is the same array; of one that
  // the step made, every call but the first copies. FailedPrecondition: the slot is empty.
  absl::StatusOr<std::shared_ptr<MeshArray>> Result(int slot);
  // Empties all slots.
  void End();

  // Of the step that is, or was, traced.
  const std::vector<InstructionTime>& trace() const { return trace_; }

  const MeshProgram& program() const { return program_; }
  ArrayLayout LayoutOf(int slot) const;
  const std::vector<pjrt::Executable>& executables() const { return executables_; }
  // By program.
  std::vector<pjrt::MemoryStatistics> memory() const;

 private:
  struct ContentsOfSlot {
    std::shared_ptr<MeshArray> array;
    bool is_made_here = false, is_taken = false;
  };

  MeshPlayer(pjrt::Client client, MeshProgram program, int first_device);
  absl::StatusOr<MeshArray*> ArrayIn(int slot);
  absl::Status Play(const PipelineInstruction& instruction, MeshChannels& channels);
  absl::Status RunProgram(const RunInstruction& run);
  // Receives that come among the next instructions are expected early, so that their bytes travel
  // meanwhile.
  absl::Status ExpectAhead(size_t instruction, MeshChannels& channels);

  pjrt::Client client_;
  MeshProgram program_;
  int first_device_ = 0;
  std::vector<pjrt::Executable> executables_;
  std::vector<std::shared_ptr<MeshArray>> numbers_;  // see MeshProgram::numbers
  std::vector<size_t> receives_;                     // positions in the list
  size_t num_expected_ = 0;                          // of those, in this step
  size_t num_received_ = 0;
  std::vector<ContentsOfSlot> slots_;
  bool is_traced_ = false;
  std::vector<InstructionTime> trace_;
};

}  // namespace minka
