#include "minka/simulator/mesh_memory.h"

#include <algorithm>
#include <vector>

namespace minka {
namespace {

class Accountant {
 public:
  Accountant(const PipelineProgram& program, const MeshProgram& mesh) : mesh_(mesh) {
    const auto number = static_cast<int>(&mesh - program.meshes.data());
    held_.resize(mesh.slots.size());
    for (const int slot : mesh.numbers) Hold(slot);
    for (const std::vector<MeshSlot>& slots : program.parameters) {
      for (const MeshSlot& at : slots) {
        if (at.mesh == number) Hold(at.slot);
      }
    }
  }

  int64_t Run(std::span<const int64_t> temporary_bytes) {
    for (const PipelineInstruction& instruction : mesh_.instructions) {
      if (const auto* run = std::get_if<RunInstruction>(&instruction)) {
        // Results that take an argument's memory hold nothing new; the argument is gone then.
        const StageProgram& program = mesh_.programs[run->program];
        for (const Alias& alias : program.module.aliases) {
          Release(run->arguments[alias.parameter]);
        }
        for (const int slot : run->results) Hold(slot);
        peak_ = std::max(peak_, now_ + temporary_bytes[run->program]);
      } else if (const auto* receive = std::get_if<ReceiveInstruction>(&instruction)) {
        Hold(receive->slot);
      } else if (const auto* free = std::get_if<FreeInstruction>(&instruction)) {
        for (const int slot : free->slots) Release(slot);
      }
      peak_ = std::max(peak_, now_);
    }
    return peak_;
  }

 private:
  int64_t BytesOf(int slot) const {
    const ArraySlot& array = mesh_.slots[slot];
    return LocalShape(array.shape, array.sharding, mesh_.mesh).num_bytes();
  }
  void Hold(int slot) {
    if (!held_[slot]) now_ += BytesOf(slot);
    held_[slot] = true;
  }
  void Release(int slot) {
    if (held_[slot]) now_ -= BytesOf(slot);
    held_[slot] = false;
  }

  const MeshProgram& mesh_;
  std::vector<bool> held_;  // by slot
  int64_t now_ = 0, peak_ = 0;
};

}  // namespace

int64_t PeakMemory(const PipelineProgram& program, const MeshProgram& mesh,
                   std::span<const int64_t> temporary_bytes) {
  return Accountant(program, mesh).Run(temporary_bytes);
}

}  // namespace minka
