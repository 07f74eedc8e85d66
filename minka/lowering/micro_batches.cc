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
#include "minka/ir/micro_loop.h"
#include "minka/lowering/local_operation.h"

namespace minka {
namespace {

constexpr int kMicroAxis = 0;
// Constants up to so many elements are made again for each micro-batch.
constexpr int64_t kMaxRepeatedElements = 4096;

// Where a value is along the micro-batches.
struct Place {
  enum class Kind : uint8_t {
    kInvariant,  // the same for all, whole in front of the loop
    kSame,       // the same for all, made inside the loop
    kSplit,      // a slice of dimension `dim`
    kPartial,    // a part of a sum
    kAfter,      // there only when the loop is over
  };
  Kind kind = Kind::kInvariant;
  int dim = -1;
  auto operator<=>(const Place&) const = default;
};

Place PlaceOf(const Sharding& sharding) {
  if (sharding.partial.contains(kMicroAxis)) return {Place::Kind::kPartial};
  for (size_t dim = 0; dim < sharding.dims.size(); ++dim) {
    if (!sharding.dims[dim].empty()) return {Place::Kind::kSplit, static_cast<int>(dim)};
  }
  return {Place::Kind::kSame};
}

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

bool IsHeavy(Opcode opcode) {
  return opcode == Opcode::kDot || opcode == Opcode::kWhile || Family(opcode) == OpFamily::kOther ||
         opcode == Opcode::kConvolution;
}

// What becomes of every operation.
struct Analysis {
  std::vector<std::vector<Place>> places;  // [instruction][result]
  std::vector<Strategy> strategies;        // of operations inside the loop; else empty
  std::vector<bool> from_inputs;  // depends on batch inputs, keys and constants, without heavy work
  std::vector<bool> has_local;    // one micro-batch can estimate it, see per_micro_batch

  const Place& at(Value value) const { return places[value.instruction][value.result]; }
  bool IsInside(InstructionId id) const { return !strategies[id].axes.empty(); }
};

class Analyser {
 public:
  Analyser(const Step& step, const MicroBatchOptions& options, const Mesh& mesh)
      : step_(step),
        entry_(step.module.entry_computation()),
        options_(options),
        mesh_(mesh),
        feeds_state_(FeedsState()) {}

  absl::StatusOr<Analysis> Run() {
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      const Instruction& instruction = entry_.instructions[id];
      out_.strategies.emplace_back();
      out_.from_inputs.push_back(DependsOnInputsOnly(id));
      if (instruction.opcode == Opcode::kParameter) {
        RETURN_IF_ERROR(PlaceParameter(id));
      } else {
        RETURN_IF_ERROR(PlaceOperation(id));
      }
      out_.has_local.push_back(HasLocal(id));
    }
    return std::move(out_);
  }

 private:
  std::vector<bool> FeedsState() const {
    std::vector<bool> feeds(entry_.instructions.size());
    for (size_t i = 0; i < entry_.results.size() && i < step_.results.size(); ++i) {
      if (step_.results[i].role == ResultRole::kState) feeds[entry_.results[i].instruction] = true;
    }
    for (InstructionId id = entry_.num_instructions() - 1; id >= 0; --id) {
      if (!feeds[id]) continue;
      for (const Value operand : entry_.instructions[id].operands) {
        feeds[operand.instruction] = true;
      }
    }
    return feeds;
  }

  bool DependsOnInputsOnly(InstructionId id) const {
    const Instruction& instruction = entry_.instructions[id];
    if (instruction.opcode == Opcode::kParameter) {
      const auto number = static_cast<size_t>(instruction.As<ParameterAttributes>().number);
      const ParameterRole role = step_.parameters[number].role;
      return role == ParameterRole::kBatch || role == ParameterRole::kKey;
    }
    return !IsHeavy(instruction.opcode) && instruction.opcode != Opcode::kRng &&
           std::ranges::all_of(instruction.operands, [&](Value operand) {
             return out_.from_inputs[operand.instruction];
           });
  }

  absl::Status PlaceParameter(InstructionId id) {
    const Instruction& instruction = entry_.instructions[id];
    const auto number = static_cast<size_t>(instruction.As<ParameterAttributes>().number);
    const ParameterInfo& info = step_.parameters[number];
    if (info.role != ParameterRole::kBatch || info.batch_dim < 0) {
      out_.places.push_back({{Place::Kind::kInvariant}});
      return absl::OkStatus();
    }
    const int64_t size = instruction.shape().dims[info.batch_dim];
    if (size % options_.num_micro_batches != 0) {
      return InvalidArgument("{} micro-batches do not divide the {} examples of {} {}",
                             options_.num_micro_batches, size, info.name,
                             ToString(instruction.shape()));
    }
    out_.places.push_back({{Place::Kind::kSplit, info.batch_dim}});
    return absl::OkStatus();
  }

  void PlaceAll(InstructionId id, Place::Kind kind) {
    out_.places.emplace_back(entry_.instructions[id].results.size(), Place{kind});
  }

  bool AnyOperand(InstructionId id, Place::Kind kind) const {
    return std::ranges::any_of(entry_.instructions[id].operands,
                               [&](Value operand) { return out_.at(operand).kind == kind; });
  }

  absl::Status PlaceOperation(InstructionId id) {
    const bool reads_slices = AnyOperand(id, Place::Kind::kSplit);
    const bool reads_loop =
        reads_slices || AnyOperand(id, Place::Kind::kPartial) || AnyOperand(id, Place::Kind::kSame);
    if (entry_.instructions[id].part.phase == Phase::kApply ||
        (!reads_slices && AnyOperand(id, Place::Kind::kAfter))) {
      PlaceAll(id, Place::Kind::kAfter);
      return absl::OkStatus();
    }
    if (!reads_loop) {
      PlaceAll(id, Place::Kind::kInvariant);
      return absl::OkStatus();
    }
    const OpRule rule = RuleFor(step_.module, entry_, id);
    if (const std::optional<Strategy> strategy = BestStrategy(id, rule)) {
      out_.strategies[id] = *strategy;
      std::vector<Place>& places = out_.places.emplace_back();
      for (size_t r = 0; r < entry_.instructions[id].results.size(); ++r) {
        places.push_back(PlaceOf(ResultSharding(rule, *strategy, static_cast<int>(r))));
      }
      return absl::OkStatus();
    }
    if (reads_slices && out_.from_inputs[id]) {
      PlaceAll(id, Place::Kind::kInvariant);
      return absl::OkStatus();
    }
    if (reads_slices && feeds_state_[id]) return Refuse(id);
    PlaceAll(id, Place::Kind::kAfter);
    return absl::OkStatus();
  }

  // The strategy along the micro-batches that takes the operands as they are with the least ado.
  std::optional<Strategy> BestStrategy(InstructionId id, const OpRule& rule) const {
    if (!rule.supported || rule.num_lanes > 1) return std::nullopt;
    // What one micro-batch estimates is worked on whole in each, not a slice of its features.
    const bool may_repeat = options_.per_micro_batch && !AnyOperand(id, Place::Kind::kSplit);
    std::optional<Strategy> best;
    int least = 0;
    for (Strategy& strategy : EnumerateStrategies(rule, mesh_)) {
      if (strategy.axes[kMicroAxis].kind == AxisUse::Kind::kIdle && !may_repeat) continue;
      if (!CombineAxes(rule, strategy).empty()) continue;
      if (IsControlFlow(entry_.instructions[id].opcode) && Communicates(id, rule, strategy))
        continue;
      const std::optional<int> ado = AdoOf(id, rule, strategy);
      if (!ado || (best && *ado >= least)) continue;
      least = *ado;
      best = std::move(strategy);
    }
    return best;
  }

  // Would one micro-batch need something of another inside the loop or branch?
  bool Communicates(InstructionId id, const OpRule& rule, const Strategy& strategy) const {
    const std::vector<CalledPlan> called =
        PlanCalledBy(step_.module, entry_, id, rule, strategy, mesh_, kTrialPrices);
    const Trips once = [](const Computation&, InstructionId) { return 1.0; };
    return !CollectivesOf(step_.module, entry_, id, rule, strategy, called, mesh_, once).empty();
  }

  std::optional<int> AdoOf(InstructionId id, const OpRule& rule, const Strategy& strategy) const {
    int total = 0;
    const std::vector<Value>& operands = entry_.instructions[id].operands;
    for (size_t i = 0; i < operands.size(); ++i) {
      const Place wanted = PlaceOf(OperandSharding(rule, strategy, static_cast<int>(i)));
      const std::optional<int> ado = AdoOfOperand(id, operands[i], wanted);
      if (!ado) return std::nullopt;
      total += *ado;
    }
    return total;
  }

  std::optional<int> AdoOfOperand(InstructionId id, Value operand, const Place& wanted) const {
    const Place& place = out_.at(operand);
    const bool wants_whole = wanted.kind == Place::Kind::kSame;
    switch (place.kind) {
      case Place::Kind::kInvariant:
      case Place::Kind::kSame:
        // What a loop adds its sums to counts once.
        if (wanted.kind == Place::Kind::kPartial) {
          return entry_.instructions[id].opcode == Opcode::kWhile ? std::optional(1) : std::nullopt;
        }
        return wants_whole ? 0 : 1;
      case Place::Kind::kSplit:
        return place == wanted ? std::optional(0) : std::nullopt;
      case Place::Kind::kPartial:
        if (wanted.kind == Place::Kind::kPartial) return 0;
        break;
      case Place::Kind::kAfter:
        break;
    }
    if (wanted.kind == Place::Kind::kPartial) return std::nullopt;
    if (out_.from_inputs[operand.instruction]) return 4;
    if (options_.per_micro_batch && out_.has_local[operand.instruction]) return wants_whole ? 3 : 4;
    return std::nullopt;
  }

  bool HasLocal(InstructionId id) const {
    const Instruction& instruction = entry_.instructions[id];
    if (instruction.opcode == Opcode::kParameter) {
      return out_.places[id][0].kind == Place::Kind::kInvariant;
    }
    if (instruction.part.phase == Phase::kApply) return false;
    if (out_.places[id].size() != 1) return false;
    if (out_.places[id][0].kind == Place::Kind::kPartial) return true;
    return std::ranges::all_of(instruction.operands,
                               [&](Value operand) { return out_.has_local[operand.instruction]; });
  }

  absl::Status Refuse(InstructionId id) const {
    const Instruction& instruction = entry_.instructions[id];
    const std::string name =
        fmt::format("{} '{}'{}", OpcodeName(instruction.opcode), instruction.name,
                    instruction.op_name.empty() ? "" : fmt::format(" ({})", instruction.op_name));
    for (const Value operand : instruction.operands) {
      const Place::Kind kind = out_.at(operand).kind;
      if (kind != Place::Kind::kPartial && kind != Place::Kind::kAfter) continue;
      return InvalidArgument(
          "micro-batches: {} works on slices of the batch but needs '{}' of the whole batch; plan "
          "without micro-batches, or let each micro-batch stand for the whole (--per-micro-batch)",
          name, entry_.instruction(operand).name);
    }
    return InvalidArgument(
        "micro-batches: {} cannot work on slices of the batch; plan without micro-batches", name);
  }

  const Step& step_;
  const Computation& entry_;
  const MicroBatchOptions& options_;
  const Mesh& mesh_;
  const std::vector<bool> feeds_state_;
  Analysis out_;
};

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

// The instructions written, by part of the step.
class LoopWriter {
 public:
  LoopWriter(const Step& step, const Analysis& analysis, const MicroBatchOptions& options,
             const Mesh& mesh)
      : step_(step),
        entry_(step.module.entry_computation()),
        analysis_(analysis),
        options_(options),
        target_(step.module.name),
        position_(target_.Entry(), mesh),
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
      const Place& place = analysis_.places[id][0];
      if (place.kind == Place::Kind::kSplit)
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
      const Place& place = analysis_.places[id][0];
      if (place.kind == Place::Kind::kSplit) inside_[id] = {SliceOfBatch(id, place.dim)};
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
      const Place wanted = PlaceOf(OperandSharding(rule, strategy, static_cast<int>(i)));
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
  Value Inside(Value value, const Place& wanted) {
    const Place& place = analysis_.at(value);
    switch (place.kind) {
      case Place::Kind::kSplit:
        return inside_[value.instruction][value.result];
      case Place::Kind::kPartial:
        if (wanted.kind == Place::Kind::kPartial) return inside_[value.instruction][value.result];
        break;
      case Place::Kind::kSame:
        if (wanted.kind == Place::Kind::kPartial) return CountedOnce(value);
        if (wanted.kind != Place::Kind::kSplit) return inside_[value.instruction][value.result];
        return OwnSlice(inside_[value.instruction][value.result], wanted.dim);
      case Place::Kind::kInvariant:
        if (wanted.kind == Place::Kind::kPartial) return CountedOnce(value);
        return wanted.kind == Place::Kind::kSplit ? Slice(value, wanted.dim) : Repeat(value);
      case Place::Kind::kAfter:
        break;
    }
    return wanted.kind == Place::Kind::kSplit ? Slice(value, wanted.dim) : Whole(value);
  }

  // A part of a sum that is the value.
  Value CountedOnce(Value value) {
    const Value whole = Inside(value, {Place::Kind::kSame});
    if (IsZero(entry_, value)) return whole;
    const Value part = KeepOnFirst(position_, whole, AxisSet::Of(kMicroAxis));
    Label(LoopRole::kBody);
    return part;
  }

  // Of all micro-batches, or what one of them estimates.
  Value Whole(Value value) {
    const bool is_known = analysis_.from_inputs[value.instruction] ||
                          analysis_.at(value).kind == Place::Kind::kInvariant;
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
        if (PlaceOf(ResultSharding(rule, strategy, 0)) != Place{Place::Kind::kSplit, dim}) continue;
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
      const Place& place = analysis_.at(instruction.operands[i]);
      const Place wanted = PlaceOf(OperandSharding(rule, strategy, static_cast<int>(i)));
      if (wanted.kind == Place::Kind::kPartial) return false;
      if (place.kind == Place::Kind::kSplit && place != wanted) return false;
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
    const Place& place = analysis_.at(value);
    Value local;
    if (place.kind == Place::Kind::kPartial) {
      const Value part = inside_[value.instruction][value.result];
      local = builder().Binary(
          Opcode::kMultiply, part,
          builder().FullLike(part, static_cast<double>(options_.num_micro_batches)));
    } else if (place.kind == Place::Kind::kAfter) {
      std::vector<Value> operands;
      for (const Value operand : entry_.instruction(value).operands) {
        operands.push_back(Local(operand));
      }
      local = Copy(value.instruction, std::move(operands))[value.result];
    } else {
      local = Inside(value, {Place::Kind::kSame});
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
      if (analysis_.at(value).kind != Place::Kind::kSplit) return parameters_.at(id);
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
    builder().SetPart(instruction.part);
    switch (analysis_.at(value).kind) {
      case Place::Kind::kSplit:
        return Stack(value);
      case Place::Kind::kPartial:
        return Sum(inside_[id][value.result], instruction.results[value.result].type);
      default:
        return Sum(KeepOnFirst(position_, inside_[id][value.result], AxisSet::Of(kMicroAxis)),
                   instruction.results[value.result].type);
    }
  }

  bool IsHoisted(InstructionId id) const { return analysis_.from_inputs[id]; }

  // Accumulates in f32 at least.
  Value Sum(Value part, ElementType type) {
    Label(LoopRole::kBody);
    const bool is_narrow = type == ElementType::kBF16 || type == ElementType::kF16;
    const Value sum = is_narrow ? builder().Convert(part, ElementType::kF32)
                                : builder().Unary(Opcode::kCopy, part);
    Label(LoopRole::kSum);
    if (!is_narrow) return sum;
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
    target_.SetFrontendAttribute(kNumMicroBatchesAttribute,
                                 fmt::to_string(options_.num_micro_batches));
    Step out{
        .parameters = step_.parameters, .results = step_.results, .num_layers = step_.num_layers};
    for (const Mark& mark : step_.marks) {
      const std::optional<Value> marked = Marked(mark);
      if (marked) out.marks.push_back({mark.kind, *marked, mark.index});
    }
    for (const InstructionId id : entry_.parameters) {
      if (analysis_.places[id][0].kind != Place::Kind::kSplit) continue;
      ++out.parameters[entry_.instructions[id].As<ParameterAttributes>().number].batch_dim;
    }
    auto finished = std::move(target_).Finish();
    if (!finished.ok()) return WithContext(finished.status(), "micro-batches");
    out.module = *std::move(finished);
    WriteRoles(out.module.entry_computation());
    return MicroBatchedStep{std::move(out), Became()};
  }

  std::vector<std::vector<MicroBatchedValue>> Became() const {
    std::vector<std::vector<MicroBatchedValue>> became;
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      std::vector<MicroBatchedValue>& results = became.emplace_back();
      for (int r = 0; r < static_cast<int>(entry_.instructions[id].results.size()); ++r) {
        results.push_back(BecameOf({id, r}));
      }
    }
    return became;
  }

  MicroBatchedValue BecameOf(Value value) const {
    const Place& place = analysis_.at(value);
    const std::vector<Value>& inside = inside_[value.instruction];
    if (place.kind == Place::Kind::kSplit) return {inside[value.result], place.dim};
    if (place.kind == Place::Kind::kSame) return {inside[value.result]};
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

  void WriteRoles(Computation& entry) const {
    for (size_t id = 0; id < entry.instructions.size(); ++id) {
      const char* text = TextOf(roles_[id]);
      auto& attributes = entry.instructions[id].frontend_attributes;
      if (text) attributes[kMicroAttribute] = text;
    }
  }

  static const char* TextOf(LoopRole role) {
    switch (role) {
      case LoopRole::kOutside:
        return nullptr;
      case LoopRole::kIndex:
        return "index";
      case LoopRole::kBody:
        return "body";
      case LoopRole::kSum:
        return "sum";
      case LoopRole::kStack:
        return "stack";
    }
    return nullptr;
  }

  const Step& step_;
  const Computation& entry_;
  const Analysis& analysis_;
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
    const std::vector<LoopRole> roles = FindMicroLoop(step_.module).roles;
    std::vector<bool> is_live(roles.size()), feeds_loop(roles.size());
    for (const Value result : entry_.results) is_live[result.instruction] = true;
    for (auto id = static_cast<InstructionId>(roles.size()) - 1; id >= 0; --id) {
      const Instruction& instruction = entry_.instructions[id];
      const bool inside = roles[id] != LoopRole::kOutside;
      is_live[id] = is_live[id] || instruction.opcode == Opcode::kParameter;
      for (const Value operand : instruction.operands) {
        if (is_live[id]) is_live[operand.instruction] = true;
        if (is_live[id] && (inside || feeds_loop[id])) feeds_loop[operand.instruction] = true;
      }
    }
    std::vector<InstructionId> order;
    const auto part_of = [&](InstructionId id) {
      if (entry_.instructions[id].opcode == Opcode::kParameter) return 0;
      if (roles[id] == LoopRole::kIndex) return 2;
      if (roles[id] != LoopRole::kOutside) return 3;
      return feeds_loop[id] ? 1 : 4;
    };
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      if (is_live[id]) order.push_back(id);
    }
    std::ranges::stable_sort(order, {}, part_of);
    Rearrange(order);
    return std::move(written_);
  }

 private:
  void Rearrange(const std::vector<InstructionId>& order) {
    std::vector<InstructionId> now(entry_.instructions.size(), -1);
    for (size_t i = 0; i < order.size(); ++i) now[order[i]] = static_cast<InstructionId>(i);
    std::vector<Instruction> instructions;
    for (const InstructionId id : order) {
      Instruction& instruction = instructions.emplace_back(std::move(entry_.instructions[id]));
      for (Value& operand : instruction.operands) operand.instruction = now[operand.instruction];
    }
    entry_.instructions = std::move(instructions);
    for (InstructionId& parameter : entry_.parameters) parameter = now[parameter];
    for (Value& result : entry_.results) result.instruction = now[result.instruction];
    std::erase_if(step_.marks, [&](const Mark& mark) { return now[mark.value.instruction] < 0; });
    for (Mark& mark : step_.marks) mark.value.instruction = now[mark.value.instruction];
    std::ranges::sort(step_.marks, {}, &Mark::value);
    for (std::vector<MicroBatchedValue>& results : written_.became) {
      for (MicroBatchedValue& result : results) {
        InstructionId& id = result.value.instruction;
        if (id >= 0) id = now[id];
      }
    }
  }

  MicroBatchedStep written_;
  Step& step_;
  Computation& entry_;
};

std::vector<std::vector<MicroBatchedValue>> Unchanged(const Step& step) {
  const Computation& entry = step.module.entry_computation();
  std::vector<std::vector<MicroBatchedValue>> same;
  for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
    std::vector<MicroBatchedValue>& results = same.emplace_back();
    for (int r = 0; r < static_cast<int>(entry.instructions[id].results.size()); ++r) {
      results.push_back({{id, r}});
    }
  }
  return same;
}

}  // namespace

absl::StatusOr<MicroBatchedStep> MakeMicroBatches(const Step& step,
                                                  const MicroBatchOptions& options) {
  if (options.num_micro_batches < 1) {
    return InvalidArgument("{} micro-batches; there is at least one", options.num_micro_batches);
  }
  if (options.num_micro_batches == 1) return MicroBatchedStep{step, Unchanged(step)};
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
  ASSIGN_OR_RETURN(const Analysis analysis, Analyser(step, options, mesh).Run());
  ASSIGN_OR_RETURN(MicroBatchedStep written, LoopWriter(step, analysis, options, mesh).Run());
  return Arranger(std::move(written)).Run();
}

}  // namespace minka
