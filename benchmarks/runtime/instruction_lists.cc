#include "benchmarks/runtime/instruction_lists.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "minka/base/check.h"
#include "minka/ir/hlo_proto.h"

namespace minka {
namespace {

const Shape& TinyShape() {
  static const Shape shape{ElementType::kF32, {4}};
  return shape;
}

StageProgram TinyProgram(int mesh) {
  Module module = ParseHloText(R"(HloModule tiny

ENTRY main {
  x = f32[4] parameter(0)
  ROOT y = f32[4] add(x, x)
}
)")
                      .value();
  MeshSignature signature = SignatureOf(module);
  return {.stage = mesh, .module = std::move(module), .signature = std::move(signature)};
}

int AddSlotOf(MeshProgram& mesh, ArraySlot slot) {
  mesh.slots.push_back(std::move(slot));
  return static_cast<int>(mesh.slots.size()) - 1;
}

int AddTinySlot(MeshProgram& mesh) {
  return AddSlotOf(mesh, {.name = "x", .shape = TinyShape(), .sharding = Sharding::Replicated(1)});
}

}  // namespace

PipelineProgram MakeLists(ListKind kind, int num_meshes, int length) {
  MINKA_CHECK(length % 2 == 0);
  PipelineProgram out;
  out.meshes.resize(num_meshes);
  for (int number = 0; number < num_meshes; ++number) {
    MeshProgram& mesh = out.meshes[number];
    mesh.mesh = Mesh({{"x", 1}});
    const int given = AddTinySlot(mesh);
    out.parameters.push_back({{number, given}});
    out.results.push_back({number, given});
    if (kind != ListKind::kTransfer && length > 0) mesh.programs.push_back(TinyProgram(number));
    FreeInstruction rest;
    while (static_cast<int>(mesh.instructions.size()) < length) {
      if (kind == ListKind::kTransfer) {
        const int next = (number + 1) % num_meshes, before = (number + num_meshes - 1) % num_meshes;
        const int round = static_cast<int>(mesh.instructions.size()) / 2 * num_meshes;
        mesh.instructions.emplace_back(SendInstruction{given, round + next});
        const int received = AddTinySlot(mesh);
        mesh.instructions.emplace_back(ReceiveInstruction{received, round + number});
        out.channels.resize(std::max<size_t>(out.channels.size(), round + num_meshes));
        out.channels[round + number] = {.from = {before, 0}, .to = {number, received}};
        rest.slots.push_back(received);
        continue;
      }
      const int made = AddTinySlot(mesh);
      mesh.instructions.emplace_back(
          RunInstruction{.micro_batch = -1, .arguments = {given}, .results = {made}});
      if (kind == ListKind::kFree) {
        mesh.instructions.emplace_back(FreeInstruction{{made}});
      } else {
        rest.slots.push_back(made);
      }
    }
    mesh.instructions.emplace_back(std::move(rest));
  }
  SetTiles(out);
  return out;
}

RepeatedProgram Repeat(const PipelineProgram& whole, int mesh, int program, int times) {
  const MeshProgram& from = whole.meshes[mesh];
  const RunInstruction* run = nullptr;
  for (const PipelineInstruction& instruction : from.instructions) {
    const auto* const found = std::get_if<RunInstruction>(&instruction);
    if (found != nullptr && found->program == program && run == nullptr) run = found;
  }
  MINKA_CHECK(run != nullptr, "mesh {} never runs program {}", mesh, program);
  RepeatedProgram out;
  for (int number = 0; number <= mesh; ++number) {
    out.pipeline.meshes.push_back({.mesh = whole.meshes[number].mesh});
  }
  MeshProgram& to = out.pipeline.meshes[mesh];
  to.programs = {from.programs[program]};
  std::vector<int> arguments;
  for (const int slot : run->arguments) {
    arguments.push_back(AddSlotOf(to, from.slots[slot]));
    out.pipeline.parameters.push_back({{mesh, arguments.back()}});
  }
  std::map<int, int> taken;  // by result: the parameter whose memory it takes
  for (const Alias& alias : to.programs.front().module.aliases) {
    taken[alias.result] = alias.parameter;
  }
  for (int i = 0; i < times; ++i) {
    RunInstruction again{.micro_batch = -1, .arguments = arguments};
    FreeInstruction rest;
    for (int result = 0; result < static_cast<int>(run->results.size()); ++result) {
      again.results.push_back(AddSlotOf(to, from.slots[run->results[result]]));
      const auto parameter = taken.find(result);
      if (parameter == taken.end()) {
        rest.slots.push_back(again.results.back());
      } else {
        rest.slots.push_back(arguments[parameter->second]);
        arguments[parameter->second] = again.results.back();
      }
    }
    to.instructions.emplace_back(std::move(again));
    to.instructions.emplace_back(std::move(rest));
  }
  for (const auto& [result, parameter] : taken) {
    out.pipeline.results.push_back({mesh, arguments[parameter]});
    out.in_place.push_back(parameter);
  }
  return out;
}

}  // namespace minka
