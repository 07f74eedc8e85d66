// Plays the instruction list of one mesh on its devices, in this process.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "minka/program/pipeline_program.h"
#include "minka/runtime/mesh/mesh_array.h"
#include "minka/runtime/pipeline/block_pool.h"
#include "minka/runtime/pipeline/mesh_channels.h"
#include "minka/runtime/pipeline/tile_transfer.h"
#include "minka/runtime/pjrt/client.h"
#include "minka/runtime/pjrt/executable.h"

namespace minka {

// When an instruction ran, by this machine's steady clock.
struct InstructionTime {
  int instruction = 0;
  double begin_us = 0, end_us = 0;
};

struct SlotArray {
  int slot = 0;
  std::shared_ptr<MeshArray> array;
};

// A run of a program that may go on.
struct UnfinishedRun {
  std::string program;
  pjrt::Event done;  // of one device
};

// The error of the first that failed; blocks until all are done.
absl::Status Await(std::span<const UnfinishedRun> runs);

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
  // Waits until the devices are done with it, but for runs on devices that queue programs (no
  // CPUs), in a step that is not traced: those may go on. FailedPrecondition: a slot that it reads
  // is empty. The same channels for all instructions of a step; after an error they go before this
  // or End.
  absl::Status Execute(size_t instruction, MeshChannels& channels);
  // What lies in the slot now. An argument that is handed through is the same array; of one that
  // the step made, every call but the first copies. FailedPrecondition: the slot is empty.
  absl::StatusOr<std::shared_ptr<MeshArray>> Result(int slot);
  // Empties all slots. What was sent may still be on its way, and runs may go on.
  void End();
  // The runs that Execute has not waited for since the last call.
  std::vector<UnfinishedRun> TakeUnfinished() { return std::exchange(unfinished_, {}); }

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
  void PrepareTransfers();
  // Does a launch take the slot's memory before it is freed or filled again?
  bool IsTakenAfter(size_t instruction, int slot) const;
  absl::StatusOr<MeshArray*> ArrayIn(int slot);
  absl::Status Play(size_t instruction, MeshChannels& channels);
  absl::Status RunProgram(const RunInstruction& run);
  // Receives that come among the next instructions are expected early, so that their bytes travel
  // meanwhile.
  absl::Status ExpectAhead(size_t instruction, MeshChannels& channels);

  pjrt::Client client_;
  MeshProgram program_;
  int first_device_ = 0;
  std::vector<pjrt::Executable> executables_;
  std::vector<std::shared_ptr<MeshArray>> numbers_;  // see MeshProgram::numbers
  std::shared_ptr<BlockPool> pool_ = BlockPool::Create();
  std::vector<TilePlayer> tiles_;               // one per tile list and layout that it is used with
  std::vector<int> tiles_of_;                   // by instruction: of sends and receives, in tiles_
  std::vector<TilePlayer::Sending> sendings_;   // by instruction
  std::vector<size_t> receives_;                // positions in the list
  std::vector<TilePlayer::Incoming> incoming_;  // those that were expected and not received yet
  size_t num_expected_ = 0;                     // of receives_, in this step
  std::vector<ContentsOfSlot> slots_;
  std::vector<UnfinishedRun> unfinished_;
  bool is_traced_ = false;
  std::vector<InstructionTime> trace_;
};

}  // namespace minka
