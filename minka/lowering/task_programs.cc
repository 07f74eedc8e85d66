#include "minka/lowering/task_programs.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/ir/builder.h"
#include "minka/lowering/local_writer.h"

namespace minka {
namespace {

// One program under construction.
class TaskWriter {
 public:
  TaskWriter(const PlannedStage& stage, const ProgramTask& task, Departures departures)
      : stage_(stage),
        departures_(departures),
        target_(fmt::format("{}.{}", stage.module().name, ToString(task))),
        called_(stage.module(), target_),
        writer_(stage, target_.Entry(), called_, departures,
                [this](const ValueVersion& made) { return Take(made); }) {
    out_.task = task;
  }

  LocalWriter& writer() { return writer_; }

  // From another program, or from outside.
  Value Take(const ValueVersion& made) {
    Instruction parameter{
        .opcode = Opcode::kParameter,
        .name = fmt::format("{}.{}.{}", stage_.instruction(made.value.instruction).name,
                            made.value.result, made.version),
        .results = {stage_.LocalShapeOf(made)},
        .attributes = ParameterAttributes{.number = static_cast<int64_t>(out_.parameters.size())}};
    out_.parameters.push_back(made);
    out_.program.parameters.push_back(stage_.ShardingOf(made));
    parameter_shapes_.push_back(parameter.shape());
    return writer_.builder().Append(std::move(parameter));
  }

  void Give(const ValueVersion& made, Value value) {
    out_.results.push_back(made);
    out_.program.results.push_back(stage_.ShardingOf(made));
    results_.push_back(value);
  }

  // Writes the result into the parameter's memory.
  void Reuse(const ValueVersion& result, const ValueVersion& parameter) {
    target_.AddAlias({.result = NumberIn(out_.results, result),
                      .parameter = NumberIn(out_.parameters, parameter)});
  }

  void AddTaken(std::set<ValueVersion>& taken) const {
    taken.insert(out_.parameters.begin(), out_.parameters.end());
  }

  bool Takes(const ValueVersion& made) const {
    return std::ranges::find(out_.parameters, made) != out_.parameters.end();
  }

  // What it begins with is made here.
  void BeginSum(InstructionId id) {
    const ValueVersion sum{{id}};
    Give(sum, WriteZeros(writer_.builder(), stage_.LocalShapeOf(sum)));
  }

  void AddToSum(InstructionId id) {
    const ValueVersion sum{{id}};
    const Value part = writer_.Results(id)[0];
    const Value current = Take(sum);
    Give(sum, writer_.builder().Binary(Opcode::kAdd, current, part));
    Reuse(sum, sum);
  }

  void AddToStack(InstructionId id) {
    const ValueVersion stack{{id}};
    const Value current = Take(stack);
    Give(stack, writer_.Results(id, current)[0]);
    Reuse(stack, stack);
  }

  TaskSignature Signature() && {
    return {.task = out_.task,
            .parameters = std::move(out_.parameters),
            .results = std::move(out_.results),
            .parameter_shapes = std::move(parameter_shapes_)};
  }

  absl::StatusOr<TaskProgram> Finish() && {
    writer_.builder().SetResults(std::move(results_));
    RETURN_IF_ERROR(WithContext(FinishLocal(std::move(target_), departures_, out_.program),
                                ToString(out_.task)));
    return std::move(out_);
  }

 private:
  static int NumberIn(const std::vector<ValueVersion>& values, const ValueVersion& value) {
    return static_cast<int>(std::ranges::find(values, value) - values.begin());
  }

  const PlannedStage& stage_;
  const Departures departures_;
  ModuleBuilder target_;
  CalledComputations called_;
  LocalWriter writer_;
  std::vector<Value> results_;
  std::vector<Shape> parameter_shapes_;
  TaskProgram out_;
};

// What belongs to which program.
class TaskLowering {
 public:
  TaskLowering(const StageStep& stage, const std::vector<ProgramTask>& tasks, const StagePlan& plan,
               Departures departures, const std::vector<ValueVersion>& kept)
      : tasks_(tasks),
        departures_(departures),
        num_own_results_(stage.num_own_results),
        kept_(kept),
        stage_(stage.step.module, plan) {
    FindTasksOfReshards();
    std::set<ProgramTask> known(tasks_.begin(), tasks_.end());
    known.insert(task_of_reshard_.begin(), task_of_reshard_.end());
    if (loop().exists()) known.insert({ProgramKind::kFront});
    numbered_.assign(known.begin(), known.end());
    std::vector<int> part_of_reshard;
    for (const ProgramTask& task : task_of_reshard_) part_of_reshard.push_back(NumberOf(task));
    stage_.KeepApart(part_of_reshard);
  }

  absl::StatusOr<std::vector<TaskProgram>> Run() && {
    WriteAll();
    std::vector<TaskProgram> programs;
    for (std::unique_ptr<TaskWriter>& writer : programs_) {
      ASSIGN_OR_RETURN(TaskProgram program, std::move(*writer).Finish());
      if (!program.results.empty()) programs.push_back(std::move(program));
    }
    return programs;
  }

  std::vector<TaskSignature> Signatures() && {
    WriteAll();
    std::vector<TaskSignature> signatures;
    for (std::unique_ptr<TaskWriter>& writer : programs_) {
      TaskSignature signature = std::move(*writer).Signature();
      if (!signature.results.empty()) signatures.push_back(std::move(signature));
    }
    return signatures;
  }

 private:
  void WriteAll() {
    for (const ProgramTask& task : numbered_) {
      programs_.push_back(std::make_unique<TaskWriter>(stage_, task, departures_));
    }
    std::vector<int> parts;
    for (int node = 0; node < stage_.num_nodes(); ++node) {
      parts.push_back(NumberOf(TaskOfNode(node)));
    }
    for (const int node : stage_.Order(parts)) Write(node, *programs_[parts[node]]);
    GiveWhatIsRead();
  }

  const MicroLoop& loop() const { return stage_.loop(); }

  int NumberOf(const ProgramTask& task) const {
    return static_cast<int>(std::ranges::lower_bound(numbered_, task) - numbered_.begin());
  }

  // From where on a value is there.
  ProgramTask TaskOf(const ValueVersion& made) const {
    if (made.version > 0) return task_of_reshard_[made.version - 1];
    const InstructionId id = made.value.instruction;
    if (loop().LeavesLoop(id)) return {ProgramKind::kApply};
    const bool is_parameter = stage_.instruction(id).opcode == Opcode::kParameter;
    return is_parameter && !loop().IsTransient(id) ? ProgramTask{ProgramKind::kFront} : tasks_[id];
  }

  // Where a version is made: by its first reader, once where the plan makes it once, and not before
  // what it is made of.
  void FindTasksOfReshards() {
    const std::vector<Reshard>& reshards = stage_.plan().reshards;
    std::vector<std::optional<ProgramTask>> first_read(reshards.size());
    const auto read = [&](const ValueVersion& made, const ProgramTask& task) {
      if (made.version == 0) return;
      std::optional<ProgramTask>& first = first_read[made.version - 1];
      first = first ? std::min(*first, task) : task;
    };
    for (InstructionId id = 0; id < stage_.entry().num_instructions(); ++id) {
      for (int i = 0; i < static_cast<int>(stage_.instruction(id).operands.size()); ++i) {
        read(stage_.Operand(id, i), tasks_[id]);
      }
    }
    // What others wait for is made as soon as it can be.
    for (int i = 0; i < static_cast<int>(stage_.entry().results.size()); ++i) {
      read(stage_.Result(i), {ProgramKind::kFront});
    }
    for (int i = static_cast<int>(reshards.size()) - 1; i >= 0; --i) {
      if (first_read[i]) read(stage_.SourceOf(i), *first_read[i]);
    }
    for (size_t i = 0; i < reshards.size(); ++i) {
      const ValueVersion source = stage_.SourceOf(static_cast<int>(i));
      const ProgramTask made = TaskOf(source);
      const bool is_once = PartOf(loop(), reshards[i]) == LoopPart::kFront;
      task_of_reshard_.push_back(is_once ? made : std::max(made, first_read[i].value_or(made)));
    }
  }

  ProgramTask TaskOfNode(int node) const {
    return stage_.IsInstruction(node) ? tasks_[node] : task_of_reshard_[stage_.list(node).front()];
  }

  void Write(int node, TaskWriter& program) {
    if (!stage_.IsInstruction(node)) return program.writer().Write(node);
    if (stage_.instruction(node).opcode == Opcode::kParameter) return;
    if (loop().IsIndex(node)) return;  // given from outside
    const Accumulator* accumulator = loop().FindAccumulator(node);
    if (accumulator == nullptr) return program.writer().Write(node);
    switch (accumulator->kind) {
      case Accumulator::Kind::kSum:
        Front().BeginSum(node);
        return program.AddToSum(node);
      case Accumulator::Kind::kStack: {
        const ValueVersion begin = stage_.Operand(node, 0);
        Front().Give({{node}}, Front().writer().Read(begin));
        return program.AddToStack(node);
      }
    }
  }

  TaskWriter& Front() { return *programs_[NumberOf({ProgramKind::kFront})]; }

  // Is it there without any program: a parameter of the stage, the index, or what adds up?
  bool IsGiven(const ValueVersion& made) const {
    const InstructionId id = made.value.instruction;
    return made.version == 0 && (stage_.instruction(id).opcode == Opcode::kParameter ||
                                 loop().IsIndex(id) || loop().LeavesLoop(id));
  }

  // Results of the stage, and what other programs take.
  void GiveWhatIsRead() {
    std::set<ValueVersion> wanted(kept_.begin(), kept_.end());
    for (int i = 0; i < static_cast<int>(stage_.entry().results.size()); ++i) {
      wanted.insert(stage_.Result(i));
    }
    for (const std::unique_ptr<TaskWriter>& program : programs_) program->AddTaken(wanted);
    for (const ValueVersion& made : wanted) {
      if (IsGiven(made)) continue;
      TaskWriter& maker = *programs_[NumberOf(TaskOf(made))];
      maker.Give(made, maker.writer().Read(made));
    }
    ReuseState();
  }

  bool IsOwnResult(const ValueVersion& made) const {
    for (int i = 0; i < num_own_results_; ++i) {
      if (stage_.Result(i) == made) return true;
    }
    return false;
  }

  // New state is written where the state was that it replaces, if nothing reads that later (it is
  // sent before). What replaces two is one value, in the memory of the first.
  void ReuseState() {
    std::set<ValueVersion> placed;
    for (const Alias& alias : stage_.module().aliases) {
      const ValueVersion state{{stage_.entry().parameters[alias.parameter]}};
      const ValueVersion next = stage_.Result(alias.result);
      if (IsGiven(next) || stage_.ShardingOf(state) != stage_.ShardingOf(next)) continue;
      if (IsOwnResult(state)) continue;
      const int maker = NumberOf(TaskOf(next));
      const bool is_last = std::none_of(programs_.begin() + maker + 1, programs_.end(),
                                        [&](const auto& later) { return later->Takes(state); });
      if (!is_last || !programs_[maker]->Takes(state) || !placed.insert(next).second) continue;
      programs_[maker]->Reuse(next, state);
    }
  }

  const std::vector<ProgramTask>& tasks_;
  const Departures departures_;
  const int num_own_results_;
  const std::vector<ValueVersion>& kept_;
  PlannedStage stage_;
  std::vector<ProgramTask> task_of_reshard_;
  std::vector<ProgramTask> numbered_;  // ascending
  std::vector<std::unique_ptr<TaskWriter>> programs_;
};

}  // namespace

absl::StatusOr<std::vector<TaskProgram>> LowerTasks(const StageStep& stage, const StagePlan& plan,
                                                    Platform platform,
                                                    const std::vector<ValueVersion>& kept) {
  return TaskLowering(stage, stage.tasks, plan, Departures::Of(platform), kept).Run();
}

std::vector<TaskSignature> SignaturesOfTasks(const StageStep& stage,
                                             const std::vector<ProgramTask>& tasks,
                                             const StagePlan& plan, Platform platform) {
  return TaskLowering(stage, tasks, plan, Departures::Of(platform), /*kept=*/{}).Signatures();
}

}  // namespace minka
