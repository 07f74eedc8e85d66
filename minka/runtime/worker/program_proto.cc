#include "minka/runtime/worker/program_proto.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <variant>

#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/ir/hlo_proto.h"
#include "minka/ir/hlo_shape.h"
#include "minka/ir/text_cursor.h"
#include "minka/runtime/worker/tile_proto.h"
#include "minka/runtime/worker/wire.h"

namespace minka {
namespace {

// "stage 1 backward", "stage 0 apply 2".
std::string ProgramName(const StageProgram& program) {
  return fmt::format("stage {} {}", program.stage, ToString(program.task));
}

worker::Instruction InstructionToProto(const PipelineInstruction& instruction) {
  worker::Instruction proto;
  if (const auto* run = std::get_if<RunInstruction>(&instruction)) {
    proto.mutable_run()->set_program(run->program);
    proto.mutable_run()->set_micro_batch(run->micro_batch);
    proto.mutable_run()->mutable_arguments()->Assign(run->arguments.begin(), run->arguments.end());
    proto.mutable_run()->mutable_results()->Assign(run->results.begin(), run->results.end());
  } else if (const auto* send = std::get_if<SendInstruction>(&instruction)) {
    proto.mutable_send()->set_slot(send->slot);
    proto.mutable_send()->set_channel(send->channel);
    proto.mutable_send()->set_tiles(send->tiles);
  } else if (const auto* receive = std::get_if<ReceiveInstruction>(&instruction)) {
    proto.mutable_receive()->set_slot(receive->slot);
    proto.mutable_receive()->set_channel(receive->channel);
    proto.mutable_receive()->set_tiles(receive->tiles);
  } else {
    const std::vector<int>& slots = std::get<FreeInstruction>(instruction).slots;
    proto.mutable_free()->mutable_slots()->Assign(slots.begin(), slots.end());
  }
  return proto;
}

absl::Status ReadProgramName(const std::string& name, StageProgram& out) {
  TextCursor cursor(name);
  absl::Status error =
      InvalidArgument("'{}' names no program; the form is 'stage 1 backward'", name);
  if (!cursor.Consume("stage")) return error;
  const auto stage = cursor.Integer();
  if (!stage.ok() || *stage < 0 || *stage > std::numeric_limits<int>::max()) return error;
  out.stage = static_cast<int>(*stage);
  const std::string_view kind_name = cursor.Word();
  for (const ProgramKind kind :
       {ProgramKind::kFront, ProgramKind::kForward, ProgramKind::kBackward,
        ProgramKind::kWeightGradient, ProgramKind::kApply, ProgramKind::kWhole}) {
    if (ProgramKindName(kind) == kind_name) out.task.kind = kind;
  }
  if (!cursor.AtEnd()) {
    const auto phase = cursor.Integer();
    if (!phase.ok() || *phase < 0 || *phase > std::numeric_limits<int>::max()) return error;
    out.task.phase = static_cast<int>(*phase);
  }
  return ProgramName(out) == name ? absl::OkStatus() : error;
}

absl::StatusOr<Shape> ReadShape(const std::string& text) {
  TextCursor cursor(text);
  const auto proto = ParseShape(cursor);
  if (!proto.ok()) return InvalidArgument("shape '{}': {}", text, Message(proto.status()));
  Shape shape;
  if (!IsTuple(*proto)) shape = ArrayShape(*proto);
  if (ElementBytes(shape.type) == 0 || ToString(shape) != text) {
    return InvalidArgument("shape '{}' is not that of an array, like f32[64,128]", text);
  }
  return shape;
}

// Every device that a collective names is one of the mesh.
absl::Status CheckReplicas(const Module& module, int64_t num_devices) {
  const auto check = [&](const Instruction& instruction, int64_t replica) {
    if (replica >= 0 && replica < num_devices) return absl::OkStatus();
    return InvalidArgument("{} '{}' names replica {} of {}", OpcodeName(instruction.opcode),
                           instruction.name, replica, num_devices);
  };
  for (const Computation& computation : module.computations) {
    for (const Instruction& instruction : computation.instructions) {
      if (const auto* collective = std::get_if<CollectiveAttributes>(&instruction.attributes)) {
        for (const std::vector<int64_t>& group : collective->groups) {
          for (const int64_t replica : group) RETURN_IF_ERROR(check(instruction, replica));
        }
      } else if (const auto* permute = std::get_if<PermuteAttributes>(&instruction.attributes)) {
        for (const auto& [source, target] : permute->source_target_pairs) {
          RETURN_IF_ERROR(check(instruction, source));
          RETURN_IF_ERROR(check(instruction, target));
        }
      }
    }
  }
  return absl::OkStatus();
}

class ProgramReader {
 public:
  ProgramReader(const worker::MeshProgram& proto, const worker::Open& open)
      : proto_(proto), open_(open) {}

  absl::StatusOr<ReceivedProgram> Run() && {
    RETURN_IF_ERROR(ReadMesh());
    RETURN_IF_ERROR(ReadPrograms());
    RETURN_IF_ERROR(ReadSlots());
    RETURN_IF_ERROR(ReadNumbers());
    RETURN_IF_ERROR(ReadChannels());
    RETURN_IF_ERROR(ReadTileLists());
    RETURN_IF_ERROR(ReadInstructions());
    RETURN_IF_ERROR(CheckThatAllIsUsed());
    RETURN_IF_ERROR(FollowSlots());
    return std::move(out_);
  }

 private:
  enum class Contents { kEmpty, kFull, kGone };  // kGone: a result has taken the memory

  struct ChannelUse {
    bool is_sent = false, is_received = false;
    // As far as the list has been followed.
    std::optional<Shape> on_its_way;
    int sent_tiles = 0;
  };

  MeshProgram& program() { return out_.program; }

  std::string SlotName(int slot) const {
    return fmt::format("slot {} ({})", slot, out_.program.slots[slot].name);
  }
  std::string NameOfProgram(int number) const {
    return fmt::format("program {} ({})", number, proto_.programs(number).name());
  }

  absl::Status ReadMesh() {
    ASSIGN_OR_RETURN(program().mesh, Mesh::Parse(proto_.mesh()));
    if (program().mesh.num_devices() <= open_.num_devices()) return absl::OkStatus();
    return InvalidArgument("the mesh {} has {} devices, the worker {}", program().mesh.ToString(),
                           program().mesh.num_devices(), open_.num_devices());
  }

  absl::Status ReadPrograms() {
    for (int number = 0; number < proto_.programs_size(); ++number) {
      StageProgram& read = program().programs.emplace_back();
      RETURN_IF_ERROR(WithContext(ReadProgram(proto_.programs(number), read),
                                  fmt::format("program {}", number)));
    }
    has_run_.resize(program().programs.size());
    return absl::OkStatus();
  }

  absl::Status ReadProgram(const worker::StageProgram& proto, StageProgram& out) {
    RETURN_IF_ERROR(ReadProgramName(proto.name(), out));
    absl::StatusOr<Module> module = ImportHlo(proto.module());
    if (!module.ok()) return WithContext(module.status(), proto.name());
    out.module = *std::move(module);
    return WithContext(CheckReplicas(out.module, program().mesh.num_devices()), proto.name());
  }

  absl::Status ReadSlots() {
    for (int number = 0; number < proto_.slots_size(); ++number) {
      const worker::Slot& slot = proto_.slots(number);
      program().slots.push_back({.name = slot.name()});
      RETURN_IF_ERROR(WithContext(ReadSlot(slot, program().slots.back()), SlotName(number)));
    }
    is_number_.resize(program().slots.size());
    out_.uses.resize(program().slots.size());
    for (SlotUse& use : out_.uses) use.is_given = true;
    return absl::OkStatus();
  }

  absl::Status ReadSlot(const worker::Slot& proto, ArraySlot& out) {
    ASSIGN_OR_RETURN(out.shape, ReadShape(proto.shape()));
    ASSIGN_OR_RETURN(out.sharding, ParseSharding(proto.sharding(), program().mesh));
    RETURN_IF_ERROR(Validate(out.sharding, out.shape, program().mesh));
    local_.push_back(LocalShape(out.shape, out.sharding, program().mesh));
    return absl::OkStatus();
  }

  absl::Status CheckSlot(int slot) const {
    if (slot >= 0 && slot < proto_.slots_size()) return absl::OkStatus();
    return InvalidArgument("slot {} of {} does not exist", slot, proto_.slots_size());
  }

  absl::Status ReadNumbers() {
    for (const int slot : proto_.numbers()) {
      RETURN_IF_ERROR(WithContext(CheckSlot(slot), "numbers"));
      const ArraySlot& read = program().slots[slot];
      if (read.shape != Shape{ElementType::kS32, {}} || !read.sharding.is_replicated()) {
        return InvalidArgument("{} holds a number, but is {} {}, not s32[] []", SlotName(slot),
                               ToString(read.shape), ToString(read.sharding, program().mesh));
      }
      if (is_number_[slot]) return InvalidArgument("{} holds two numbers", SlotName(slot));
      is_number_[slot] = true;
      out_.uses[slot].is_given = false;
      program().numbers.push_back(slot);
    }
    return absl::OkStatus();
  }

  absl::Status ReadChannels() {
    for (const worker::Channel& channel : proto_.channels()) {
      if (channel.number() < 0 || channel.number() >> kChannelBits != 0) {
        return InvalidArgument("channel {} is negative or has more than {} bits", channel.number(),
                               kChannelBits);
      }
      if (channel.peer() < 0 || channel.peer() >= open_.num_peers()) {
        return InvalidArgument("channel {} leads to peer {} of {}", channel.number(),
                               channel.peer(), open_.num_peers());
      }
      if (!out_.peers.emplace(channel.number(), channel.peer()).second) {
        return InvalidArgument("channel {} is listed twice", channel.number());
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadTileLists() {
    for (int number = 0; number < proto_.tile_lists_size(); ++number) {
      absl::StatusOr<TileList> list = TileListFromProto(proto_.tile_lists(number));
      if (!list.ok()) return WithContext(list.status(), fmt::format("tile list {}", number));
      program().tile_lists.push_back(*std::move(list));
    }
    is_list_used_.resize(program().tile_lists.size());
    return absl::OkStatus();
  }

  absl::Status ReadInstructions() {
    for (int number = 0; number < proto_.instructions_size(); ++number) {
      RETURN_IF_ERROR(WithContext(ReadInstruction(proto_.instructions(number)),
                                  fmt::format("instruction {}", number)));
    }
    return absl::OkStatus();
  }

  absl::Status ReadInstruction(const worker::Instruction& proto) {
    switch (proto.kind_case()) {
      case worker::Instruction::kRun:
        return WithContext(ReadRun(proto.run()), "run");
      case worker::Instruction::kSend:
        return WithContext(ReadSend(proto.send()), "send");
      case worker::Instruction::kReceive:
        return WithContext(ReadReceive(proto.receive()), "receive");
      case worker::Instruction::kFree:
        return WithContext(ReadFree(proto.free()), "free");
      case worker::Instruction::KIND_NOT_SET:
        break;
    }
    return InvalidArgument("it is none of run, send, receive and free");
  }

  absl::Status ReadRun(const worker::Run& proto) {
    if (proto.program() < 0 || proto.program() >= proto_.programs_size()) {
      return InvalidArgument("program {} of {} does not exist", proto.program(),
                             proto_.programs_size());
    }
    if (proto.micro_batch() < -1) {
      return InvalidArgument("micro-batch {} does not exist", proto.micro_batch());
    }
    RunInstruction run{.program = proto.program(),
                       .micro_batch = proto.micro_batch(),
                       .arguments = {proto.arguments().begin(), proto.arguments().end()},
                       .results = {proto.results().begin(), proto.results().end()}};
    RETURN_IF_ERROR(WithContext(CheckRun(run), NameOfProgram(run.program)));
    for (const int slot : run.arguments) out_.uses[slot].is_needed = true;
    for (const int slot : run.results) {
      if (std::ranges::find(run.arguments, slot) == run.arguments.end()) Fill(slot);
    }
    program().instructions.emplace_back(std::move(run));
    return absl::OkStatus();
  }

  absl::Status CheckRun(const RunInstruction& run) {
    StageProgram& run_program = program().programs[run.program];
    const MeshSignature local = SignatureOf(run_program.module);
    MeshSignature& signature = run_program.signature;
    const bool is_first = !has_run_[run.program];
    RETURN_IF_ERROR(CheckLayouts("argument", run.arguments, local.parameters, is_first,
                                 signature.parameters, signature.parameter_shardings));
    RETURN_IF_ERROR(CheckLayouts("result", run.results, local.results, is_first, signature.results,
                                 signature.result_shardings));
    has_run_[run.program] = true;
    std::set<int> distinct;
    for (const int slot : run.results) {
      if (!distinct.insert(slot).second) {
        return InvalidArgument("two results go into {}", SlotName(slot));
      }
    }
    return absl::OkStatus();
  }

  // The slots hold on a device what the program has there. The first run says how that lies on the
  // mesh, the others say the same.
  absl::Status CheckLayouts(std::string_view what, std::span<const int> slots,
                            const std::vector<Shape>& local, bool is_first,
                            std::vector<Shape>& shapes, std::vector<Sharding>& shardings) const {
    if (slots.size() != local.size()) {
      return InvalidArgument("has {} {}s, given are {} slots", local.size(), what, slots.size());
    }
    for (size_t i = 0; i < slots.size(); ++i) {
      RETURN_IF_ERROR(WithContext(CheckSlot(slots[i]), fmt::format("{} {}", what, i)));
      const ArraySlot& slot = out_.program.slots[slots[i]];
      if (local_[slots[i]] != local[i]) {
        return InvalidArgument("{} {} is {}, but {} holds {} on a device", what, i,
                               ToString(local[i]), SlotName(slots[i]), ToString(local_[slots[i]]));
      }
      if (is_first) {
        shapes.push_back(slot.shape);
        shardings.push_back(slot.sharding);
      } else if (slot.shape != shapes[i] || slot.sharding != shardings[i]) {
        const Mesh& mesh = out_.program.mesh;
        return InvalidArgument("{} {} is {} {} here, {} {} in an earlier run", what, i,
                               ToString(slot.shape), ToString(slot.sharding, mesh),
                               ToString(shapes[i]), ToString(shardings[i], mesh));
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadSend(const worker::Transfer& proto) {
    RETURN_IF_ERROR(CheckTransfer(proto));
    if (std::exchange(channels_[proto.channel()].is_sent, true)) {
      return InvalidArgument("channel {} is used twice", proto.channel());
    }
    out_.uses[proto.slot()].is_needed = true;
    RETURN_IF_ERROR(CheckSentTiles(program().slots[proto.slot()], program().mesh,
                                   program().tile_lists[proto.tiles()]));
    program().instructions.emplace_back(
        SendInstruction{proto.slot(), proto.channel(), proto.tiles()});
    return absl::OkStatus();
  }

  absl::Status ReadReceive(const worker::Transfer& proto) {
    RETURN_IF_ERROR(CheckTransfer(proto));
    if (std::exchange(channels_[proto.channel()].is_received, true)) {
      return InvalidArgument("channel {} is used twice", proto.channel());
    }
    Fill(proto.slot());
    RETURN_IF_ERROR(CheckReceivedTiles(program().slots[proto.slot()], program().mesh,
                                       program().tile_lists[proto.tiles()]));
    program().instructions.emplace_back(
        ReceiveInstruction{proto.slot(), proto.channel(), proto.tiles()});
    return absl::OkStatus();
  }

  absl::Status CheckTransfer(const worker::Transfer& proto) {
    RETURN_IF_ERROR(CheckSlot(proto.slot()));
    if (proto.tiles() < 0 || proto.tiles() >= proto_.tile_lists_size()) {
      return InvalidArgument("tile list {} of {} does not exist", proto.tiles(),
                             proto_.tile_lists_size());
    }
    is_list_used_[proto.tiles()] = true;
    if (!IsWhole(proto.slot())) {
      return InvalidArgument("{} holds sums that are still owed", SlotName(proto.slot()));
    }
    if (out_.peers.contains(proto.channel())) return absl::OkStatus();
    return InvalidArgument("channel {} is not listed", proto.channel());
  }

  absl::Status ReadFree(const worker::Release& proto) {
    FreeInstruction free;
    for (const int slot : proto.slots()) {
      RETURN_IF_ERROR(CheckSlot(slot));
      free.slots.push_back(slot);
    }
    program().instructions.emplace_back(std::move(free));
    return absl::OkStatus();
  }

  bool IsWhole(int slot) const { return out_.program.slots[slot].sharding.partial.empty(); }
  void Fill(int slot) { out_.uses[slot].is_given = false; }

  absl::Status CheckThatAllIsUsed() const {
    for (int number = 0; number < proto_.programs_size(); ++number) {
      if (!has_run_[number]) return InvalidArgument("{} is never run", NameOfProgram(number));
    }
    for (size_t number = 0; number < is_list_used_.size(); ++number) {
      if (!is_list_used_[number]) return InvalidArgument("tile list {} is never used", number);
    }
    for (const auto& [number, peer] : out_.peers) {
      const auto found = channels_.find(number);
      if (found == channels_.end()) return InvalidArgument("channel {} is never used", number);
      const bool is_both = found->second.is_sent && found->second.is_received;
      if (is_both == (peer == open_.peer())) continue;
      return InvalidArgument("channel {} leads to peer {}, this one is {}, and it is {}", number,
                             peer, open_.peer(),
                             is_both ? "sent and received here" : "used in one direction only");
    }
    return absl::OkStatus();
  }

  // Plays the list without any values.
  absl::Status FollowSlots() {
    for (size_t slot = 0; slot < out_.uses.size(); ++slot) {
      SlotUse& use = out_.uses[slot];
      use.is_given = use.is_given && IsWhole(static_cast<int>(slot));
      use.is_needed = use.is_needed && use.is_given;
      const bool is_full = use.is_given || is_number_[slot];
      contents_.push_back(is_full ? Contents::kFull : Contents::kEmpty);
    }
    for (size_t number = 0; number < program().instructions.size(); ++number) {
      const absl::Status status =
          std::visit([&](const auto& instruction) { return Follow(instruction); },
                     program().instructions[number]);
      RETURN_IF_ERROR(WithContext(status, fmt::format("instruction {}", number)));
    }
    for (size_t slot = 0; slot < out_.uses.size(); ++slot) {
      out_.uses[slot].is_left =
          contents_[slot] == Contents::kFull && IsWhole(static_cast<int>(slot));
    }
    return absl::OkStatus();
  }

  absl::Status CheckFull(int slot) const {
    switch (contents_[slot]) {
      case Contents::kFull:
        return absl::OkStatus();
      case Contents::kEmpty:
        return InvalidArgument("reads {}, which is empty", SlotName(slot));
      case Contents::kGone:
        return InvalidArgument("reads {}, whose memory a result has taken", SlotName(slot));
    }
    MINKA_CHECK(false);
  }

  absl::Status FollowFill(int slot) {
    if (contents_[slot] == Contents::kFull) {
      return InvalidArgument("fills {}, which is full", SlotName(slot));
    }
    contents_[slot] = Contents::kFull;
    return absl::OkStatus();
  }

  absl::Status Follow(const RunInstruction& run) {
    const Module& module = program().programs[run.program].module;
    for (const int slot : run.arguments) RETURN_IF_ERROR(CheckFull(slot));
    for (const Alias& alias : module.aliases) {
      const int slot = run.arguments[alias.parameter];
      if (std::ranges::count(run.arguments, slot) > 1) {
        return InvalidArgument("result {} takes the memory of {}, which is two arguments",
                               alias.result, SlotName(slot));
      }
      if (is_number_[slot]) {
        return InvalidArgument("result {} takes the memory of {}, a number", alias.result,
                               SlotName(slot));
      }
      contents_[slot] = Contents::kGone;
    }
    for (const int slot : run.results) {
      const bool is_in_place =
          std::ranges::find(run.arguments, slot) != run.arguments.end() && !is_number_[slot];
      if (is_in_place) contents_[slot] = Contents::kGone;
      RETURN_IF_ERROR(FollowFill(slot));
    }
    return absl::OkStatus();
  }
  absl::Status Follow(const SendInstruction& send) {
    channels_[send.channel].on_its_way = program().slots[send.slot].shape;
    channels_[send.channel].sent_tiles = send.tiles;
    return CheckFull(send.slot);
  }
  absl::Status Follow(const ReceiveInstruction& receive) {
    if (out_.peers.at(receive.channel) != open_.peer()) return FollowFill(receive.slot);
    const std::optional<Shape>& sent = channels_[receive.channel].on_its_way;
    if (!sent) {
      return InvalidArgument("waits for channel {}, which this mesh sends later", receive.channel);
    }
    if (const Shape& shape = program().slots[receive.slot].shape; shape != *sent) {
      return InvalidArgument("{} is {}, but channel {} brings {}", SlotName(receive.slot),
                             ToString(shape), receive.channel, ToString(*sent));
    }
    const int sent_tiles = channels_[receive.channel].sent_tiles;
    if (!HaveSameBoxes(program().tile_lists[sent_tiles], program().tile_lists[receive.tiles])) {
      return InvalidArgument(
          "channel {} brings the boxes of tile list {}, expected are those of {}", receive.channel,
          sent_tiles, receive.tiles);
    }
    return FollowFill(receive.slot);
  }
  absl::Status Follow(const FreeInstruction& free) {
    for (const int slot : free.slots) {
      if (contents_[slot] == Contents::kEmpty) {
        return InvalidArgument("frees {}, which is empty", SlotName(slot));
      }
      if (is_number_[slot]) return InvalidArgument("frees {}, a number", SlotName(slot));
      contents_[slot] = Contents::kEmpty;
    }
    return absl::OkStatus();
  }

  const worker::MeshProgram& proto_;
  const worker::Open& open_;
  ReceivedProgram out_;
  std::vector<Shape> local_;            // by slot: on a device
  std::vector<bool> is_number_;         // by slot
  std::vector<Contents> contents_;      // by slot, as far as the list has been followed
  std::vector<bool> has_run_;           // by program
  std::vector<bool> is_list_used_;      // by tile list
  std::map<int, ChannelUse> channels_;  // by number
};

}  // namespace

std::map<int, int> PeersOf(const PipelineProgram& program, int mesh) {
  std::map<int, int> peers;
  for (size_t i = 0; i < program.channels.size(); ++i) {
    const Channel& channel = program.channels[i];
    if (channel.from.mesh == mesh) peers[static_cast<int>(i)] = channel.to.mesh;
    if (channel.to.mesh == mesh) peers[static_cast<int>(i)] = channel.from.mesh;
  }
  return peers;
}

worker::MeshProgram MeshProgramToProto(const MeshProgram& program,
                                       const std::map<int, int>& peers) {
  worker::MeshProgram proto;
  proto.set_mesh(program.mesh.ToString());
  for (const StageProgram& of_stage : program.programs) {
    worker::StageProgram& out = *proto.add_programs();
    out.set_name(ProgramName(of_stage));
    out.set_module(ExportHlo(of_stage.module));
  }
  for (const ArraySlot& slot : program.slots) {
    worker::Slot& out = *proto.add_slots();
    out.set_name(slot.name);
    out.set_shape(ToString(slot.shape));
    out.set_sharding(ToString(slot.sharding, program.mesh));
  }
  proto.mutable_numbers()->Assign(program.numbers.begin(), program.numbers.end());
  for (const PipelineInstruction& instruction : program.instructions) {
    *proto.add_instructions() = InstructionToProto(instruction);
  }
  for (const TileList& list : program.tile_lists) {
    *proto.add_tile_lists() = TileListToProto(list);
  }
  for (const auto& [number, peer] : peers) {
    worker::Channel& out = *proto.add_channels();
    out.set_number(number);
    out.set_peer(peer);
  }
  return proto;
}

absl::StatusOr<ReceivedProgram> MeshProgramFromProto(const worker::MeshProgram& proto,
                                                     const worker::Open& open) {
  absl::StatusOr<ReceivedProgram> received = ProgramReader(proto, open).Run();
  if (!received.ok()) return WithContext(received.status(), "mesh program");
  return received;
}

}  // namespace minka
