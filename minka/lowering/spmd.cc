#include "minka/lowering/spmd.h"

#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <utility>

#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/ir/builder.h"
#include "minka/ir/micro_loop.h"
#include "minka/ir/simplify.h"
#include "minka/lowering/compiled_forms.h"
#include "minka/lowering/join_barriers.h"
#include "minka/lowering/local_operation.h"
#include "minka/lowering/release_operands.h"
#include "minka/lowering/reshard_steps.h"
#include "minka/plan/combine.h"

namespace minka {
namespace {

// A computation under construction with what exists in it.
struct Scope {
  Scope(ComputationBuilder builder, const Mesh& mesh, size_t num_instructions, size_t num_reshards)
      : position(builder, mesh), originals(num_instructions), versions(num_reshards) {}

  DevicePosition position;
  std::vector<std::vector<Value>> originals;  // version 0 by instruction and result
  std::vector<Value> versions;                // by reshard
  std::map<Value, Value> barriers;            // the last one that isolates a value
};

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
  Lowering(const Module& module, const StagePlan& stage, const std::vector<ValueVersion>& kept)
      : module_(module),
        computation_(module.entry_computation()),
        stage_(stage),
        kept_(kept),
        kept_slots_(kept.size()),
        target_(module.name),
        loop_(FindMicroLoop(module)),
        entry_(target_.Entry(), stage.mesh, computation_.instructions.size(),
               stage.reshards.size()),
        scope_(&entry_),
        called_(module, target_),
        lists_(LegalCombineGroups(module, stage)) {
    for (InstructionId id = 0; id < computation_.num_instructions(); ++id) {
      rules_.push_back(RuleFor(module, computation_, id));
    }
  }

  absl::StatusOr<SpmdProgram> Run() && {
    WriteParameters();
    for (const int node : Order()) {
      const LoopPart part = PartOfNode(node);
      if (part == LoopPart::kInside && !body_) BeginLoop();
      if (part == LoopPart::kBehind && scope_ != &entry_) EndLoop();
      if (node < computation_.num_instructions()) {
        WriteOperation(node);
      } else {
        WriteReshards(lists_[node - computation_.num_instructions()]);
      }
    }
    if (scope_ != &entry_) EndLoop();
    return std::move(*this).Finish();
  }

 private:
  const Instruction& instruction(InstructionId id) const { return computation_.instructions[id]; }

  static Value& Slot(Scope& scope, Value value, int version) {
    return version == 0 ? scope.originals[value.instruction][value.result]
                        : scope.versions[version - 1];
  }

  bool Exists(Scope& scope, Value value, int version) const {
    if (version > 0) return scope.versions[version - 1].instruction >= 0;
    return !scope.originals[value.instruction].empty() &&
           Slot(scope, value, version).instruction >= 0;
  }

  // The body reads what is outside as a parameter.
  Value Read(Value value, int version) {
    if (scope_ == &entry_ || Exists(*scope_, value, version)) return Slot(*scope_, value, version);
    std::vector<Value>& results = scope_->originals[value.instruction];
    results.resize(instruction(value.instruction).results.size());
    return Slot(*scope_, value, version) = Carry(Slot(entry_, value, version)).current;
  }

  Carried& Carry(Value initial) {
    const Value parameter = position().builder().Parameter(
        entry_.position.builder().shape(initial), fmt::format("carried.{}", carried_.size()));
    return carried_.emplace_back(Carried{initial, parameter, parameter});
  }

  DevicePosition& position() { return scope_->position; }

  LoopPart PartOfNode(int node) const {
    const int num_instructions = computation_.num_instructions();
    if (node >= num_instructions) {
      return PartOf(loop_, stage_.reshards[lists_[node - num_instructions].front()]);
    }
    if (loop_.IsInside(node)) return LoopPart::kInside;
    return loop_.exists() && node < loop_.begin ? LoopPart::kFront : LoopPart::kBehind;
  }

  void BeginLoop() {
    const ComputationBuilder body = target_.AddComputation("micro_batch");
    body_ = std::make_unique<Scope>(body, stage_.mesh, computation_.instructions.size(),
                                    stage_.reshards.size());
    scope_ = body_.get();
    const Value first = entry_.position.builder().Scalar(ElementType::kS32, 0);
    index_ = Carry(first).current;
  }

  // Counts, closes the body and writes the loop.
  void EndLoop() {
    for (size_t i = 0; i < kept_.size(); ++i) {
      if (loop_.IsTransient(kept_[i].value.instruction)) kept_slots_[i] = StackKept(kept_[i]);
    }
    ComputationBuilder& body = position().builder();
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
        condition.Scalar(ElementType::kS32, static_cast<double>(loop_.num_micro_batches));
    condition.SetResults(
        {condition.Compare(CompareAttributes::Direction::kLt, parameters[0], limit)});
    const Value loop =
        entry_.position.builder().Append({.opcode = Opcode::kWhile,
                                          .name = "micro_batches",
                                          .operands = std::move(operands),
                                          .results = std::move(shapes),
                                          .called = {target_.id(body), target_.id(condition)}});
    scope_ = &entry_;
    loop_instruction_ = loop.instruction;
    for (size_t i = 0; i < carried_.size(); ++i) {
      if (carried_[i].id < 0) continue;
      entry_.originals[carried_[i].id] = {{loop.instruction, static_cast<int32_t>(i)}};
    }
  }

  // Each micro-batch writes its own at its number. Returns the place among the carried.
  size_t StackKept(const ValueVersion& kept) {
    const Value value = Read(kept.value, kept.version);
    Shape shape = position().builder().shape(value);
    shape.dims.insert(shape.dims.begin(), 1);
    const Value slice = position().builder().Reshape(value, shape.dims);
    std::vector<Value> starts(shape.rank(), position().Number(0));
    starts[0] = index_;
    shape.dims[0] = loop_.num_micro_batches;
    Carried& carried = Carry(Zeros(shape));
    carried.next = position().builder().DynamicUpdateSlice(carried.current, slice, starts);
    return carried_.size() - 1;
  }

  // In front of the loop.
  Value Zeros(const Shape& shape) {
    ComputationBuilder& outside = entry_.position.builder();
    const Value zero = outside.Scalar(shape.type, 0);
    return shape.rank() > 0 ? outside.Broadcast(zero, shape.dims, {}) : zero;
  }

  // In order of their numbers, whatever their place in the source.
  void WriteParameters() {
    for (const InstructionId id : computation_.parameters) {
      const Sharding sharding = ResultSharding(rules_[id], stage_.ops[id].strategy, 0);
      const Shape shape = LocalShape(instruction(id).shape(), sharding, stage_.mesh);
      Instruction parameter = instruction(id);
      parameter.results = {shape};
      entry_.originals[id] = {entry_.position.builder().Append(std::move(parameter))};
      parameters_.push_back(sharding);
    }
  }

  struct Place {
    LoopPart part = LoopPart::kBehind;
    int number = 0;
    auto operator<=>(const Place&) const = default;
  };

  // Part by part; instructions, then lists, by first place in the source among those that are
  // ready: combined collectives wait for all that they read, and their readers for them.
  std::vector<int> Order() const {
    const int num_instructions = computation_.num_instructions();
    const int num_nodes = num_instructions + static_cast<int>(lists_.size());
    std::vector<int> node_of_reshard(stage_.reshards.size(), -1);
    std::vector<Place> place(num_nodes);
    for (int id = 0; id < num_instructions; ++id) place[id] = {PartOfNode(id), 2 * id + 1};
    for (size_t list = 0; list < lists_.size(); ++list) {
      const int node = num_instructions + static_cast<int>(list);
      place[node] = {PartOfNode(node), 2 * stage_.reshards[lists_[list].front()].before};
      for (const int reshard : lists_[list]) node_of_reshard[reshard] = node;
    }
    std::vector<std::vector<int>> readers(num_nodes);
    std::vector<int> missing(num_nodes);
    const auto add = [&](Value value, int version, int reader) {
      const int source = version == 0 ? value.instruction : node_of_reshard[version - 1];
      readers[source].push_back(reader);
      ++missing[reader];
    };
    for (int id = 0; id < num_instructions; ++id) {
      for (size_t i = 0; i < instruction(id).operands.size(); ++i) {
        add(instruction(id).operands[i], stage_.ops[id].operand_versions[i], id);
      }
    }
    for (size_t i = 0; i < stage_.reshards.size(); ++i) {
      if (node_of_reshard[i] < 0) continue;
      add(stage_.reshards[i].value, stage_.reshards[i].from_version, node_of_reshard[i]);
    }
    return ReadyOrder(readers, std::move(missing), place);
  }

  static std::vector<int> ReadyOrder(const std::vector<std::vector<int>>& readers,
                                     std::vector<int> missing, const std::vector<Place>& place) {
    struct Ready {
      Place place;
      int node;
      auto operator<=>(const Ready&) const = default;
    };
    std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready;
    for (int node = 0; node < static_cast<int>(missing.size()); ++node) {
      if (missing[node] == 0) ready.push({place[node], node});
    }
    std::vector<int> order;
    while (!ready.empty()) {
      const int node = ready.top().node;
      ready.pop();
      order.push_back(node);
      for (const int reader : readers[node]) {
        if (--missing[reader] == 0) ready.push({place[reader], reader});
      }
    }
    MINKA_CHECK(order.size() == missing.size(), "combined collectives wait for each other");
    return order;
  }

  void WriteOperation(InstructionId id) {
    if (instruction(id).opcode == Opcode::kParameter) return;
    const OpPlan& op = stage_.ops[id];
    if (loop_.exists() && loop_.roles[id] == LoopRole::kIndex) {
      scope_->originals[id] = {index_};
      return;
    }
    if (loop_.exists() && loop_.roles[id] == LoopRole::kStack) return WriteStack(id);
    std::vector<Value> operands;
    for (size_t i = 0; i < instruction(id).operands.size(); ++i) {
      operands.push_back(Read(instruction(id).operands[i], op.operand_versions[i]));
    }
    position().builder().SetOpName(instruction(id).op_name);
    std::vector<Value> results =
        EmitLocalOperation({module_, computation_, id, rules_[id], op.strategy, op.called},
                           std::move(operands), position(), called_);
    if (loop_.exists() && loop_.roles[id] == LoopRole::kSum) {
      AddToSum(id, results[0]);
    } else {
      scope_->originals[id] = std::move(results);
    }
  }

  // Accumulators begin with zero on every device, partial ones too.
  void AddToSum(InstructionId id, Value part) {
    Carried& carried = Carry(Zeros(position().builder().shape(part)));
    carried.id = id;
    carried.next = position().builder().Binary(Opcode::kAdd, carried.current, part);
  }

  // Operand 0 is what the stack begins with, made in front of the loop.
  void WriteStack(InstructionId id) {
    const OpPlan& op = stage_.ops[id];
    const std::vector<Value>& sources = instruction(id).operands;
    Carried carried = Carry(Slot(entry_, sources[0], op.operand_versions[0]));
    std::vector<Value> operands = {carried.current};
    const size_t slot = carried_.size() - 1;
    for (size_t i = 1; i < sources.size(); ++i) {
      operands.push_back(Read(sources[i], op.operand_versions[i]));
    }
    carried_[slot].id = id;
    carried_[slot].next =
        EmitLocalOperation({module_, computation_, id, rules_[id], op.strategy, op.called},
                           std::move(operands), position(), called_)[0];
  }

  Value WriteSteps(Value x, const Reshard& reshard, size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) x = EmitStep(position(), x, reshard.steps[i]);
    return x;
  }

  Value Source(const Reshard& reshard) {
    const Value source = Read(reshard.value, reshard.from_version);
    if (!reshard.isolated) return source;
    // A second barrier stands on the first: equal ones would be merged.
    const auto [last, is_new] = scope_->barriers.try_emplace(source, source);
    const Value values[] = {last->second};
    return last->second = position().builder().OptBarrier(values)[0];
  }

  void WriteReshards(const std::vector<int>& list) {
    const Reshard& first = stage_.reshards[list[0]];
    position().builder().SetOpName(instruction(first.value.instruction).op_name);
    if (list.size() == 1) {
      scope_->versions[list[0]] = WriteSteps(Source(first), first, 0, first.steps.size());
      return;
    }
    std::vector<Value> values;
    std::vector<ReshardStep> steps;
    for (const int member : list) {
      const Reshard& reshard = stage_.reshards[member];
      const int step = *OnlyCollective(reshard);
      values.push_back(WriteSteps(Source(reshard), reshard, 0, step));
      steps.push_back(reshard.steps[step]);
    }
    const std::vector<Value> results = EmitCombinedStep(position(), values, steps);
    for (size_t i = 0; i < list.size(); ++i) {
      const Reshard& reshard = stage_.reshards[list[i]];
      scope_->versions[list[i]] =
          WriteSteps(results[i], reshard, *OnlyCollective(reshard) + 1, reshard.steps.size());
    }
  }

  Sharding ShardingOf(Value value, int version) const {
    if (version > 0) return stage_.reshards[version - 1].to;
    const InstructionId id = value.instruction;
    return ResultSharding(rules_[id], stage_.ops[id].strategy, value.result);
  }

  absl::StatusOr<SpmdProgram> Finish() && {
    SpmdProgram program;
    program.parameters = std::move(parameters_);
    std::vector<Value> results;
    for (size_t i = 0; i < computation_.results.size(); ++i) {
      const Value value = computation_.results[i];
      const int version = stage_.result_versions[i];
      results.push_back(Read(value, version));
      program.results.push_back(ShardingOf(value, version));
    }
    for (size_t i = 0; i < kept_.size(); ++i) {
      const auto& [value, version] = kept_[i];
      Sharding& sharding = program.results.emplace_back(ShardingOf(value, version));
      if (kept_slots_[i]) {
        sharding.dims.emplace(sharding.dims.begin());
        results.push_back({loop_instruction_, static_cast<int32_t>(*kept_slots_[i])});
      } else {
        results.push_back(Read(value, version));
      }
    }
    entry_.position.builder().SetResults(std::move(results));
    for (const Alias& alias : module_.aliases) target_.AddAlias(alias);
    absl::StatusOr<Module> finished = std::move(target_).Finish();
    if (!finished.ok()) return WithContext(finished.status(), "local program");
    // Last, because what releases operands looks for reductions that read them.
    const JoinedBarriers joined = JoinBarriers(ReleaseOperands(EliminateDeadCode(*finished)));
    program.notes = NotesOnBarriers(joined.apart);
    program.module = CompiledForms(joined.module);
    return program;
  }

  const Module& module_;
  const Computation& computation_;
  const StagePlan& stage_;
  const std::vector<ValueVersion>& kept_;
  std::vector<std::optional<size_t>> kept_slots_;  // among the carried, of stacks
  ModuleBuilder target_;
  const MicroLoop loop_;
  Scope entry_;
  std::unique_ptr<Scope> body_;          // of the loop over micro-batches, once it has begun
  Scope* scope_;                         // what is written now
  Value index_;                          // of the micro-batch, in the body
  InstructionId loop_instruction_ = -1;  // in the entry, once it is closed
  std::vector<Carried> carried_;
  CalledComputations called_;
  std::vector<std::vector<int>> lists_;  // of reshards, each one collective
  std::vector<OpRule> rules_;
  std::vector<Sharding> parameters_;
};

}  // namespace

MeshSignature SignatureOf(const Module& module, const SpmdProgram& program) {
  return SignatureOf(module, program.parameters, program.results);
}

absl::StatusOr<SpmdProgram> LowerSpmd(const Module& module, const StagePlan& stage,
                                      const std::vector<ValueVersion>& kept) {
  return Lowering(module, stage, kept).Run();
}

}  // namespace minka
