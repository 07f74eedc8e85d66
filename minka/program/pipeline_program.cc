#include "minka/program/pipeline_program.h"

#include <map>
#include <tuple>

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

}  // namespace

std::string InstructionsText(const MeshProgram& mesh) {
  std::string text;
  for (const PipelineInstruction& instruction : mesh.instructions) {
    if (const auto* run = std::get_if<RunInstruction>(&instruction)) {
      const StageProgram& program = mesh.programs[run->program];
      const std::string micro_batch =
          run->micro_batch < 0 ? "" : fmt::format(" of micro-batch {}", run->micro_batch);
      text +=
          fmt::format("run stage {} {}{}: ({}) -> ({})\n", program.stage, ToString(program.task),
                      micro_batch, SlotsText(mesh, run->arguments), SlotsText(mesh, run->results));
    } else if (const auto* send = std::get_if<SendInstruction>(&instruction)) {
      text += fmt::format("send {} by channel {}\n", SlotText(mesh, send->slot), send->channel);
    } else if (const auto* receive = std::get_if<ReceiveInstruction>(&instruction)) {
      text += fmt::format("receive {} by channel {}\n", SlotText(mesh, receive->slot),
                          receive->channel);
    } else {
      text +=
          fmt::format("free {}\n", SlotsText(mesh, std::get<FreeInstruction>(instruction).slots));
    }
  }
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
