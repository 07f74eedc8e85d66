#include "minka/lowering/spmd.h"

#include <memory>
#include <optional>
#include <utility>

#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/ir/builder.h"
#include "minka/ir/micro_loop.h"
#include "minka/ir/simplify.h"
#include "minka/lowering/compiled_forms.h"
#include "minka/lowering/join_barriers.h"
#include "minka/lowering/local_operation.h"
#include "minka/lowering/local_writer.h"
#include "minka/lowering/release_operands.h"

namespace minka {
namespace {

// A value that goes through the loop over micro-batches.
struct Carried {
  Value initial;          // in front of the loop
  Value current;          // the body's parameter
  Value next;             // the body's result
  InstructionId id = -1;  // the sum or stack that it becomes
};

// Writes operations and collectives, each after what it reads; what runs once per micro-batch into
// the body of a loop, a computation that takes the number of the micro-batch, then what it reads
// and accumulates.
class Lowering {
 public:
  Lowering(const Module& module, const StagePlan& plan, Departures departures,
           const std::vector<ValueVersion>& kept)
      : stage_(module, plan),
        departures_(departures),
        kept_(kept),
        kept_slots_(kept.size()),
        target_(module.name),
        called_(module, target_),
        entry_(stage_, target_.Entry(), called_, departures,
               [](const ValueVersion& made) -> Value {
                 MINKA_CHECK(false, "nothing makes version {} of instruction {}", made.version,
                             made.value.instruction);
               }),
        scope_(&entry_) {}

  absl::StatusOr<SpmdProgram> Run() && {
    WriteParameters();
    std::vector<int> parts;
    for (int node = 0; node < stage_.num_nodes(); ++node) {
      parts.push_back(static_cast<int>(PartOfNode(node)));
    }
    for (const int node : stage_.Order(parts)) {
      const LoopPart part = PartOfNode(node);
      if (part == LoopPart::kInside && !body_) BeginLoop();
      if (part == LoopPart::kBehind && scope_ != &entry_) EndLoop();
      Write(node);
    }
    if (scope_ != &entry_) EndLoop();
    return std::move(*this).Finish();
  }

 private:
  const MicroLoop& loop() const { return stage_.loop(); }
  ComputationBuilder& builder() { return scope_->builder(); }

  LoopPart PartOfNode(int node) const {
    if (!stage_.IsInstruction(node)) {
      return PartOf(loop(), stage_.plan().reshards[stage_.list(node).front()]);
    }
    return loop().PartOf(node);
  }

  Carried& Carry(Value initial) {
    const Value parameter = builder().Parameter(entry_.builder().shape(initial),
                                                fmt::format("carried.{}", carried_.size()));
    return carried_.emplace_back(Carried{initial, parameter, parameter});
  }

  // The body reads what is outside as a parameter.
  void BeginLoop() {
    const ComputationBuilder body = target_.AddComputation("micro_batch");
    body_ = std::make_unique<LocalWriter>(
        stage_, body, called_, departures_,
        [this](const ValueVersion& made) { return Carry(entry_.Read(made)).current; });
    scope_ = body_.get();
    const Value first = entry_.builder().Scalar(ElementType::kS32, 0);
    index_ = Carry(first).current;
  }

  // Counts, closes the body and writes the loop.
  void EndLoop() {
    for (size_t i = 0; i < kept_.size(); ++i) {
      if (loop().IsTransient(kept_[i].value.instruction)) kept_slots_[i] = StackKept(kept_[i]);
    }
    ComputationBuilder& body = builder();
    carried_[0].next = body.Binary(Opcode::kAdd, index_, body.Scalar(ElementType::kS32, 1));
    std::vector<Value> results, operands;
    std::vector<Shape> shapes;
    for (const Carried& carried : carried_) {
      results.push_back(carried.next);
      operands.push_back(carried.initial);
      shapes.push_back(body.shape(carried.next));
    }
    body.SetResults(std::move(results));
    ComputationBuilder condition = target_.AddComputation("more_micro_batches");
    std::vector<Value> parameters;
    for (const Shape& shape : shapes) parameters.push_back(condition.Parameter(shape, ""));
    const Value limit =
        condition.Scalar(ElementType::kS32, static_cast<double>(loop().num_micro_batches));
    condition.SetResults(
        {condition.Compare(CompareAttributes::Direction::kLt, parameters[0], limit)});
    const Value loop =
        entry_.builder().Append({.opcode = Opcode::kWhile,
                                 .name = "micro_batches",
                                 .operands = std::move(operands),
                                 .results = std::move(shapes),
                                 .called = {target_.id(body), target_.id(condition)}});
    scope_ = &entry_;
    loop_instruction_ = loop.instruction;
    for (size_t i = 0; i < carried_.size(); ++i) {
      if (carried_[i].id < 0) continue;
      entry_.Set({{carried_[i].id}}, {loop.instruction, static_cast<int32_t>(i)});
    }
  }

  // Each micro-batch writes its own at its number. Returns the place among the carried.
  size_t StackKept(const ValueVersion& kept) {
    const Value value = scope_->Read(kept);
    Shape shape = builder().shape(value);
    shape.dims.insert(shape.dims.begin(), 1);
    const Value slice = builder().Reshape(value, shape.dims);
    std::vector<Value> starts(shape.rank(), scope_->position().Number(0));
    starts[0] = index_;
    shape.dims[0] = loop().num_micro_batches;
    Carried& carried = Carry(WriteZeros(entry_.builder(), shape));
    carried.next = builder().DynamicUpdateSlice(carried.current, slice, starts);
    return carried_.size() - 1;
  }

  // In order of their numbers, whatever their place in the source.
  void WriteParameters() {
    for (const InstructionId id : stage_.entry().parameters) {
      const ValueVersion made{{id}};
      Instruction parameter = stage_.instruction(id);
      parameter.results = {stage_.LocalShapeOf(made)};
      entry_.Set(made, entry_.builder().Append(std::move(parameter)));
      parameters_.push_back(stage_.ShardingOf(made));
    }
  }

  void Write(int node) {
    if (!stage_.IsInstruction(node)) return scope_->Write(node);
    if (stage_.instruction(node).opcode == Opcode::kParameter) return;
    if (loop().IsIndex(node)) return scope_->Set({{node}}, index_);
    const Accumulator* accumulator = loop().FindAccumulator(node);
    if (accumulator == nullptr) return scope_->Write(node);
    switch (accumulator->kind) {
      case Accumulator::Kind::kSum:
        return AddToSum(node);
      case Accumulator::Kind::kStack:
        return WriteStack(node);
    }
  }

  // Accumulators begin with zero on every device, partial ones too.
  void AddToSum(InstructionId id) {
    const Value part = scope_->Results(id)[0];
    Carried& carried = Carry(WriteZeros(entry_.builder(), builder().shape(part)));
    carried.id = id;
    carried.next = builder().Binary(Opcode::kAdd, carried.current, part);
  }

  // Operand 0 is what the stack begins with, made in front of the loop.
  void WriteStack(InstructionId id) {
    const Value current = Carry(entry_.Read(stage_.Operand(id, 0))).current;
    const size_t slot = carried_.size() - 1;
    const Value next = scope_->Results(id, current)[0];  // which may carry more
    carried_[slot].id = id;
    carried_[slot].next = next;
  }

  absl::StatusOr<SpmdProgram> Finish() && {
    SpmdProgram program;
    program.parameters = std::move(parameters_);
    std::vector<Value> results;
    for (int i = 0; i < static_cast<int>(stage_.entry().results.size()); ++i) {
      results.push_back(entry_.Read(stage_.Result(i)));
      program.results.push_back(stage_.ShardingOf(stage_.Result(i)));
    }
    for (size_t i = 0; i < kept_.size(); ++i) {
      Sharding& sharding = program.results.emplace_back(stage_.ShardingOf(kept_[i]));
      if (kept_slots_[i]) {
        sharding.dims.emplace(sharding.dims.begin());
        results.push_back({loop_instruction_, static_cast<int32_t>(*kept_slots_[i])});
      } else {
        results.push_back(entry_.Read(kept_[i]));
      }
    }
    entry_.builder().SetResults(std::move(results));
    for (const Alias& alias : stage_.module().aliases) target_.AddAlias(alias);
    RETURN_IF_ERROR(FinishLocal(std::move(target_), departures_, program));
    return program;
  }

  const PlannedStage stage_;
  const Departures departures_;
  const std::vector<ValueVersion>& kept_;
  std::vector<std::optional<size_t>> kept_slots_;  // among the carried, of stacks
  ModuleBuilder target_;
  CalledComputations called_;
  LocalWriter entry_;
  std::unique_ptr<LocalWriter> body_;    // of the loop over micro-batches, once it has begun
  LocalWriter* scope_;                   // what is written now
  Value index_;                          // of the micro-batch, in the body
  InstructionId loop_instruction_ = -1;  // in the entry, once it is closed
  std::vector<Carried> carried_;
  std::vector<Sharding> parameters_;
};

}  // namespace

absl::Status FinishLocal(ModuleBuilder target, Departures departures, SpmdProgram& program) {
  absl::StatusOr<Module> finished = std::move(target).Finish();
  if (!finished.ok()) return WithContext(finished.status(), "local program");
  Module module = EliminateDeadCode(*std::move(finished));
  if (departures.contains(Departure::kReleasedOperands)) module = ReleaseOperands(module);
  JoinedBarriers joined = JoinBarriers(std::move(module));
  program.notes = NotesOnBarriers(joined.apart);
  // Last, because what releases operands looks for reductions that read them.
  program.module = CompiledForms(std::move(joined.module), departures);
  return absl::OkStatus();
}

MeshSignature SignatureOf(const Module& module, const SpmdProgram& program) {
  return SignatureOf(module, program.parameters, program.results);
}

absl::StatusOr<SpmdProgram> LowerSpmd(const Module& module, const StagePlan& stage,
                                      Platform platform, const std::vector<ValueVersion>& kept) {
  return Lowering(module, stage, Departures::Of(platform), kept).Run();
}

}  // namespace minka
