// Strategies: what they ask of operands and give to results, their enumeration and text.
#include <algorithm>
#include <iterator>
#include <utility>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/sharding/op_rule.h"

namespace minka {
namespace {

using Kind = AxisUse::Kind;

// The uses of the mesh axes in the lane; the whole strategy where there is one lane.
std::span<const AxisUse> LaneUses(const OpRule& rule, const Strategy& strategy, int lane) {
  const size_t num_axes = strategy.axes.size() / rule.num_lanes;
  return std::span(strategy.axes).subspan(lane * num_axes, num_axes);
}

// Splits each dimension over the axes on its factor, major to minor in mesh order.
Sharding SplitDims(const std::vector<int>& dims, std::span<const AxisUse> uses, int first_factor) {
  Sharding sharding = Sharding::Replicated(static_cast<int>(dims.size()));
  for (size_t axis = 0; axis < uses.size(); ++axis) {
    if (uses[axis].kind != Kind::kFactor) continue;
    for (size_t dim = 0; dim < dims.size(); ++dim) {
      if (dims[dim] == kWholeDim || dims[dim] != uses[axis].index + first_factor) continue;
      sharding.dims[dim].PushMinor(static_cast<int>(axis));
    }
  }
  return sharding;
}

// Of an operation with lanes: the number of the lane's first factor in the rule of the whole.
int FirstFactor(const OpRule& rule, int lane) {
  if (rule.num_lanes == 1) return 0;
  int first = 0;
  for (int i = 0; i < lane; ++i) first += static_cast<int>(rule.operand_dims[i].size());
  return first;
}

bool IsIn(const std::vector<int>& list, int item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

bool TakesPartial(const OpRule& rule, const AxisUse& use, int operand) {
  if (use.kind == Kind::kLinear) return IsIn(rule.linear_groups[use.index], operand);
  return use.kind == Kind::kFactor && IsIn(rule.factors[use.index].partial_operands, operand);
}

bool LeavesPartial(const OpRule& rule, const AxisUse& use, int result) {
  if (use.kind != Kind::kFactor) return use.kind == Kind::kLinear;
  const Factor& factor = rule.factors[use.index];
  return factor.kind == FactorKind::kSum || IsIn(factor.partial_results, result);
}

class Enumeration {
 public:
  Enumeration(const OpRule& rule, const Mesh& mesh, const StrategyLimits& limits)
      : rule_(rule), mesh_(mesh), limits_(limits) {
    strategy_.axes.resize(mesh.num_axes());
    parts_.assign(rule.factors.size(), 1);
    num_axes_.assign(rule.factors.size(), 0);
  }

  std::vector<Strategy> Run() {
    Visit(0);
    return std::move(found_);
  }

 private:
  void Visit(int axis) {
    if (axis == mesh_.num_axes()) {
      found_.push_back(strategy_);
      return;
    }
    Visit(axis + 1);
    if (mesh_.size(axis) == 1) return;
    for (int factor = 0; factor < static_cast<int>(rule_.factors.size()); ++factor) {
      TryFactor(axis, factor);
    }
    for (int group = 0; group < static_cast<int>(rule_.linear_groups.size()); ++group) {
      if (num_partial_ == limits_.max_partial_axes) break;
      strategy_.axes[axis] = {Kind::kLinear, group};
      ++num_partial_;
      Visit(axis + 1);
      --num_partial_;
    }
    strategy_.axes[axis] = {};
  }

  void TryFactor(int axis, int factor) {
    const bool sums = rule_.factors[factor].kind == FactorKind::kSum;
    const int64_t parts = parts_[factor] * mesh_.size(axis);
    if (rule_.factors[factor].size % parts != 0 || rule_.factors[factor].size == 0) return;
    if (num_axes_[factor] == limits_.max_axes_per_factor) return;
    if (sums && num_partial_ == limits_.max_partial_axes) return;
    strategy_.axes[axis] = {Kind::kFactor, factor};
    parts_[factor] = parts;
    ++num_axes_[factor];
    num_partial_ += sums ? 1 : 0;
    Visit(axis + 1);
    num_partial_ -= sums ? 1 : 0;
    --num_axes_[factor];
    parts_[factor] = parts / mesh_.size(axis);
  }

  const OpRule& rule_;
  const Mesh& mesh_;
  const StrategyLimits& limits_;
  Strategy strategy_;
  std::vector<int64_t> parts_;  // per factor, by the axes so far
  std::vector<int> num_axes_;   // per factor
  int num_partial_ = 0;
  std::vector<Strategy> found_;
};

std::string GroupName(const std::vector<int>& group) {
  return fmt::format("partial({})", fmt::join(group, ","));
}

std::string UseName(const AxisUse& use, const OpRule& rule) {
  switch (use.kind) {
    case Kind::kIdle:
      return "idle";
    case Kind::kFactor:
      return rule.factors[use.index].name;
    case Kind::kLinear:
      return GroupName(rule.linear_groups[use.index]);
  }
  MINKA_CHECK(false, "axis use of kind {}", static_cast<int>(use.kind));
}

std::string LaneText(std::span<const AxisUse> uses, const OpRule& rule, const Mesh& mesh) {
  std::string text;
  for (size_t axis = 0; axis < uses.size(); ++axis) {
    if (uses[axis].kind == Kind::kIdle) continue;
    text += fmt::format("{}{}: {}", text.empty() ? "" : ", ",
                        mesh.axis(static_cast<int>(axis)).name, UseName(uses[axis], rule));
  }
  return text.empty() ? "idle" : text;
}

absl::StatusOr<AxisUse> ParseUse(std::string_view name, const OpRule& rule) {
  for (size_t i = 0; i < rule.factors.size(); ++i) {
    if (rule.factors[i].name == name) return AxisUse{Kind::kFactor, static_cast<int>(i)};
  }
  for (size_t i = 0; i < rule.linear_groups.size(); ++i) {
    if (GroupName(rule.linear_groups[i]) == name) {
      return AxisUse{Kind::kLinear, static_cast<int>(i)};
    }
  }
  std::string known;
  for (const Factor& factor : rule.factors) known += factor.name + ", ";
  for (const std::vector<int>& group : rule.linear_groups) known += GroupName(group) + ", ";
  if (!known.empty()) known.resize(known.size() - 2);
  return InvalidArgument("strategy: the operation has no factor '{}'; it has: {}", name, known);
}

// Splits at `separator` outside parentheses and trims spaces.
std::vector<std::string_view> SplitOutside(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && text[i] == '(') ++depth;
    if (i < text.size() && text[i] == ')') --depth;
    if (i < text.size() && (text[i] != separator || depth > 0)) continue;
    std::string_view part = text.substr(begin, i - begin);
    while (!part.empty() && part.front() == ' ') part.remove_prefix(1);
    while (!part.empty() && part.back() == ' ') part.remove_suffix(1);
    parts.push_back(part);
    begin = i + 1;
  }
  return parts;
}

absl::StatusOr<Strategy> ParseLane(std::string_view text, const OpRule& rule, const Mesh& mesh) {
  Strategy strategy;
  strategy.axes.resize(mesh.num_axes());
  if (text == "idle") return strategy;
  std::vector<int64_t> parts(rule.factors.size(), 1);
  for (const std::string_view part : SplitOutside(text, ',')) {
    const size_t colon = part.find(": ");
    if (colon == std::string_view::npos) {
      return InvalidArgument("strategy '{}': expected 'AXIS: FACTOR', found '{}'", text, part);
    }
    const int axis = mesh.FindAxis(part.substr(0, colon));
    if (axis < 0) {
      return InvalidArgument("strategy '{}': the mesh {} has no axis '{}'", text, mesh.ToString(),
                             part.substr(0, colon));
    }
    if (strategy.axes[axis].kind != Kind::kIdle) {
      return InvalidArgument("strategy '{}' uses the axis {} twice", text, mesh.axis(axis).name);
    }
    ASSIGN_OR_RETURN(strategy.axes[axis], ParseUse(part.substr(colon + 2), rule));
    if (strategy.axes[axis].kind != Kind::kFactor) continue;
    const int factor = strategy.axes[axis].index;
    parts[factor] *= mesh.size(axis);
    if (rule.factors[factor].size % parts[factor] != 0) {
      return InvalidArgument("strategy '{}': {} of size {} cannot be cut into {}", text,
                             rule.factors[factor].name, rule.factors[factor].size, parts[factor]);
    }
  }
  return strategy;
}

void AppendNumber(std::string& key, int64_t number) {
  fmt::format_to(std::back_inserter(key), "{},", number);
}

void AppendShape(std::string& key, const Shape& shape) {
  AppendNumber(key, static_cast<int64_t>(shape.type));
  for (const int64_t size : shape.dims) AppendNumber(key, size);
  key += ';';
}

void AppendLists(std::string& key, const std::vector<std::vector<int>>& lists) {
  for (const std::vector<int>& list : lists) {
    for (const int number : list) AppendNumber(key, number);
    key += ';';
  }
  key += '|';
}

}  // namespace

Sharding OperandSharding(const OpRule& rule, const Strategy& strategy, int operand) {
  const int lane = rule.num_lanes == 1 ? 0 : operand;
  const std::span<const AxisUse> uses = LaneUses(rule, strategy, lane);
  Sharding sharding = SplitDims(rule.operand_dims[operand], uses, FirstFactor(rule, lane));
  for (size_t axis = 0; axis < uses.size(); ++axis) {
    const bool is_partial = rule.num_lanes > 1 ? uses[axis].kind == Kind::kLinear
                                               : TakesPartial(rule, uses[axis], operand);
    if (is_partial) sharding.partial.Insert(static_cast<int>(axis));
  }
  return sharding;
}

Sharding ResultSharding(const OpRule& rule, const Strategy& strategy, int result) {
  const int lane = rule.num_lanes == 1 ? 0 : result;
  const std::span<const AxisUse> uses = LaneUses(rule, strategy, lane);
  Sharding sharding = SplitDims(rule.result_dims[result], uses, FirstFactor(rule, lane));
  for (size_t axis = 0; axis < uses.size(); ++axis) {
    const bool is_partial = rule.num_lanes > 1 ? uses[axis].kind == Kind::kLinear
                                               : LeavesPartial(rule, uses[axis], result);
    if (is_partial) sharding.partial.Insert(static_cast<int>(axis));
  }
  return sharding;
}

AxisSet CombineAxes(const OpRule& rule, const Strategy& strategy) {
  AxisSet axes;
  if (rule.num_lanes > 1) return axes;
  for (size_t axis = 0; axis < strategy.axes.size(); ++axis) {
    const AxisUse& use = strategy.axes[axis];
    if (use.kind == Kind::kFactor && rule.factors[use.index].kind == FactorKind::kCombine) {
      axes.Insert(static_cast<int>(axis));
    }
  }
  return axes;
}

std::vector<Strategy> EnumerateStrategies(const OpRule& rule, const Mesh& mesh,
                                          const StrategyLimits& limits) {
  MINKA_CHECK(rule.num_lanes == 1, "enumerate the strategies of each lane by LaneRule()");
  return Enumeration(rule, mesh, limits).Run();
}

std::string ToString(const Strategy& strategy, const OpRule& rule, const Mesh& mesh) {
  std::string text;
  for (int lane = 0; lane < rule.num_lanes; ++lane) {
    if (lane > 0) text += " | ";
    text += LaneText(LaneUses(rule, strategy, lane),
                     rule.num_lanes == 1 ? rule : LaneRule(rule, lane), mesh);
  }
  return text;
}

absl::StatusOr<Strategy> ParseStrategy(std::string_view text, const OpRule& rule,
                                       const Mesh& mesh) {
  const std::vector<std::string_view> lanes = SplitOutside(text, '|');
  if (static_cast<int>(lanes.size()) != rule.num_lanes) {
    return InvalidArgument("strategy '{}' has {} lanes, the operation {}", text, lanes.size(),
                           rule.num_lanes);
  }
  Strategy strategy;
  for (int lane = 0; lane < rule.num_lanes; ++lane) {
    ASSIGN_OR_RETURN(
        const Strategy part,
        ParseLane(lanes[lane], rule.num_lanes == 1 ? rule : LaneRule(rule, lane), mesh));
    strategy.axes.insert(strategy.axes.end(), part.axes.begin(), part.axes.end());
  }
  return strategy;
}

std::string RuleKey(const OpRule& rule, const Computation& computation, InstructionId id) {
  std::string key;
  AppendNumber(key, rule.num_lanes);
  AppendNumber(key, rule.supported ? 1 : 0);
  for (const Factor& factor : rule.factors) {
    AppendNumber(key, static_cast<int64_t>(factor.kind));
    AppendNumber(key, factor.size);
    AppendNumber(key, static_cast<int64_t>(factor.combiner));
    AppendNumber(key, static_cast<int64_t>(factor.local_form));
    AppendLists(key, {factor.partial_operands, factor.partial_results});
  }
  key += '|';
  AppendLists(key, rule.operand_dims);
  AppendLists(key, rule.result_dims);
  AppendLists(key, rule.linear_groups);
  const Instruction& instruction = computation.instructions[id];
  // What control flow costs depends on what it runs.
  const bool controls =
      instruction.opcode == Opcode::kWhile || instruction.opcode == Opcode::kConditional;
  for (const ComputationId called : instruction.called) AppendNumber(key, controls ? called : 0);
  for (const Value operand : instruction.operands) AppendShape(key, computation.shape(operand));
  key += '|';
  for (const Shape& result : instruction.results) AppendShape(key, result);
  return key;
}

}  // namespace minka
