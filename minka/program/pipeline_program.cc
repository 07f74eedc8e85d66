#include "minka/program/pipeline_program.h"

#include <map>
#include <tuple>
#include <utility>

#include "fmt/format.h"
#include "fmt/ranges.h"

namespace minka {
namespace {

std::string SlotText(const MeshProgram& mesh, int slot) {
  return fmt::format("%{} {}", slot, mesh.slots[slot].name);
}

std::string SlotsText(const MeshProgram& mesh, const std::vector<int>& slots) {
  std::vector<std::string> texts;
  for (const int slot : slots) texts.push_back(SlotText(mesh, slot));
  return fmt::format("{}", fmt::join(texts, ", "));
}

// Makes a slot for each of the arrays, and returns their numbers.
std::vector<int> AddSlots(std::string_view what, const std::vector<Shape>& shapes,
                          const std::vector<Sharding>& shardings, std::vector<ArraySlot>& slots) {
  std::vector<int> numbers;
  for (size_t i = 0; i < shapes.size(); ++i) {
    numbers.push_back(static_cast<int>(slots.size()));
    slots.push_back({fmt::format("{} {}", what, i), shapes[i], shardings[i]});
  }
  return numbers;
}

}  // namespace

PipelineProgram ProgramOfOneMesh(Module module, const Mesh& mesh, MeshSignature signature) {
  PipelineProgram program;
  MeshProgram& only = program.meshes.emplace_back();
  only.mesh = mesh;
  RunInstruction run{.micro_batch = -1};
  run.arguments =
      AddSlots("parameter", signature.parameters, signature.parameter_shardings, only.slots);
  run.results = AddSlots("result", signature.results, signature.result_shardings, only.slots);
  for (const int slot : run.arguments) program.parameters.push_back({{.mesh = 0, .slot = slot}});
  for (const int slot : run.results) program.results.push_back({.mesh = 0, .slot = slot});
  only.instructions.emplace_back(std::move(run));
  only.programs.push_back({.task = {ProgramKind::kWhole},
                           .module = std::move(module),
                           .signature = std::move(signature)});
  return program;
}

std::string InstructionName(const MeshProgram& mesh, size_t number) {
  const PipelineInstruction& instruction = mesh.instructions[number];
  if (const auto* run = std::get_if<RunInstruction>(&instruction)) {
    const StageProgram& program = mesh.programs[run->program];
    const std::string micro_batch =
        run->micro_batch < 0 ? "" : fmt::format(" of micro-batch {}", run->micro_batch);
    if (program.task.kind == ProgramKind::kWhole) return "run the step";
    return fmt::format("run stage {} {}{}", program.stage, ToString(program.task), micro_batch);
  }
  if (const auto* send = std::get_if<SendInstruction>(&instruction)) {
    return fmt::format("send {} by channel {}", SlotText(mesh, send->slot), send->channel);
  }
  if (const auto* receive = std::get_if<ReceiveInstruction>(&instruction)) {
    return fmt::format("receive {} by channel {}", SlotText(mesh, receive->slot), receive->channel);
  }
  return "free";
}

std::string InstructionText(const MeshProgram& mesh, size_t number) {
  const PipelineInstruction& instruction = mesh.instructions[number];
  std::string name = InstructionName(mesh, number);
  if (const auto* run = std::get_if<RunInstruction>(&instruction)) {
    return fmt::format("{}: ({}) -> ({})", name, SlotsText(mesh, run->arguments),
                       SlotsText(mesh, run->results));
  }
  if (const auto* free = std::get_if<FreeInstruction>(&instruction)) {
    return fmt::format("{} {}", name, SlotsText(mesh, free->slots));
  }
  return name;
}

std::string InstructionsText(const MeshProgram& mesh) {
  std::string text;
  for (size_t i = 0; i < mesh.instructions.size(); ++i) text += InstructionText(mesh, i) + "\n";
  return text;
}

std::string TransfersText(const PipelineProgram& program) {
  struct Transfer {
    int count = 0;
    int64_t bytes = 0;
  };
  std::map<std::tuple<int, int, std::string>, Transfer> transfers;
  for (const Channel& channel : program.channels) {
    const ArraySlot& from = program.slot(channel.from);
    const std::string what = fmt::format(
        "{} {}, {} -> {}", from.name, ToString(from.shape),
        ToString(from.sharding, program.meshes[channel.from.mesh].mesh),
        ToString(program.slot(channel.to).sharding, program.meshes[channel.to.mesh].mesh));
    Transfer& transfer = transfers[{channel.from.mesh, channel.to.mesh, what}];
    ++transfer.count;
    transfer.bytes = from.shape.num_bytes();
  }
  std::string text;
  for (const auto& [key, transfer] : transfers) {
    const auto& [from, to, what] = key;
    text += fmt::format("mesh {} to mesh {}: {}, {} bytes, {} times\n", from, to, what,
                        transfer.bytes, transfer.count);
  }
  return text;
}

}  // namespace minka
