#include "minka/lowering/emit.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <ranges>
#include <set>
#include <utility>

#include "minka/base/check.h"
#include "minka/ir/micro_loop.h"
#include "minka/lowering/planned_stage.h"

namespace minka {
namespace {

constexpr int kOnce = -1;

ProgramKind KindOf(TaskKind kind) {
  switch (kind) {
    case TaskKind::kForward:
      return ProgramKind::kForward;
    case TaskKind::kBackward:
      return ProgramKind::kBackward;
    case TaskKind::kWeightGradient:
      return ProgramKind::kWeightGradient;
    case TaskKind::kApply:
      return ProgramKind::kApply;
  }
  MINKA_CHECK(false);
}

// What is known of the values of one stage.
struct StageValues {
  StageValues(const StageStep& stage, const StagePlan& plan,
              const std::vector<TaskProgram>& programs)
      : planned(stage.step.module, plan) {
    const MicroLoop& loop = planned.loop();
    for (InstructionId id = 0; id < planned.entry().num_instructions(); ++id) {
      const bool is_given =
          planned.instruction(id).opcode == Opcode::kParameter || loop.IsIndex(id);
      if (is_given && loop.IsTransient(id)) per_micro_batch.insert({{id}});
      if (loop.LeavesLoop(id)) sums.insert({{id}});
    }
    if (!loop.exists()) return;
    for (const TaskProgram& program : programs) {
      if (!IsPerMicroBatch(program.task.kind)) continue;
      for (const ValueVersion& made : program.results) {
        if (!sums.contains(made)) per_micro_batch.insert(made);
      }
    }
  }

  bool IsIndex(const ValueVersion& made) const {
    return planned.loop().IsIndex(made.value.instruction);
  }

  PlannedStage planned;
  std::set<ValueVersion> per_micro_batch;  // one for each
  std::set<ValueVersion> sums;             // sums and stacks over micro-batches
};

class Emitter {
 public:
  Emitter(const Schedule& schedule, const StagedStep& staged, std::span<const StagePlan> plans,
          std::span<const std::vector<TaskProgram>> programs,
          std::span<const std::vector<ValueVersion>> kept)
      : schedule_(schedule), staged_(staged), programs_(programs), kept_(kept) {
    for (size_t stage = 0; stage < staged.stages.size(); ++stage) {
      values_.emplace_back(staged.stages[stage], plans[stage], programs[stage]);
    }
    out_.meshes.resize(schedule.shape.num_meshes);
    for (int stage = 0; stage < schedule.num_stages(); ++stage) {
      MeshOf(stage).mesh = plans[stage].mesh;
    }
    number_of_program_.resize(staged.stages.size());
  }

  PipelineProgram Run() && {
    PlaceParameters();
    FindSends();
    for (mesh_ = 0; mesh_ < schedule_.shape.num_meshes; ++mesh_) EmitMesh();
    for (size_t i = 0; i < staged_.results.size(); ++i) {
      const StagePort& port = staged_.results[i];
      out_.results.push_back(Slot(port.stage, ResultOf(port), kOnce));
    }
    KeepValues();
    ConnectChannels();
    SetTiles(out_);
    for (mesh_ = 0; mesh_ < schedule_.shape.num_meshes; ++mesh_) FreeWhatIsRead();
    return std::move(out_);
  }

 private:
  MeshProgram& MeshOf(int stage) { return out_.meshes[schedule_.MeshOf(stage)]; }
  MeshProgram& mesh() { return out_.meshes[mesh_]; }

  ValueVersion ParameterOf(const StagePort& port) const {
    return {{values_[port.stage].planned.entry().parameters[port.number]}};
  }
  ValueVersion ResultOf(const StagePort& port) const {
    return values_[port.stage].planned.Result(port.number);
  }

  MeshSlot Slot(int stage, const ValueVersion& made, int micro_batch) {
    const StageValues& values = values_[stage];
    const int number = values.per_micro_batch.contains(made) ? std::max(micro_batch, 0) : kOnce;
    const int on_mesh = schedule_.MeshOf(stage);
    if (values.IsIndex(made)) return {on_mesh, NumberSlot(stage, made, number)};
    const auto [found, is_new] = slots_.try_emplace({stage, made, number});
    if (is_new) found->second = AddSlot(stage, made);
    return {on_mesh, found->second};
  }

  int AddSlot(int stage, const ValueVersion& made) {
    const PlannedStage& planned = values_[stage].planned;
    std::vector<ArraySlot>& slots = MeshOf(stage).slots;
    slots.push_back({.name = planned.instruction(made.value.instruction).name,
                     .shape = planned.entry().shape(made.value),
                     .sharding = planned.ShardingOf(made)});
    return static_cast<int>(slots.size()) - 1;
  }

  int NumberSlot(int stage, const ValueVersion& index, int number) {
    std::vector<int>& numbers = MeshOf(stage).numbers;
    while (static_cast<int>(numbers.size()) <= number) numbers.push_back(AddSlot(stage, index));
    return numbers[number];
  }

  void PlaceParameters() {
    for (const std::vector<StagePort>& ports : staged_.parameters) {
      std::vector<MeshSlot>& slots = out_.parameters.emplace_back();
      for (const StagePort& port : ports) {
        slots.push_back(Slot(port.stage, ParameterOf(port), kOnce));
      }
    }
  }

  // By stage and value: borders that it goes out by; by parameter: the one it comes in by.
  void FindSends() {
    for (size_t border = 0; border < staged_.borders.size(); ++border) {
      const StagePort& from = staged_.borders[border].from;
      sends_[{from.stage, ResultOf(from)}].push_back(static_cast<int>(border));
      for (const StagePort& to : staged_.borders[border].to) {
        receives_[{to.stage, ParameterOf(to)}] = static_cast<int>(border);
      }
    }
  }

  void KeepValues() {
    for (int stage = 0; stage < static_cast<int>(kept_.size()); ++stage) {
      for (const ValueVersion& made : kept_[stage]) {
        const bool is_one_of_many =
            values_[stage].planned.loop().IsTransient(made.value.instruction);
        const int count = is_one_of_many ? schedule_.shape.num_micro_batches : 1;
        for (int i = 0; i < count; ++i) out_.results.push_back(Slot(stage, made, i));
      }
    }
  }

  void EmitMesh() {
    std::vector<int> stages;
    for (int stage = mesh_; stage < schedule_.num_stages(); stage += schedule_.shape.num_meshes) {
      stages.push_back(stage);
    }
    for (const int stage : stages) SendGiven(stage, /*sums=*/false);
    RunPhases(stages, ProgramKind::kFront);
    for (const Task& task : schedule_.tasks[mesh_]) {
      if (task.kind != TaskKind::kApply) RunTask(task.stage, {KindOf(task.kind)}, task.micro_batch);
    }
    for (const int stage : stages) SendGiven(stage, /*sums=*/true);
    RunPhases(stages, ProgramKind::kApply);
  }

  // What is there without a program that made it last.
  void SendGiven(int stage, bool sums) {
    const StageValues& values = values_[stage];
    for (const auto& [key, borders] : sends_) {
      const auto& [from, made] = key;
      const bool is_parameter =
          made.version == 0 &&
          values_[from].planned.instruction(made.value.instruction).opcode == Opcode::kParameter;
      const bool is_given = sums ? values.sums.contains(made) : is_parameter;
      if (from == stage && is_given) Send(stage, made, kOnce);
    }
  }

  // All stages of the mesh, phase by phase.
  void RunPhases(const std::vector<int>& stages, ProgramKind kind) {
    int num_phases = 0;
    for (const int stage : stages) {
      for (const TaskProgram& program : programs_[stage]) {
        if (program.task.kind == kind) num_phases = std::max(num_phases, program.task.phase + 1);
      }
    }
    for (int phase = 0; phase < num_phases; ++phase) {
      for (const int stage : stages) RunTask(stage, {kind, phase}, kOnce);
    }
  }

  void RunTask(int stage, const ProgramTask& task, int micro_batch) {
    const auto program = std::ranges::find(programs_[stage], task, &TaskProgram::task);
    if (program == programs_[stage].end()) return;
    RunInstruction run{.program = NumberOf(stage, *program), .micro_batch = micro_batch};
    for (const ValueVersion& taken : program->parameters) {
      Receive(stage, taken, micro_batch);
      run.arguments.push_back(Slot(stage, taken, micro_batch).slot);
    }
    for (const ValueVersion& made : program->results) {
      run.results.push_back(Slot(stage, made, micro_batch).slot);
    }
    mesh().instructions.emplace_back(std::move(run));
    for (const ValueVersion& made : program->results) {
      if (!values_[stage].sums.contains(made)) Send(stage, made, micro_batch);
    }
  }

  int NumberOf(int stage, const TaskProgram& program) {
    const auto [found, is_new] = number_of_program_[stage].try_emplace(program.task);
    if (!is_new) return found->second;
    found->second = static_cast<int>(mesh().programs.size());
    mesh().programs.push_back({.stage = stage,
                               .task = program.task,
                               .module = program.program.module,
                               .signature = SignatureOfTask(stage, program)});
    return found->second;
  }

  MeshSignature SignatureOfTask(int stage, const TaskProgram& program) const {
    const PlannedStage& planned = values_[stage].planned;
    MeshSignature signature{.parameter_shardings = program.program.parameters,
                            .result_shardings = program.program.results};
    for (const ValueVersion& taken : program.parameters) {
      signature.parameters.push_back(planned.entry().shape(taken.value));
    }
    for (const ValueVersion& made : program.results) {
      signature.results.push_back(planned.entry().shape(made.value));
    }
    return signature;
  }

  struct Message {
    int border = 0;
    int micro_batch = kOnce;
    StagePort to;
    auto operator<=>(const Message&) const = default;
  };

  int ChannelOf(const Message& message) {
    const auto [found, is_new] = channels_.try_emplace(message, static_cast<int>(channels_.size()));
    return found->second;
  }

  Message MessageFor(int border, const StagePort& to, int micro_batch) const {
    const bool is_per_micro_batch = staged_.borders[border].per_micro_batch;
    return {border, is_per_micro_batch ? micro_batch : kOnce, to};
  }

  void Send(int stage, const ValueVersion& made, int micro_batch) {
    const auto found = sends_.find({stage, made});
    if (found == sends_.end()) return;
    for (const int border : found->second) {
      for (const StagePort& to : staged_.borders[border].to) {
        const int channel = ChannelOf(MessageFor(border, to, micro_batch));
        mesh().instructions.emplace_back(
            SendInstruction{Slot(stage, made, micro_batch).slot, channel});
      }
    }
  }

  void Receive(int stage, const ValueVersion& taken, int micro_batch) {
    const auto found = receives_.find({stage, taken});
    if (found == receives_.end()) return;
    const std::vector<StagePort>& readers = staged_.borders[found->second].to;
    const auto to = std::ranges::find(readers, stage, &StagePort::stage);
    const Message message = MessageFor(found->second, *to, micro_batch);
    if (!received_.insert(message).second) return;
    mesh().instructions.emplace_back(
        ReceiveInstruction{Slot(stage, taken, micro_batch).slot, ChannelOf(message)});
  }

  void ConnectChannels() {
    out_.channels.resize(channels_.size());
    for (int mesh = 0; mesh < static_cast<int>(out_.meshes.size()); ++mesh) {
      for (const PipelineInstruction& instruction : out_.meshes[mesh].instructions) {
        if (const auto* send = std::get_if<SendInstruction>(&instruction)) {
          out_.channels[send->channel].from = {mesh, send->slot};
        } else if (const auto* receive = std::get_if<ReceiveInstruction>(&instruction)) {
          out_.channels[receive->channel].to = {mesh, receive->slot};
        }
      }
    }
  }

  static std::vector<int> SlotsOf(const PipelineInstruction& instruction) {
    if (const auto* run = std::get_if<RunInstruction>(&instruction)) {
      std::vector<int> slots = run->arguments;
      slots.insert(slots.end(), run->results.begin(), run->results.end());
      return slots;
    }
    if (const auto* send = std::get_if<SendInstruction>(&instruction)) return {send->slot};
    if (const auto* receive = std::get_if<ReceiveInstruction>(&instruction)) return {receive->slot};
    return {};
  }

  // Behind the last instruction that names a slot; parameters, numbers and results stay.
  void FreeWhatIsRead() {
    std::set<int> done(mesh().numbers.begin(), mesh().numbers.end());
    for (const std::vector<MeshSlot>& slots : out_.parameters) {
      for (const MeshSlot& at : slots) {
        if (at.mesh == mesh_) done.insert(at.slot);
      }
    }
    for (const MeshSlot& at : out_.results) {
      if (at.mesh == mesh_) done.insert(at.slot);
    }
    std::vector<PipelineInstruction> backwards;
    for (auto& instruction : std::views::reverse(mesh().instructions)) {
      FreeInstruction free;
      for (const int slot : SlotsOf(instruction)) {
        if (done.insert(slot).second) free.slots.push_back(slot);
      }
      if (!free.slots.empty()) backwards.emplace_back(std::move(free));
      backwards.push_back(std::move(instruction));
    }
    mesh().instructions.assign(std::make_move_iterator(backwards.rbegin()),
                               std::make_move_iterator(backwards.rend()));
  }

  struct SlotKey {
    int stage = 0;
    ValueVersion made;
    int micro_batch = kOnce;
    auto operator<=>(const SlotKey&) const = default;
  };
  using StageValue = std::pair<int, ValueVersion>;

  const Schedule& schedule_;
  const StagedStep& staged_;
  const std::span<const std::vector<TaskProgram>> programs_;
  const std::span<const std::vector<ValueVersion>> kept_;  // by stage
  std::vector<StageValues> values_;
  PipelineProgram out_;
  int mesh_ = 0;  // that is written now
  std::map<SlotKey, int> slots_;
  std::vector<std::map<ProgramTask, int>> number_of_program_;  // by stage
  std::map<StageValue, std::vector<int>> sends_;               // -> borders
  std::map<StageValue, int> receives_;                         // -> border
  std::map<Message, int> channels_;
  std::set<Message> received_;
};

}  // namespace

PipelineProgram Emit(const Schedule& schedule, const StagedStep& staged,
                     std::span<const StagePlan> plans,
                     std::span<const std::vector<TaskProgram>> programs,
                     std::span<const std::vector<ValueVersion>> kept) {
  return Emitter(schedule, staged, plans, programs, kept).Run();
}

}  // namespace minka
