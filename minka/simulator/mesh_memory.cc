#include "minka/simulator/mesh_memory.h"

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

namespace minka {
namespace {

class Accountant {
 public:
  Accountant(const PipelineProgram& program, const MeshProgram& mesh,
             std::span<const int64_t> temporary_bytes)
      : mesh_(mesh), temporary_bytes_(temporary_bytes), held_as_(mesh.slots.size()) {
    const auto number = static_cast<int>(&mesh - program.meshes.data());
    for (const int slot : mesh.numbers) Hold(slot, &HeldMemory::given);
    for (const std::vector<MeshSlot>& slots : program.parameters) {
      for (const MeshSlot& at : slots) {
        if (at.mesh == number) Hold(at.slot, &HeldMemory::given);
      }
    }
  }

  void Run() {
    for (const PipelineInstruction& instruction : mesh_.instructions) {
      if (const auto* run = std::get_if<RunInstruction>(&instruction)) {
        RunProgram(*run);
      } else if (const auto* receive = std::get_if<ReceiveInstruction>(&instruction)) {
        Hold(receive->slot, &HeldMemory::received);
      } else if (const auto* free = std::get_if<FreeInstruction>(&instruction)) {
        for (const int slot : free->slots) Release(slot);
      }
      peak_ = std::max(peak_, now_.sum());
    }
  }

  int64_t peak() const { return peak_; }
  std::vector<HeldMemory> TakeRuns() { return std::move(runs_); }

 private:
  using Part = int64_t HeldMemory::*;

  // Results that take an argument's memory hold nothing new, and are what the argument was; that is
  // gone then.
  void RunProgram(const RunInstruction& run) {
    std::vector<Part> kinds(run.results.size(), &HeldMemory::made);
    for (const Alias& alias : mesh_.programs[run.program].module.aliases) {
      const int argument = run.arguments[alias.parameter];
      if (held_as_[argument] != nullptr) kinds[alias.result] = held_as_[argument];
      Release(argument);
    }
    for (size_t i = 0; i < run.results.size(); ++i) Hold(run.results[i], kinds[i]);
    HeldMemory& during = runs_.emplace_back(now_);
    during.temporary = temporary_bytes_[run.program];
    peak_ = std::max(peak_, during.sum());
  }

  int64_t BytesOf(int slot) const {
    const ArraySlot& array = mesh_.slots[slot];
    return LocalShape(array.shape, array.sharding, mesh_.mesh).num_bytes();
  }
  void Hold(int slot, Part part) {
    if (held_as_[slot] != nullptr) return;
    now_.*part += BytesOf(slot);
    held_as_[slot] = part;
  }
  void Release(int slot) {
    if (held_as_[slot] == nullptr) return;
    now_.*held_as_[slot] -= BytesOf(slot);
    held_as_[slot] = nullptr;
  }

  const MeshProgram& mesh_;
  const std::span<const int64_t> temporary_bytes_;
  std::vector<Part> held_as_;  // by slot; nullptr: not held
  HeldMemory now_;
  int64_t peak_ = 0;
  std::vector<HeldMemory> runs_;
};

}  // namespace

std::vector<HeldMemory> MemoryOfRuns(const PipelineProgram& program, const MeshProgram& mesh,
                                     std::span<const int64_t> temporary_bytes) {
  Accountant accountant(program, mesh, temporary_bytes);
  accountant.Run();
  return accountant.TakeRuns();
}

int64_t PeakMemory(const PipelineProgram& program, const MeshProgram& mesh,
                   std::span<const int64_t> temporary_bytes) {
  Accountant accountant(program, mesh, temporary_bytes);
  accountant.Run();
  return accountant.peak();
}

}  // namespace minka
