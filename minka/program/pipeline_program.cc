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

namespace {

// Both ends of a channel.
struct ChannelTiles {
  int sent = 0, received = 0;  // positions in the tile lists of its meshes
};

class TilePlanner {
 public:
  explicit TilePlanner(PipelineProgram& program) : program_(program) {
    for (const MeshProgram& mesh : program.meshes)
      sent_bytes_.emplace_back(mesh.mesh.num_devices());
  }

  void Run() {
    for (const Channel& channel : program_.channels) of_channel_.push_back(TilesOf(channel));
    for (MeshProgram& mesh : program_.meshes) {
      for (PipelineInstruction& instruction : mesh.instructions) {
        if (auto* send = std::get_if<SendInstruction>(&instruction)) {
          send->tiles = of_channel_[send->channel].sent;
        } else if (auto* receive = std::get_if<ReceiveInstruction>(&instruction)) {
          receive->tiles = of_channel_[receive->channel].received;
        }
      }
    }
  }

 private:
  // A value's messages are alike for all micro-batches.
  struct ValueOnTheWay {
    int from = 0, to = 0;
    std::string name;
    ElementType type = ElementType::kInvalid;
    std::vector<int64_t> dims;
    Sharding from_sharding, to_sharding;
    auto operator<=>(const ValueOnTheWay&) const = default;
  };

  ArrayOnMesh SideOf(const MeshSlot& at) const {
    const Mesh& mesh = program_.meshes[at.mesh].mesh;
    return {program_.slot(at).sharding, mesh, std::vector<int>(mesh.num_devices(), at.mesh)};
  }

  ChannelTiles TilesOf(const Channel& channel) {
    const ArraySlot& array = program_.slot(channel.from);
    const auto [found, is_new] =
        known_.try_emplace({channel.from.mesh, channel.to.mesh, array.name, array.shape.type,
                            array.shape.dims, array.sharding, program_.slot(channel.to).sharding});
    if (is_new) found->second = Plan(channel);
    return found->second;
  }

  ChannelTiles Plan(const Channel& channel) {
    const Shape& shape = program_.slot(channel.from).shape;
    const ArrayOnMesh from = SideOf(channel.from), to = SideOf(channel.to);
    std::vector<int64_t>& sent = sent_bytes_[channel.from.mesh];
    const std::vector<TileTransfer> transfers =
        PlanCrossMesh(shape, from, to, {.sent_bytes = sent});
    for (const TileTransfer& transfer : transfers) {
      sent[transfer.source] += transfer.box.num_elements() * ElementBytes(shape.type);
    }
    TileLists lists = PackTiles(transfers, shape, from, to);
    return {Add(channel.from.mesh, std::move(lists.sent)),
            Add(channel.to.mesh, std::move(lists.received))};
  }

  int Add(int mesh, TileList list) {
    std::vector<TileList>& lists = program_.meshes[mesh].tile_lists;
    lists.push_back(std::move(list));
    return static_cast<int>(lists.size()) - 1;
  }

  PipelineProgram& program_;
  std::vector<std::vector<int64_t>> sent_bytes_;  // by mesh and device
  std::map<ValueOnTheWay, ChannelTiles> known_;
  std::vector<ChannelTiles> of_channel_;
};

// What one end says of its channels: the tiles by channel.
template <typename Instruction>
std::map<int, const TileList*> TilesByChannel(const PipelineProgram& program) {
  std::map<int, const TileList*> tiles;
  for (const MeshProgram& mesh : program.meshes) {
    for (const PipelineInstruction& instruction : mesh.instructions) {
      const auto* transfer = std::get_if<Instruction>(&instruction);
      if (transfer != nullptr) tiles[transfer->channel] = &mesh.tile_lists[transfer->tiles];
    }
  }
  return tiles;
}

std::string TilesText(const TileList& sent, const TileList& received) {
  std::vector<TileTransfer> transfers;
  for (size_t message = 0; message < sent.messages.size(); ++message) {
    for (size_t i = 0; i < sent.messages[message].tiles.size(); ++i) {
      const Tile& tile = sent.messages[message].tiles[i];
      const std::vector<int>& to = received.messages[message].tiles[i].devices;
      transfers.push_back({.source = tile.devices.front(),
                           .box = tile.box,
                           .destinations = {to.begin(), to.end()}});
    }
  }
  return ToString(transfers);
}

}  // namespace

void SetTiles(PipelineProgram& program) { TilePlanner(program).Run(); }

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
    size_t num_messages = 0;
    std::string tiles;
  };
  std::map<std::tuple<int, int, std::string>, Transfer> transfers;
  const auto sent = TilesByChannel<SendInstruction>(program);
  const auto received = TilesByChannel<ReceiveInstruction>(program);
  for (size_t number = 0; number < program.channels.size(); ++number) {
    const Channel& channel = program.channels[number];
    const ArraySlot& from = program.slot(channel.from);
    const std::string what = fmt::format(
        "{} {}, {} -> {}", from.name, ToString(from.shape),
        ToString(from.sharding, program.meshes[channel.from.mesh].mesh),
        ToString(program.slot(channel.to).sharding, program.meshes[channel.to.mesh].mesh));
    Transfer& transfer = transfers[{channel.from.mesh, channel.to.mesh, what}];
    if (transfer.count++ > 0) continue;
    const TileList& tiles = *sent.at(static_cast<int>(number));
    transfer.bytes = BytesOf(tiles, from.shape.type);
    transfer.num_messages = tiles.messages.size();
    transfer.tiles = TilesText(tiles, *received.at(static_cast<int>(number)));
  }
  std::string text;
  for (const auto& [key, transfer] : transfers) {
    const auto& [from, to, what] = key;
    text +=
        fmt::format("mesh {} to mesh {}: {}, {} bytes in {} messages, {} times\n{}", from, to, what,
                    transfer.bytes, transfer.num_messages, transfer.count, transfer.tiles);
  }
  return text;
}

}  // namespace minka
