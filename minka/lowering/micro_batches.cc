#include "minka/lowering/micro_batches.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/ir/builder.h"
#include "minka/ir/rewriter.h"
#include "minka/lowering/local_operation.h"
#include "minka/lowering/micro_batch_places.h"

namespace minka {
namespace {

// Constants up to so many elements are made again for each micro-batch.
constexpr int64_t kMaxRepeatedElements = 4096;

// Operations cheap enough to be computed slice by slice where a slice of their result is wanted.
bool IsSliceable(const Instruction& instruction) {
  switch (instruction.opcode) {
    case Opcode::kBroadcast:
    case Opcode::kConstant:
    case Opcode::kIota:
    case Opcode::kReshape:
    case Opcode::kTranspose:
      return true;
    default:
      return instruction.results.size() == 1 && IsElementwise(instruction.opcode);
  }
}

// By instruction: made of small constants by operations that are cheap to repeat.
std::vector<bool> FindConstantOnly(const Computation& entry) {
  std::vector<bool> found;
  for (const Instruction& instruction : entry.instructions) {
    const bool is_constant = instruction.opcode == Opcode::kConstant;
    found.push_back((!is_constant || instruction.shape().num_elements() <= kMaxRepeatedElements) &&
                    IsSliceable(instruction) &&
                    std::ranges::all_of(instruction.operands,
                                        [&](Value operand) { return found[operand.instruction]; }));
  }
  return found;
}

// What `became` gives, by instruction and result.
template <typename Became>
std::vector<std::vector<MicroBatchedValue>> ForEachResult(const Computation& entry,
                                                          const Became& became) {
  std::vector<std::vector<MicroBatchedValue>> values;
  for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
    std::vector<MicroBatchedValue>& results = values.emplace_back();
    for (int r = 0; r < static_cast<int>(entry.instructions[id].results.size()); ++r) {
      results.push_back(became(Value{id, r}));
    }
  }
  return values;
}

// The instructions written, by part of the step.
class LoopWriter {
 public:
  LoopWriter(const Step& step, const MicroPlaces& analysis, const MicroBatchOptions& options,
             const Mesh& mesh)
      : step_(step),
        entry_(step.module.entry_computation()),
        analysis_(analysis),
        options_(options),
        target_(step.module.name),
        position_(target_.Entry(), mesh, Departures::OfAnyPlatform()),
        called_(step.module, target_),
        constant_only_(FindConstantOnly(entry_)),
        full_(entry_.instructions.size()),
        inside_(entry_.instructions.size()) {}

  absl::StatusOr<MicroBatchedStep> Run() && {
    WriteParameters();
    WriteIndex();
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      if (analysis_.IsInside(id)) WriteInside(id);
    }
    std::vector<Value> results;
    for (const Value result : entry_.results) results.push_back(Full(result));
    builder().SetResults(std::move(results));
    return std::move(*this).Finish();
  }

 private:
  ComputationBuilder& builder() { return position_.builder(); }

  // Everything appended since the last call has the role.
  void Label(LoopRole role) { roles_.resize(builder().computation().instructions.size(), role); }

  void WriteParameters() {
    for (const InstructionId id : entry_.parameters) {
      Instruction parameter = entry_.instructions[id];
      const MicroPlace& place = analysis_.places[id][0];
      if (place.kind == MicroPlace::Kind::kSplit)
        parameter.results = {Cut(parameter.shape(), place.dim)};
      builder().SetPart(parameter.part);
      parameters_[id] = builder().Append(std::move(parameter));
    }
    Label(LoopRole::kOutside);
  }

  // [.., B, ..] -> [.., m, B / m, ..]
  Shape Cut(Shape shape, int dim) const {
    shape.dims[dim] /= options_.num_micro_batches;
    shape.dims.insert(shape.dims.begin() + dim, options_.num_micro_batches);
    return shape;
  }

  // The literal is not the number of any micro-batch, so nothing takes it for one.
  void WriteIndex() {
    builder().SetPart({});
    index_ = builder().Scalar(ElementType::kS32, static_cast<double>(options_.num_micro_batches));
    Label(LoopRole::kIndex);
    position_.SetCoordinate(kMicroAxis, index_);
    for (const InstructionId id : entry_.parameters) {
      const MicroPlace& place = analysis_.places[id][0];
      if (place.kind == MicroPlace::Kind::kSplit) inside_[id] = {SliceOfBatch(id, place.dim)};
    }
    Label(LoopRole::kBody);
  }

  Value SliceOfBatch(InstructionId id, int dim) {
    std::vector<int64_t> sizes = builder().shape(parameters_.at(id)).dims;
    std::vector<Value> starts(sizes.size(), position_.Number(0));
    starts[dim] = index_;
    sizes[dim] = 1;
    const Value slice = builder().DynamicSlice(parameters_.at(id), starts, sizes);
    sizes.erase(sizes.begin() + dim);
    return builder().Reshape(slice, std::move(sizes));
  }

  void WriteInside(InstructionId id) {
    const OpRule rule = RuleFor(step_.module, entry_, id);
    const Strategy& strategy = analysis_.strategies[id];
    inside_[id] = WriteLocal(id, rule, strategy);
  }

  std::vector<Value> WriteLocal(InstructionId id, const OpRule& rule, const Strategy& strategy) {
    const Instruction& instruction = entry_.instructions[id];
    std::vector<Value> operands;
    for (size_t i = 0; i < instruction.operands.size(); ++i) {
      const MicroPlace wanted = PlaceOf(OperandSharding(rule, strategy, static_cast<int>(i)));
      builder().SetPart(instruction.part);  // of what is made for it
      operands.push_back(Inside(instruction.operands[i], wanted));
    }
    builder().SetOpName(instruction.op_name);
    builder().SetPart(instruction.part);
    const std::vector<CalledPlan> plans =
        PlanCalledBy(step_.module, entry_, id, rule, strategy, position_.mesh(), kTrialPrices);
    std::vector<Value> results = EmitLocalOperation(
        {step_.module, entry_, id, rule, strategy, plans}, std::move(operands), position_, called_);
    Label(LoopRole::kBody);
    return results;
  }

  // A value as an operation inside the loop wants it.
  Value Inside(Value value, const MicroPlace& wanted) {
    const MicroPlace& place = analysis_.at(value);
    switch (place.kind) {
      case MicroPlace::Kind::kSplit:
        return inside_[value.instruction][value.result];
      case MicroPlace::Kind::kPartial:
        if (wanted.kind == MicroPlace::Kind::kPartial)
          return inside_[value.instruction][value.result];
        break;
      case MicroPlace::Kind::kSame:
        if (wanted.kind == MicroPlace::Kind::kPartial) return CountedOnce(value);
        if (wanted.kind != MicroPlace::Kind::kSplit)
          return inside_[value.instruction][value.result];
        return OwnSlice(inside_[value.instruction][value.result], wanted.dim);
      case MicroPlace::Kind::kInvariant:
        if (wanted.kind == MicroPlace::Kind::kPartial) return CountedOnce(value);
        return wanted.kind == MicroPlace::Kind::kSplit ? Slice(value, wanted.dim) : Repeat(value);
      case MicroPlace::Kind::kAfter:
        break;
    }
    return wanted.kind == MicroPlace::Kind::kSplit ? Slice(value, wanted.dim) : Whole(value);
  }

  // A part of a sum that is the value.
  Value CountedOnce(Value value) {
    const Value whole = Inside(value, {MicroPlace::Kind::kSame});
    if (IsZero(entry_, value)) return whole;
    const Value part = KeepOnFirst(position_, whole, AxisSet::Of(kMicroAxis));
    Label(LoopRole::kBody);
    return part;
  }

  // Of all micro-batches, or what one of them estimates.
  Value Whole(Value value) {
    const bool is_known = analysis_.from_inputs[value.instruction] ||
                          analysis_.at(value).kind == MicroPlace::Kind::kInvariant;
    return is_known ? Full(value) : Local(value);
  }

  Value OwnSlice(Value whole, int dim) {
    Sharding part = Sharding::Replicated(builder().shape(whole).rank());
    part.dims[dim].PushMinor(kMicroAxis);
    const Value slice = OwnPart(position_, whole, part);
    Label(LoopRole::kBody);
    return slice;
  }

  // A slice of what is the same for all, computed as such where that is cheap.
  Value Slice(Value value, int dim) {
    const auto [found, is_new] = slices_.try_emplace({value, dim});
    if (!is_new) return found->second;
    const Instruction& instruction = entry_.instruction(value);
    if (IsSliceable(instruction)) {
      const OpRule rule = RuleFor(step_.module, entry_, value.instruction);
      for (const Strategy& strategy : EnumerateStrategies(rule, position_.mesh())) {
        if (PlaceOf(ResultSharding(rule, strategy, 0)) != MicroPlace{MicroPlace::Kind::kSplit, dim})
          continue;
        if (!CanTake(instruction, rule, strategy)) continue;
        const Value slice = WriteLocal(value.instruction, rule, strategy)[0];
        return slices_[{value, dim}] = slice;
      }
    }
    const Value slice = OwnSlice(Whole(value), dim);
    return slices_[{value, dim}] = slice;
  }

  bool CanTake(const Instruction& instruction, const OpRule& rule, const Strategy& strategy) const {
    for (size_t i = 0; i < instruction.operands.size(); ++i) {
      const MicroPlace& place = analysis_.at(instruction.operands[i]);
      const MicroPlace wanted = PlaceOf(OperandSharding(rule, strategy, static_cast<int>(i)));
      if (wanted.kind == MicroPlace::Kind::kPartial) return false;
      if (place.kind == MicroPlace::Kind::kSplit && place != wanted) return false;
    }
    return strategy.axes[kMicroAxis].kind == AxisUse::Kind::kFactor;
  }

  // What depends on constants alone is made again inside the loop; all else comes from outside.
  Value Repeat(Value value) {
    const InstructionId id = value.instruction;
    if (!constant_only_[id]) return Full(value);
    const auto [found, is_new] = repeated_.try_emplace(id);
    if (!is_new) return found->second;
    std::vector<Value> operands;
    for (const Value operand : entry_.instructions[id].operands)
      operands.push_back(Repeat(operand));
    const Value copy = Copy(id, std::move(operands))[0];
    Label(LoopRole::kBody);
    return repeated_[id] = copy;
  }

  // m times what one micro-batch gives stands for the sum over all.
  Value Local(Value value) {
    const auto [found, is_new] = local_.try_emplace(value);
    if (!is_new) return found->second;
    const MicroPlace& place = analysis_.at(value);
    Value local;
    if (place.kind == MicroPlace::Kind::kPartial) {
      const Value part = inside_[value.instruction][value.result];
      local = builder().Binary(
          Opcode::kMultiply, part,
          builder().FullLike(part, static_cast<double>(options_.num_micro_batches)));
    } else if (place.kind == MicroPlace::Kind::kAfter) {
      std::vector<Value> operands;
      for (const Value operand : entry_.instruction(value).operands) {
        operands.push_back(Local(operand));
      }
      local = Copy(value.instruction, std::move(operands))[value.result];
    } else {
      local = Inside(value, {MicroPlace::Kind::kSame});
    }
    Label(LoopRole::kBody);
    return local_[value] = local;
  }

  std::vector<Value> Copy(InstructionId id, std::vector<Value> operands) {
    Instruction copy = entry_.instructions[id];
    copy.operands = std::move(operands);
    for (ComputationId& computation : copy.called) computation = called_.Import(computation);
    builder().SetOpName(copy.op_name);
    builder().SetPart(copy.part);
    const size_t num_results = copy.results.size();
    const Value first = builder().Append(std::move(copy));
    std::vector<Value> results;
    for (size_t i = 0; i < num_results; ++i) {
      results.push_back({first.instruction, static_cast<int32_t>(i)});
    }
    return results;
  }

  // The value of the whole batch, outside the loop.
  Value Full(Value value) {
    std::vector<Value>& full = full_[value.instruction];
    if (full.empty()) full.resize(entry_.instruction(value).results.size());
    if (full[value.result].instruction < 0) {
      const Value made = MakeFull(value);
      full_[value.instruction][value.result] = made;
    }
    return full_[value.instruction][value.result];
  }

  Value MakeFull(Value value) {
    const InstructionId id = value.instruction;
    const Instruction& instruction = entry_.instructions[id];
    if (instruction.opcode == Opcode::kParameter) {
      if (analysis_.at(value).kind != MicroPlace::Kind::kSplit) return parameters_.at(id);
      builder().SetPart(instruction.part);
      const Value whole = builder().Reshape(parameters_.at(id), instruction.shape().dims);
      Label(LoopRole::kOutside);
      return whole;
    }
    // Cheap and known in front of the loop: neither summed nor stacked, so that operations inside
    // may read it.
    if (!analysis_.IsInside(id) || IsHoisted(id)) {
      std::vector<Value> operands;
      for (const Value operand : instruction.operands) operands.push_back(Full(operand));
      const std::vector<Value> results = Copy(id, std::move(operands));
      Label(LoopRole::kOutside);
      full_[id] = results;
      return results[value.result];
    }
    if (analysis_.at(value).kind == MicroPlace::Kind::kPartial &&
        (JoinsLayers(id) || WidensNarrowSum(id))) {
      std::vector<Value> sums;
      for (const Value operand : instruction.operands) sums.push_back(Full(operand));
      const Value joined = Copy(id, std::move(sums))[0];
      Label(LoopRole::kOutside);
      return joined;
    }
    builder().SetPart(instruction.part);
    switch (analysis_.at(value).kind) {
      case MicroPlace::Kind::kSplit:
        return Stack(value);
      case MicroPlace::Kind::kPartial:
        return Sum(inside_[id][value.result], instruction.results[value.result].type);
      default:
        return Sum(KeepOnFirst(position_, inside_[id][value.result], AxisSet::Of(kMicroAxis)),
                   instruction.results[value.result].type);
    }
  }

  // Gradients of layers, for stacked weights: each layer sums its own.
  bool JoinsLayers(InstructionId id) const {
    const Instruction& instruction = entry_.instructions[id];
    const auto layer_of = [&](Value operand) { return entry_.instruction(operand).part.layer; };
    return instruction.opcode == Opcode::kConcatenate &&
           std::ranges::all_of(instruction.operands,
                               [&](Value operand) {
                                 return analysis_.at(operand).kind == MicroPlace::Kind::kPartial;
                               }) &&
           std::ranges::any_of(instruction.operands, [&](Value operand) {
             return layer_of(operand) != layer_of(instruction.operands[0]);
           });
  }

  // What a narrow type is converted to can be summed before.
  bool WidensNarrowSum(InstructionId id) const {
    const Instruction& instruction = entry_.instructions[id];
    return options_.narrow_sums && instruction.opcode == Opcode::kConvert &&
           analysis_.at(instruction.operands[0]).kind == MicroPlace::Kind::kPartial &&
           IsNarrowFloat(entry_.shape(instruction.operands[0]).type);
  }

  bool IsHoisted(InstructionId id) const { return analysis_.from_inputs[id]; }

  // Accumulates in f32 at least, where narrow sums are not asked for.
  Value Sum(Value part, ElementType type) {
    Label(LoopRole::kBody);
    const bool widens = IsNarrowFloat(type) && !options_.narrow_sums;
    const Value sum =
        widens ? builder().Convert(part, ElementType::kF32) : builder().Unary(Opcode::kCopy, part);
    Label(LoopRole::kSum);
    if (!widens) return sum;
    const Value narrow = builder().Convert(sum, type);
    Label(LoopRole::kOutside);
    return narrow;
  }

  // Slices together: [.., m, B / m, ..] filled one by one, then [.., B, ..].
  Value Stack(Value value) {
    const Shape& whole = entry_.shape(value);
    const int dim = analysis_.at(value).dim;
    const Shape cut = Cut(whole, dim);
    const Value zero = builder().Scalar(whole.type, 0);
    const Value empty = builder().Broadcast(zero, cut.dims, {});
    Label(LoopRole::kOutside);
    std::vector<int64_t> dims = cut.dims;
    dims[dim] = 1;
    const Value slice = builder().Reshape(inside_[value.instruction][value.result], dims);
    std::vector<Value> starts(dims.size(), position_.Number(0));
    starts[dim] = index_;
    Label(LoopRole::kBody);
    const Value stack = builder().DynamicUpdateSlice(empty, slice, starts);
    Label(LoopRole::kStack);
    const Value joined = builder().Reshape(stack, whole.dims);
    Label(LoopRole::kOutside);
    return joined;
  }

  absl::StatusOr<MicroBatchedStep> Finish() && {
    for (const Alias& alias : step_.module.aliases) target_.AddAlias(alias);
    for (const auto& [key, text] : step_.module.frontend_attributes) {
      target_.SetFrontendAttribute(key, text);
    }
    Step out{
        .parameters = step_.parameters, .results = step_.results, .num_layers = step_.num_layers};
    for (const Mark& mark : step_.marks) {
      const std::optional<Value> marked = Marked(mark);
      if (marked) out.marks.push_back({mark.kind, *marked, mark.index});
    }
    for (const InstructionId id : entry_.parameters) {
      if (analysis_.places[id][0].kind != MicroPlace::Kind::kSplit) continue;
      ++out.parameters[entry_.instructions[id].As<ParameterAttributes>().number].batch_dim;
    }
    auto finished = std::move(target_).Finish();
    if (!finished.ok()) return WithContext(finished.status(), "micro-batches");
    out.module = *std::move(finished);
    out.module.num_micro_batches = options_.num_micro_batches;
    Computation& written = out.module.entry_computation();
    for (size_t id = 0; id < roles_.size(); ++id) written.instructions[id].part.loop = roles_[id];
    return MicroBatchedStep{std::move(out),
                            ForEachResult(entry_, [&](Value value) { return BecameOf(value); })};
  }

  MicroBatchedValue BecameOf(Value value) const {
    const MicroPlace& place = analysis_.at(value);
    const std::vector<Value>& inside = inside_[value.instruction];
    if (place.kind == MicroPlace::Kind::kSplit) return {inside[value.result], place.dim};
    if (place.kind == MicroPlace::Kind::kSame) return {inside[value.result]};
    const std::vector<Value>& full = full_[value.instruction];
    if (!full.empty() && full[value.result].instruction >= 0) return {full[value.result]};
    if (const auto found = repeated_.find(value.instruction); found != repeated_.end()) {
      return {found->second};
    }
    for (int dim = 0; dim < entry_.shape(value).rank(); ++dim) {
      const auto found = slices_.find({value, dim});
      if (found != slices_.end()) return {found->second, dim};
    }
    return {};
  }

  // Losses and gradients once they are complete; other marks where the value is used most.
  std::optional<Value> Marked(const Mark& mark) {
    const Value value = mark.value;
    const std::vector<Value>& full = full_[value.instruction];
    const bool has_full = !full.empty() && full[value.result].instruction >= 0;
    const bool is_complete = mark.kind == MarkKind::kLoss || mark.kind == MarkKind::kGradient;
    if (is_complete && has_full) return full[value.result];
    if (!inside_[value.instruction].empty()) return inside_[value.instruction][value.result];
    return has_full ? std::optional(full[value.result]) : std::nullopt;
  }

  const Step& step_;
  const Computation& entry_;
  const MicroPlaces& analysis_;
  const MicroBatchOptions& options_;
  ModuleBuilder target_;
  DevicePosition position_;
  CalledComputations called_;
  Value index_;
  std::vector<LoopRole> roles_;                // by instruction written
  const std::vector<bool> constant_only_;      // by source instruction
  std::map<InstructionId, Value> parameters_;  // as written
  std::vector<std::vector<Value>> full_, inside_;
  std::map<std::pair<Value, int>, Value> slices_;
  std::map<InstructionId, Value> repeated_;
  std::map<Value, Value> local_;
};

// Drops what nothing reads and puts the loop in one piece: what it reads, the loop, the rest.
class Arranger {
 public:
  explicit Arranger(MicroBatchedStep written)
      : written_(std::move(written)),
        step_(written_.step),
        entry_(step_.module.entry_computation()) {}

  MicroBatchedStep Run() && {
    const auto role_of = [&](InstructionId id) { return entry_.instructions[id].part.loop; };
    std::vector<bool> is_live(entry_.instructions.size()), feeds_loop(entry_.instructions.size());
    for (const Value result : entry_.results) is_live[result.instruction] = true;
    for (InstructionId id = entry_.num_instructions() - 1; id >= 0; --id) {
      const Instruction& instruction = entry_.instructions[id];
      const bool inside = role_of(id) != LoopRole::kOutside;
      is_live[id] = is_live[id] || instruction.opcode == Opcode::kParameter;
      for (const Value operand : instruction.operands) {
        if (is_live[id]) is_live[operand.instruction] = true;
        if (is_live[id] && (inside || feeds_loop[id])) feeds_loop[operand.instruction] = true;
      }
    }
    std::vector<InstructionId> order;
    const auto part_of = [&](InstructionId id) {
      if (entry_.instructions[id].opcode == Opcode::kParameter) return 0;
      if (role_of(id) == LoopRole::kIndex) return 2;
      if (role_of(id) != LoopRole::kOutside) return 3;
      return feeds_loop[id] ? 1 : 4;
    };
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      if (is_live[id]) order.push_back(id);
    }
    std::ranges::stable_sort(order, {}, part_of);
    Rearrange(WithSumsBehindTerms(order));
    return std::move(written_);
  }

 private:
  // What was added to a sum need not be kept until the end of the micro-batch.
  std::vector<InstructionId> WithSumsBehindTerms(const std::vector<InstructionId>& order) const {
    std::map<InstructionId, std::vector<InstructionId>> sums;  // by term
    std::vector<InstructionId> others;
    for (const InstructionId id : order) {
      const Instruction& instruction = entry_.instructions[id];
      if (instruction.part.loop == LoopRole::kSum) {
        sums[instruction.operands[0].instruction].push_back(id);
      } else {
        others.push_back(id);
      }
    }
    std::vector<InstructionId> out;
    for (const InstructionId id : others) {
      out.push_back(id);
      const auto found = sums.find(id);
      if (found != sums.end()) out.insert(out.end(), found->second.begin(), found->second.end());
    }
    return out;
  }

  void Rearrange(const std::vector<InstructionId>& order) {
    Computation source = std::move(entry_);
    Rewriter rewriter(source);
    for (const InstructionId id : order) rewriter.Move(id, std::move(source.instructions[id]));
    std::erase_if(step_.marks,
                  [&](const Mark& mark) { return !rewriter.IsMapped(mark.value.instruction); });
    for (Mark& mark : step_.marks) mark.value = rewriter.Now(mark.value);
    std::ranges::sort(step_.marks, {}, &Mark::value);
    for (std::vector<MicroBatchedValue>& results : written_.became) {
      for (MicroBatchedValue& result : results) {
        Value& value = result.value;
        if (value.instruction < 0) continue;
        value = rewriter.IsMapped(value.instruction) ? rewriter.Now(value) : Value();
      }
    }
    entry_ = std::move(rewriter).Finish();
  }

  MicroBatchedStep written_;
  Step& step_;
  Computation& entry_;
};

}  // namespace

absl::StatusOr<MicroBatchedStep> MakeMicroBatches(const Step& step,
                                                  const MicroBatchOptions& options) {
  if (options.num_micro_batches < 1) {
    return InvalidArgument("{} micro-batches; there is at least one", options.num_micro_batches);
  }
  if (options.num_micro_batches == 1)
    return MicroBatchedStep{step, ForEachResult(step.module.entry_computation(), [](Value value) {
                              return MicroBatchedValue{value};
                            })};
  const bool has_batch = std::ranges::any_of(step.parameters, [](const ParameterInfo& info) {
    return info.role == ParameterRole::kBatch && info.batch_dim >= 0;
  });
  if (!has_batch) {
    return InvalidArgument(
        "{} micro-batches of what? No parameter is known to be a batch input (--batch-input)",
        options.num_micro_batches);
  }
  MINKA_CHECK(step.num_layers.has_value(), "a step without its structure");
  const Mesh mesh({{"micro", options.num_micro_batches}});
  ASSIGN_OR_RETURN(const MicroPlaces analysis, FindMicroPlaces(step, options, mesh));
  ASSIGN_OR_RETURN(MicroBatchedStep written, LoopWriter(step, analysis, options, mesh).Run());
  return Arranger(std::move(written)).Run();
}

}  // namespace minka
