#include "minka/runtime/pipeline/pipeline_executor.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/ir/hlo_proto.h"
#include "minka/ir/verifier.h"

namespace minka {
namespace {

Literal NumberLiteral(int32_t number) {
  return {
      {ElementType::kS32, {}},
      std::make_shared<const std::string>(reinterpret_cast<const char*>(&number), sizeof(number))};
}

}  // namespace

// One step: what lies in every slot, and how far each mesh is.
class PipelineExecutor::StepRun {
 public:
  StepRun(PipelineExecutor& executor, std::span<MeshArray* const> arguments)
      : executor_(executor), program_(executor.program_), sent_(program_.channels.size()) {
    for (const MeshProgram& mesh : program_.meshes) {
      slots_.emplace_back(mesh.slots.size());
      next_.push_back(0);
    }
    for (size_t mesh = 0; mesh < slots_.size(); ++mesh) {
      const std::vector<int>& numbers = program_.meshes[mesh].numbers;
      for (size_t i = 0; i < numbers.size(); ++i) {
        for (pjrt::Buffer& part : executor.numbers_[mesh][i].parts) {
          slots_[mesh][numbers[i]].parts.push_back(&part);
        }
      }
    }
    for (size_t i = 0; i < program_.parameters.size(); ++i) TakeArgument(i, *arguments[i]);
  }

  absl::Status Run() {
    const int num_meshes = static_cast<int>(program_.meshes.size());
    bool is_done = false;
    while (!is_done) {
      is_done = true;
      bool has_moved = false;
      for (int mesh = 0; mesh < num_meshes; ++mesh) {
        while (next_[mesh] < program_.meshes[mesh].instructions.size()) {
          ASSIGN_OR_RETURN(const bool has_run, Execute(mesh));
          if (!has_run) break;
          has_moved = true;
          ++next_[mesh];
        }
        is_done = is_done && next_[mesh] == program_.meshes[mesh].instructions.size();
      }
      MINKA_CHECK(is_done || has_moved, "all meshes wait: {}", WhatIsAwaited());
    }
    return absl::OkStatus();
  }

  std::string WhatIsAwaited() const {
    std::string text;
    for (size_t mesh = 0; mesh < next_.size(); ++mesh) {
      const MeshProgram& program = program_.meshes[mesh];
      if (next_[mesh] == program.instructions.size()) continue;
      const auto& receive = std::get<ReceiveInstruction>(program.instructions[next_[mesh]]);
      text += fmt::format("{}mesh {} for {}", text.empty() ? "" : ", ", mesh,
                          program.slots[receive.slot].name);
    }
    return text;
  }

  absl::StatusOr<std::vector<MeshArray>> TakeResults() {
    std::vector<MeshArray> results;
    for (const MeshSlot& at : program_.results) {
      ContentsOfSlot& slot = slots_[at.mesh][at.slot];
      if (slot.is_owned && !slot.is_taken) {
        slot.is_taken = true;
        results.push_back(std::move(slot.array));
        where_[at] = results.size() - 1;
        continue;
      }
      // A parameter that is handed through, or a result that stands there twice.
      ASSIGN_OR_RETURN(MeshArray copy, CopyOf(at, results));
      results.push_back(std::move(copy));
    }
    return results;
  }

 private:
  // Parts that somebody else owns, or an array of its own.
  struct ContentsOfSlot {
    std::vector<pjrt::Buffer*> parts;
    MeshArray array;
    bool is_owned = false, is_taken = false;
  };

  void TakeArgument(size_t parameter, MeshArray& argument) {
    size_t next = 0;
    for (const MeshSlot& at : program_.parameters[parameter]) {
      const int64_t num_devices = program_.meshes[at.mesh].mesh.num_devices();
      for (int64_t device = 0; device < num_devices; ++device) {
        slots_[at.mesh][at.slot].parts.push_back(&argument.parts[next++]);
      }
    }
  }

  void Own(int mesh, int slot, MeshArray array) {
    ContentsOfSlot& contents = slots_[mesh][slot];
    contents.array = std::move(array);
    contents.is_owned = true;
    contents.parts.clear();
    for (pjrt::Buffer& part : contents.array.parts) contents.parts.push_back(&part);
  }

  // False: it waits for something that has not been sent.
  absl::StatusOr<bool> Execute(int mesh) {
    const PipelineInstruction& instruction = program_.meshes[mesh].instructions[next_[mesh]];
    if (const auto* run = std::get_if<RunInstruction>(&instruction)) {
      RETURN_IF_ERROR(RunProgram(mesh, *run));
    } else if (const auto* send = std::get_if<SendInstruction>(&instruction)) {
      ASSIGN_OR_RETURN(sent_[send->channel], ReadSlot({mesh, send->slot}));
    } else if (const auto* receive = std::get_if<ReceiveInstruction>(&instruction)) {
      std::optional<Literal>& value = sent_[receive->channel];
      if (!value) return false;
      ASSIGN_OR_RETURN(
          MeshArray array,
          PutArray(executor_.client_, executor_.LayoutOf({mesh, receive->slot}), *value));
      Own(mesh, receive->slot, std::move(array));
      value.reset();
    } else {
      for (const int slot : std::get<FreeInstruction>(instruction).slots) slots_[mesh][slot] = {};
    }
    return true;
  }

  absl::Status RunProgram(int mesh, const RunInstruction& run) {
    const pjrt::Executable& executable = executor_.executables_[mesh][run.program];
    const auto num_devices = static_cast<size_t>(program_.meshes[mesh].mesh.num_devices());
    std::vector<std::vector<pjrt::Buffer*>> buffers(num_devices);
    for (const int slot : run.arguments) {
      const std::vector<pjrt::Buffer*>& parts = slots_[mesh][slot].parts;
      MINKA_CHECK(parts.size() == num_devices, "{} of {} is empty",
                  program_.meshes[mesh].slots[slot].name, executable.name());
      for (size_t device = 0; device < num_devices; ++device) {
        buffers[device].push_back(parts[device]);
      }
    }
    ASSIGN_OR_RETURN(pjrt::Launch launch, executable.Execute(buffers));
    RETURN_IF_ERROR(WithContext(launch.Await(), executable.name()));
    for (size_t i = 0; i < run.results.size(); ++i) {
      MeshArray array;
      for (std::vector<pjrt::Buffer>& of_device : launch.results) {
        array.parts.push_back(std::move(of_device[i]));
      }
      Own(mesh, run.results[i], std::move(array));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Literal> ReadSlot(const MeshSlot& at) {
    return ReadParts(executor_.LayoutOf(at), slots_[at.mesh][at.slot].parts);
  }

  static absl::StatusOr<Literal> ReadParts(const ArrayLayout& layout,
                                           std::span<pjrt::Buffer* const> parts) {
    return GetArray(layout, [&](int64_t device) { return parts[device]->ToHost(); });
  }

  absl::StatusOr<MeshArray> CopyOf(const MeshSlot& at, std::vector<MeshArray>& results) {
    const ArrayLayout layout = executor_.LayoutOf(at);
    const auto taken = where_.find(at);
    absl::StatusOr<Literal> value =
        taken != where_.end() ? GetArray(layout, results[taken->second]) : ReadSlot(at);
    if (!value.ok()) return value.status();
    return PutArray(executor_.client_, layout, *value);
  }

  PipelineExecutor& executor_;
  const PipelineProgram& program_;
  std::vector<std::vector<ContentsOfSlot>> slots_;  // by mesh and slot
  std::vector<size_t> next_;                        // instruction, by mesh
  std::vector<std::optional<Literal>> sent_;        // by channel: on its way through the host
  std::map<MeshSlot, size_t> where_;                // results that were taken
};

PipelineExecutor::PipelineExecutor(pjrt::Client client, PipelineProgram program)
    : client_(std::move(client)), program_(std::move(program)) {
  int first_device = 0;
  for (const MeshProgram& mesh : program_.meshes) {
    first_devices_.push_back(first_device);
    first_device += static_cast<int>(mesh.mesh.num_devices());
  }
}

absl::StatusOr<PipelineExecutor> PipelineExecutor::Create(const pjrt::Client& client,
                                                          PipelineProgram program) {
  PipelineExecutor executor(client, std::move(program));
  for (size_t i = 0; i < executor.program_.meshes.size(); ++i) {
    const MeshProgram& mesh = executor.program_.meshes[i];
    const int first_device = executor.first_devices_[i];
    std::vector<int> devices;
    for (int device = 0; device < mesh.mesh.num_devices(); ++device) {
      devices.push_back(first_device + device);
    }
    if (devices.back() >= client.num_devices()) {
      return InvalidArgument("the pipeline's meshes have more devices than the {} at hand",
                             client.num_devices());
    }
    std::vector<pjrt::Executable>& executables = executor.executables_.emplace_back();
    for (const StageProgram& program_of_stage : mesh.programs) {
      RETURN_IF_ERROR(WithContext(Verify(program_of_stage.module), program_of_stage.module.name));
      ASSIGN_OR_RETURN(pjrt::Executable executable,
                       pjrt::Executable::Compile(
                           client, ExportHlo(program_of_stage.module),
                           {.num_replicas = static_cast<int>(devices.size()), .devices = devices}));
      executables.push_back(std::move(executable));
    }
    std::vector<MeshArray>& numbers = executor.numbers_.emplace_back();
    for (size_t number = 0; number < mesh.numbers.size(); ++number) {
      const MeshSlot at = {static_cast<int>(i), mesh.numbers[number]};
      ASSIGN_OR_RETURN(MeshArray array, PutArray(client, executor.LayoutOf(at),
                                                 NumberLiteral(static_cast<int32_t>(number))));
      numbers.push_back(std::move(array));
    }
  }
  return executor;
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

absl::StatusOr<MeshArray> PipelineExecutor::Put(int parameter, const Literal& value) const {
  MeshArray everywhere;
  for (const MeshSlot& at : program_.parameters[parameter]) {
    absl::StatusOr<MeshArray> array = PutArray(client_, LayoutOf(at), value);
    if (!array.ok()) return WithContext(array.status(), fmt::format("parameter {}", parameter));
    for (pjrt::Buffer& part : array->parts) everywhere.parts.push_back(std::move(part));
  }
  return everywhere;
}

absl::StatusOr<std::vector<MeshArray>> PipelineExecutor::Run(
    std::span<MeshArray* const> arguments) {
  MINKA_CHECK(arguments.size() == program_.parameters.size(), "{} arguments for {} parameters",
              arguments.size(), program_.parameters.size());
  const auto start = std::chrono::steady_clock::now();
  StepRun run(*this, arguments);
  RETURN_IF_ERROR(run.Run());
  const std::chrono::duration<double, std::micro> elapsed =
      std::chrono::steady_clock::now() - start;
  times_.us.push_back(elapsed.count());
  return run.TakeResults();
}

std::vector<const pjrt::Executable*> PipelineExecutor::executables() const {
  std::vector<const pjrt::Executable*> all;
  for (const std::vector<pjrt::Executable>& of_mesh : executables_) {
    for (const pjrt::Executable& executable : of_mesh) all.push_back(&executable);
  }
  return all;
}

std::vector<std::vector<int64_t>> PipelineExecutor::temporary_bytes() const {
  std::vector<std::vector<int64_t>> bytes;
  for (const std::vector<pjrt::Executable>& of_mesh : executables_) {
    bytes.emplace_back();
    for (const pjrt::Executable& executable : of_mesh) {
      bytes.back().push_back(executable.memory().temp_bytes);
    }
  }
  return bytes;
}

void PipelineExecutor::ResetMeasurements() {
  times_.us.clear();
  client_.meter().ResetPeak();
}

int64_t PipelineExecutor::measured_peak_bytes() const {
  int64_t peak = 0;
  for (int device = 0; device < client_.num_devices(); ++device) {
    peak = std::max(peak, client_.peak_bytes(device));
  }
  return peak;
}

}  // namespace minka
