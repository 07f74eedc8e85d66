#include "minka/planner/intra_op/restrictions.h"

#include <algorithm>
#include <map>
#include <set>
#include <span>

#include "fmt/ranges.h"
#include "minka/base/status.h"
#include "minka/ir/micro_loop.h"
#include "minka/ir/names.h"
#include "minka/sharding/example_dims.h"

namespace minka {
namespace {

// The batch dimension over every axis; nullopt where the axes do not divide it.
std::optional<Sharding> OverAllAxes(const Shape& shape, int batch_dim, const Mesh& mesh) {
  Sharding sharding = Sharding::Replicated(shape.rank());
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    if (mesh.size(axis) > 1) sharding.dims[batch_dim].PushMinor(axis);
  }
  if (!Validate(sharding, shape, mesh).ok()) return std::nullopt;
  return sharding;
}

// Axes of one device split nothing, and no choice is split over them.
Sharding WithoutAxesOfOne(const Sharding& sharding, const Mesh& mesh) {
  Sharding out = Sharding::Replicated(static_cast<int>(sharding.dims.size()));
  for (size_t dim = 0; dim < sharding.dims.size(); ++dim) {
    for (int i = 0; i < sharding.dims[dim].size(); ++i) {
      const int axis = sharding.dims[dim][i];
      if (mesh.size(axis) > 1) out.dims[dim].PushMinor(axis);
    }
  }
  return out;
}

bool CanBeSplit(const Shape& shape, const Mesh& mesh) {
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    for (const int64_t size : shape.dims) {
      if (mesh.size(axis) > 1 && size % mesh.size(axis) == 0) return true;
    }
  }
  return false;
}

// As "model=4".
std::vector<std::string> UndividedAxes(int64_t size, const Mesh& mesh) {
  std::vector<std::string> axes;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    if (size % mesh.size(axis) == 0) continue;
    axes.push_back(fmt::format("{}={}", mesh.axis(axis).name, mesh.size(axis)));
  }
  return axes;
}

int64_t NumDevices(const Sharding& sharding, const Mesh& mesh) {
  return mesh.size(sharding.split_axes());
}

}  // namespace

std::vector<bool> FindOptimizerState(const Step& step) {
  const Computation& entry = step.module.entry_computation();
  std::vector<bool> found;
  const UseTable uses(entry);
  for (size_t i = 0; i < step.parameters.size(); ++i) {
    const std::span<const Use> readers = uses.uses({entry.parameters[i], 0});
    found.push_back(step.parameters[i].role == ParameterRole::kState &&
                    std::ranges::all_of(readers, [&](const Use& use) {
                      return entry.instructions[use.user].part.phase == Phase::kApply;
                    }));
  }
  return found;
}

bool IsDataParallel(Method method) {
  switch (method) {
    case Method::kShard:
      return false;
    case Method::kData:
    case Method::kZero2:
    case Method::kZero3:
      return true;
  }
  return false;
}

absl::Status CheckCompatible(const IntraOpOptions& options, const Mesh& mesh) {
  const SearchLimits& limits = options.search.limits;
  const std::string_view method = MethodName(options.method);
  const int batch_axis = mesh.FindAxis(limits.batch_axis);
  if (!limits.batch_axis.empty() && batch_axis < 0) {
    return InvalidArgument("the batch is to lie on axis \"{}\"; the mesh {} has no such axis",
                           limits.batch_axis, mesh.ToString());
  }
  if (!IsDataParallel(options.method)) return absl::OkStatus();
  for (int axis = 0; axis < mesh.num_axes() && batch_axis >= 0; ++axis) {
    if (axis == batch_axis || mesh.size(axis) == 1) continue;
    return InvalidArgument(
        "method {} splits the batch over all axes of the mesh {}, --batch-axis over {} alone; drop "
        "--batch-axis, or search with method shard",
        method, mesh.ToString(), limits.batch_axis);
  }
  if (limits.no_replicated_parameters && options.method != Method::kZero3) {
    return InvalidArgument(
        "method {} keeps parameters whole on every device, which --no-replicated-parameters "
        "forbids; drop the flag, or take method zero3 or shard",
        method);
  }
  if (limits.prefer_reduce_scatter && options.method == Method::kData) {
    return InvalidArgument(
        "method data keeps the optimizer's state whole, --prefer-reduce-scatter splits it; drop "
        "the flag, or take method zero2 or shard");
  }
  return absl::OkStatus();
}

std::string Restriction::Key(const Mesh& mesh) const {
  if (empty()) return "";
  return fmt::format("{} {} {} {} {} ", exact ? ToString(*exact, mesh) : "",
                     static_cast<int>(split), batch_factor, batch_axis,
                     fmt::join(whole_factors, ","));
}

Restrictions::Restrictions(const Step& step, const Mesh& mesh, const IntraOpOptions& options)
    : step_(step),
      mesh_(mesh),
      options_(options),
      has_micro_batches_(FindMicroLoop(step.module).exists()),
      is_optimizer_state_(FindOptimizerState(step)) {}

absl::StatusOr<Restrictions> Restrictions::Create(const Step& step, const Mesh& mesh,
                                                  const IntraOpOptions& options) {
  RETURN_IF_ERROR(CheckCompatible(options, mesh));
  Restrictions out(step, mesh, options);
  RETURN_IF_ERROR(out.ParsePins());
  const SearchLimits& limits = options.search.limits;
  out.batch_axis_ = mesh.FindAxis(limits.batch_axis);
  if (out.batch_axis_ >= 0 || limits.no_sequence_split) out.example_dims_ = FindExampleDims(step);
  return out;
}

absl::Status Restrictions::ParsePins() {
  for (const std::string& text : options_.search.pins) {
    const size_t cut = text.rfind('=');
    if (cut == std::string::npos || cut == 0) {
      return InvalidArgument("pin \"{}\": expected GLOB=SHARDING, e.g. '*/kernel=[-,model]'", text);
    }
    auto sharding = ParseSharding(std::string_view(text).substr(cut + 1), mesh_);
    if (!sharding.ok()) return WithContext(sharding.status(), fmt::format("pin \"{}\"", text));
    if (!sharding->partial.empty()) {
      return InvalidArgument("pin \"{}\": what is pinned is complete, not partial", text);
    }
    Pin pin{
        .glob = text.substr(0, cut), .text = text, .sharding = WithoutAxesOfOne(*sharding, mesh_)};
    for (const ParameterInfo& info : step_.parameters) {
      pin.names_parameters = pin.names_parameters || MatchesGlob(pin.glob, info.name);
    }
    for (const ResultInfo& info : step_.results) {
      pin.names_results = pin.names_results ||
                          (info.role != ResultRole::kState && MatchesGlob(pin.glob, info.name));
    }
    pins_.push_back(std::move(pin));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<Restrictions::Wanted>> Restrictions::PinOf(const ParameterInfo& info,
                                                                        const Shape& shape) {
  std::optional<Wanted> found;
  for (Pin& pin : pins_) {
    if (!MatchesGlob(pin.glob, info.name)) continue;
    pin.used = true;
    Sharding wanted = pin.sharding;
    const bool is_split = has_micro_batches_ && info.role == ParameterRole::kBatch;
    if (is_split && info.batch_dim > 0 && wanted.dims.size() + 1 == shape.dims.size()) {
      // The module's own shape: what counts micro-batches stands in front of the batch.
      wanted.dims.insert(wanted.dims.begin() + info.batch_dim - 1, AxisList());
    }
    if (found && found->sharding != wanted) {
      return InvalidArgument("pins \"{}\" and \"{}\" want {} in different shardings",
                             found->pin->text, pin.text, info.name);
    }
    const absl::Status valid = Validate(wanted, shape, mesh_);
    if (!valid.ok()) return WithContext(valid, fmt::format("pin on {}", info.name));
    found = {&pin, std::move(wanted)};
  }
  return found;
}

// Does the pin split the dimension that counts examples as method and batch axis want it?
absl::Status Restrictions::CheckPinOnBatch(const Pin& pin, const Sharding& sharding,
                                           const std::string& name, const Shape& shape,
                                           int batch_dim) const {
  if (batch_axis_ < 0 || shape.dims[batch_dim] % mesh_.size(batch_axis_) != 0) {
    return absl::OkStatus();
  }
  AxisSet split;
  for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
    const bool is_used = sharding.dims[batch_dim].axes().contains(axis);
    if (is_used && mesh_.size(axis) > 1) split = split.Union(AxisSet::Of(axis));
  }
  if (split == (mesh_.size(batch_axis_) > 1 ? AxisSet::Of(batch_axis_) : AxisSet())) {
    return absl::OkStatus();
  }
  return InvalidArgument(
      "pin \"{}\" and --batch-axis {} disagree: the pin does not split the dimension of {} that "
      "counts examples over that axis and no other; drop one of them",
      pin.text, mesh_.axis(batch_axis_).name, name);
}

// Does the pin agree with limits on the dimensions of examples?
absl::Status Restrictions::CheckPinOnExamples(const Pin& pin, const Sharding& sharding, Value value,
                                              const std::string& name) const {
  if (example_dims_.empty()) return absl::OkStatus();
  const Shape& shape = step_.module.entry_computation().shape(value);
  const ExampleDims& dims = example_dims_[value.instruction][value.result];
  if (dims.batch >= 0) RETURN_IF_ERROR(CheckPinOnBatch(pin, sharding, name, shape, dims.batch));
  if (!options_.search.limits.no_sequence_split) return absl::OkStatus();
  for (const int dim : dims.within) {
    if (sharding.dims[dim].axes().empty()) continue;
    return InvalidArgument(
        "pin \"{}\" and --no-sequence-split disagree: the pin splits dimension {} of {}, which "
        "lies within examples; drop one of them",
        pin.text, dim, name);
  }
  return absl::OkStatus();
}

// Does the pin on a parameter agree with method and limits? Methods leave state to pins.
absl::Status Restrictions::CheckPin(const Wanted& wanted, InstructionId parameter,
                                    const ParameterInfo& info) const {
  const Shape& shape = step_.module.entry_computation().instructions[parameter].shape();
  RETURN_IF_ERROR(CheckPinOnExamples(*wanted.pin, wanted.sharding, {parameter, 0}, info.name));
  if (info.role == ParameterRole::kBatch && info.batch_dim >= 0) {
    if (!IsDataParallel(options_.method)) return absl::OkStatus();
    ASSIGN_OR_RETURN(const Restriction batch, OfBatch(info, shape));
    if (wanted.sharding == *batch.exact) return absl::OkStatus();
    return InvalidArgument(
        "pin \"{}\" and method {} disagree: the method splits the batch over all devices, {} as "
        "{}; drop the pin, or search with method shard",
        wanted.pin->text, MethodName(options_.method), info.name, ToString(*batch.exact, mesh_));
  }
  const bool is_whole = NumDevices(wanted.sharding, mesh_) == 1;
  if (info.role != ParameterRole::kState || !is_whole || !CanBeSplit(shape, mesh_) ||
      !options_.search.limits.no_replicated_parameters) {
    return absl::OkStatus();
  }
  return InvalidArgument(
      "pin \"{}\" and --no-replicated-parameters disagree: the pin keeps {} whole; drop one of "
      "them",
      wanted.pin->text, info.name);
}

absl::StatusOr<Restriction> Restrictions::OfParameter(InstructionId id) {
  const Instruction& instruction = step_.module.entry_computation().instructions[id];
  const auto number = static_cast<size_t>(instruction.As<ParameterAttributes>().number);
  const ParameterInfo& info = step_.parameters[number];
  Restriction restriction{.tensor = info.name};
  ASSIGN_OR_RETURN(const std::optional<Wanted> wanted, PinOf(info, instruction.shape()));
  if (wanted) {
    RETURN_IF_ERROR(CheckPin(*wanted, id, info));
    restriction.exact = wanted->sharding;
    if (info.role == ParameterRole::kState && IsDataParallel(options_.method)) {
      const bool wants_split =
          OfState(info, is_optimizer_state_[number]).split != Restriction::Split::kAny &&
          CanBeSplit(instruction.shape(), mesh_);
      const bool is_split = NumDevices(wanted->sharding, mesh_) > 1;
      if (is_split != wants_split) wanted->pin->exceptions.push_back(info.name);
    }
    return restriction;
  }
  if (info.role == ParameterRole::kBatch && info.batch_dim >= 0) {
    return OfBatch(info, instruction.shape());
  }
  if (info.role == ParameterRole::kState) {
    restriction = OfState(info, is_optimizer_state_[number]);
    if (restriction.split != Restriction::Split::kAny) return restriction;
  }
  if (IsDataParallel(options_.method)) {
    restriction.exact = Sharding::Replicated(instruction.shape().rank());
  }
  return restriction;
}

Restriction Restrictions::OfSum(InstructionId id) const {
  Restriction restriction{.tensor = step_.module.entry_computation().instructions[id].name};
  if (options_.scatters_accumulators) restriction.split = Restriction::Split::kMost;
  return restriction;
}

absl::StatusOr<Restriction> Restrictions::OfBatch(const ParameterInfo& info,
                                                  const Shape& shape) const {
  Restriction restriction{.tensor = info.name};
  if (batch_axis_ >= 0 && shape.dims[info.batch_dim] % mesh_.size(batch_axis_) != 0) {
    return InvalidArgument(
        "--batch-axis {}: its {} devices do not divide dimension {} of {} {}, which counts "
        "examples; change the batch, the number of micro-batches or the mesh, or drop "
        "--batch-axis",
        mesh_.axis(batch_axis_).name, mesh_.size(batch_axis_), info.batch_dim, info.name,
        ToString(shape));
  }
  if (!IsDataParallel(options_.method)) return restriction;
  restriction.exact = OverAllAxes(shape, info.batch_dim, mesh_);
  if (restriction.exact) return restriction;
  return InvalidArgument(
      "method {} splits the batch over all {} devices, which do not divide dimension {} of {} {}; "
      "change the batch, the number of micro-batches or the mesh, or search with method shard",
      MethodName(options_.method), mesh_.num_devices(), info.batch_dim, info.name, ToString(shape));
}

Restriction Restrictions::OfState(const ParameterInfo& info, bool is_optimizer_state) const {
  Restriction restriction{.tensor = info.name};
  const SearchLimits& limits = options_.search.limits;
  const bool zero3 = options_.method == Method::kZero3;
  if (zero3 || (is_optimizer_state && options_.method == Method::kZero2)) {
    restriction.split = Restriction::Split::kMost;
  } else if (limits.no_replicated_parameters) {
    restriction.split = Restriction::Split::kSome;
  }
  return restriction;
}

absl::StatusOr<std::map<Value, Sharding>> Restrictions::OfValues() {
  std::map<Value, Sharding> values;
  RETURN_IF_ERROR(PinResults(values));
  RETURN_IF_ERROR(PinOperations(values));
  return values;
}

absl::Status Restrictions::Set(const Pin& pin, Value value, const std::string& name,
                               std::map<Value, Sharding>& values) const {
  const Shape& shape = step_.module.entry_computation().shape(value);
  const absl::Status valid = Validate(pin.sharding, shape, mesh_);
  if (!valid.ok()) return WithContext(valid, fmt::format("pin on {}", name));
  const auto [found, added] = values.try_emplace(value, pin.sharding);
  if (!added && found->second != pin.sharding) {
    return InvalidArgument("pin \"{}\" wants {} otherwise than another pin, in {}", pin.text, name,
                           ToString(found->second, mesh_));
  }
  return CheckPinOnExamples(pin, pin.sharding, value, name);
}

absl::Status Restrictions::PinResults(std::map<Value, Sharding>& values) {
  const Computation& entry = step_.module.entry_computation();
  for (Pin& pin : pins_) {
    for (size_t i = 0; pin.names_results && i < step_.results.size(); ++i) {
      const ResultInfo& result = step_.results[i];
      if (result.role == ResultRole::kState || !MatchesGlob(pin.glob, result.name)) continue;
      const Value value = entry.results[i];
      if (entry.instruction(value).opcode == Opcode::kParameter) {
        return InvalidArgument("pin \"{}\": the result {} is {}; pin that", pin.text, result.name,
                               entry.instruction(value).name);
      }
      pin.used = true;
      RETURN_IF_ERROR(Set(pin, value, result.name, values));
    }
  }
  return absl::OkStatus();
}

absl::Status Restrictions::PinOperations(std::map<Value, Sharding>& values) {
  const Computation& entry = step_.module.entry_computation();
  for (Pin& pin : pins_) {
    if (pin.names_parameters || pin.names_results) continue;
    for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
      const Instruction& instruction = entry.instructions[id];
      if (instruction.opcode == Opcode::kParameter) continue;
      const size_t num_results = instruction.results.size();
      for (int32_t result = 0; result < static_cast<int32_t>(num_results); ++result) {
        const std::string name = ValueName(instruction.name, num_results, result);
        // Many operations share a frontend's name: those that can lie so do.
        const bool by_op_name =
            MatchesGlob(pin.glob, ValueName(instruction.op_name, num_results, result)) &&
            instruction.opcode != Opcode::kConstant &&
            Validate(pin.sharding, instruction.results[result], mesh_).ok();
        if (!by_op_name && !MatchesGlob(pin.glob, name)) continue;
        pin.used = true;
        RETURN_IF_ERROR(Set(pin, {id, result}, name, values));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Restrictions::CheckAllUsed() const {
  for (const Pin& pin : pins_) {
    if (pin.used) continue;
    for (const Instruction& instruction : step_.module.entry_computation().instructions) {
      if (instruction.results.size() < 2 || !MatchesGlob(pin.glob, instruction.name)) continue;
      return InvalidArgument("pin \"{}\": {} has {} results; pin each by its number: {}#0",
                             pin.text, instruction.name, instruction.results.size(),
                             instruction.name);
    }
    return NotFound("pin \"{}\" names no parameter, result or operation; names look like \"{}\"",
                    pin.glob, step_.parameters.empty() ? "" : step_.parameters.front().name);
  }
  return absl::OkStatus();
}

void Restrictions::NoteExceptions() {
  for (const Pin& pin : pins_) {
    if (pin.exceptions.empty()) continue;
    notes_.push_back(fmt::format(
        "pin \"{}\": {}{} not as method {} would have {}", pin.text, pin.exceptions.front(),
        pin.exceptions.size() > 1 ? fmt::format(" and {} more lie", pin.exceptions.size() - 1)
                                  : " lies",
        MethodName(options_.method), pin.exceptions.size() > 1 ? "them" : "it"));
  }
}

void Restrictions::NoteUndivided() {
  if (IsDataParallel(options_.method)) return;
  struct Undivided {
    std::string first;
    int num_more = 0;
  };
  std::map<int64_t, Undivided> by_size;
  const Computation& entry = step_.module.entry_computation();
  for (size_t i = 0; i < step_.parameters.size(); ++i) {
    const Shape& shape = entry.instructions[entry.parameters[i]].shape();
    const ParameterInfo& info = step_.parameters[i];
    const bool has_micro_dim = has_micro_batches_ && info.role == ParameterRole::kBatch;
    for (int dim = 0; dim < shape.rank(); ++dim) {
      if (has_micro_dim && dim == info.batch_dim - 1) continue;  // counts micro-batches
      if (shape.dims[dim] == 1 || UndividedAxes(shape.dims[dim], mesh_).empty()) continue;
      const auto [found, added] = by_size.try_emplace(shape.dims[dim]);
      if (added) {
        found->second.first = fmt::format("dimension {} of {} {}", dim, info.name, ToString(shape));
      } else {
        ++found->second.num_more;
      }
    }
  }
  for (const auto& [size, undivided] : by_size) {
    notes_.push_back(
        fmt::format("{} stays whole along {}: {} is not divisible{}", undivided.first,
                    fmt::join(UndividedAxes(size, mesh_), " and "), size,
                    undivided.num_more == 0
                        ? ""
                        : fmt::format("; nor {} {} more of that size",
                                      undivided.num_more == 1 ? "is" : "are", undivided.num_more)));
  }
}

absl::Status Restrictions::Keep(const Restriction& restriction, const OpRule& rule,
                                std::vector<Strategy>& strategies) const {
  if (restriction.empty()) return absl::OkStatus();
  const auto result = [&](const Strategy& strategy) { return ResultSharding(rule, strategy, 0); };
  if (restriction.exact) {
    std::erase_if(strategies, [&](const Strategy& s) { return result(s) != *restriction.exact; });
    if (!strategies.empty()) return absl::OkStatus();
    return InvalidArgument(
        "no strategy gives {} the sharding {}; axes of one dimension go in the order of the mesh "
        "{}",
        restriction.tensor, ToString(*restriction.exact, mesh_), mesh_.ToString());
  }
  if (restriction.batch_factor >= 0) KeepBatchAxis(restriction, strategies);
  std::erase_if(strategies, [&](const Strategy& strategy) {
    return std::ranges::any_of(strategy.axes, [&](const AxisUse& use) {
      return use.kind == AxisUse::Kind::kFactor &&
             std::ranges::binary_search(restriction.whole_factors, use.index);
    });
  });
  if (restriction.split == Restriction::Split::kAny) return absl::OkStatus();
  int64_t most = 1;
  for (const Strategy& s : strategies) most = std::max(most, NumDevices(result(s), mesh_));
  const bool all = restriction.split == Restriction::Split::kMost;
  const int64_t least = all ? most : std::min<int64_t>(most, 2);
  std::erase_if(strategies,
                [&](const Strategy& s) { return NumDevices(result(s), mesh_) < least; });
  return absl::OkStatus();
}

void Restrictions::KeepBatchAxis(const Restriction& restriction,
                                 std::vector<Strategy>& strategies) const {
  const AxisUse batch = {AxisUse::Kind::kFactor, restriction.batch_factor};
  const auto obeys = [&](const Strategy& strategy) {
    for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
      if (mesh_.size(axis) == 1) continue;
      if ((strategy.axes[axis] == batch) != (axis == restriction.batch_axis)) return false;
    }
    return true;
  };
  // Where the axis does not divide the batch nothing can obey.
  if (std::ranges::none_of(strategies, obeys)) return;
  std::erase_if(strategies, [&](const Strategy& strategy) { return !obeys(strategy); });
}

void Restrictions::AddOfExamples(InstructionId id, const OpRule& rule,
                                 Restriction& restriction) const {
  if (example_dims_.empty() || rule.num_lanes > 1) return;
  const Instruction& instruction = step_.module.entry_computation().instructions[id];
  int batch = kWholeDim;
  std::set<int> within;
  const auto add = [&](const std::vector<int>& factor_of_dim, const ExampleDims& dims) {
    if (dims.batch >= 0 && batch == kWholeDim) batch = factor_of_dim[dims.batch];
    for (const int dim : dims.within) within.insert(factor_of_dim[dim]);
  };
  for (size_t i = 0; i < instruction.operands.size(); ++i) {
    const Value operand = instruction.operands[i];
    add(rule.operand_dims[i], example_dims_[operand.instruction][operand.result]);
  }
  if (instruction.opcode == Opcode::kParameter) add(rule.result_dims[0], example_dims_[id][0]);
  if (batch_axis_ >= 0 && batch != kWholeDim) {
    restriction.batch_factor = batch;
    restriction.batch_axis = batch_axis_;
  }
  if (!options_.search.limits.no_sequence_split || instruction.part.phase == Phase::kApply) return;
  within.erase(kWholeDim);
  within.erase(batch);
  restriction.whole_factors.assign(within.begin(), within.end());
}

void Restrictions::NoteIfWhole(const Restriction& restriction, const Shape& shape,
                               const OpRule& rule, const std::vector<Strategy>& strategies) {
  if (restriction.split == Restriction::Split::kAny || shape.num_elements() <= 1) return;
  if (mesh_.num_devices() == 1 || !ResultSharding(rule, strategies[0], 0).is_replicated()) return;
  notes_.push_back(fmt::format("{} stays whole: {} devices divide no dimension of {}",
                               restriction.tensor, mesh_.num_devices(), ToString(shape)));
}

}  // namespace minka
