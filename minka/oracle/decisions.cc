#include "minka/oracle/decisions.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "minka/ir/rewriter.h"
#include "minka/sharding/rule_builder.h"

namespace minka {
namespace {

bool IsMinOrMax(const Module& module, const Instruction& instruction) {
  if (instruction.opcode != Opcode::kReduce || instruction.results.size() != 1) return false;
  const std::optional<Opcode> reducer = BinaryReducer(module, instruction.called[0]);
  return reducer == Opcode::kMaximum || reducer == Opcode::kMinimum;
}

// The value behind what only copies or repeats it.
Value Source(const Computation& entry, Value value) {
  while (true) {
    const Instruction& instruction = entry.instruction(value);
    switch (instruction.opcode) {
      case Opcode::kBroadcast:
      case Opcode::kReshape:
      case Opcode::kTranspose:
      case Opcode::kOptBarrier:
        value = instruction.operands[value.result];
        break;
      default:
        return value;
    }
  }
}

bool IsEqualityWithExtreme(const Module& module, const Instruction& instruction) {
  if (instruction.opcode != Opcode::kCompare) return false;
  const auto direction = instruction.As<CompareAttributes>().direction;
  const bool is_equality = direction == CompareAttributes::Direction::kEq ||
                           direction == CompareAttributes::Direction::kNe;
  const Computation& entry = module.entry_computation();
  return is_equality && std::ranges::any_of(instruction.operands, [&](Value operand) {
           return IsMinOrMax(module, entry.instruction(Source(entry, operand)));
         });
}

// Does it move whole elements to where the order of its first operand says?
bool PicksPlaces(const Instruction& instruction) {
  switch (instruction.opcode) {
    case Opcode::kSort:
    case Opcode::kTopK:
      return true;
    case Opcode::kReduce:
      return instruction.results.size() == 2;
    default:
      return false;
  }
}

bool IsQuotientOrRoot(const Instruction& instruction) {
  switch (instruction.opcode) {
    case Opcode::kCbrt:
    case Opcode::kDivide:
    case Opcode::kLog:
    case Opcode::kPower:
    case Opcode::kRsqrt:
    case Opcode::kSqrt:
      return true;
    default:
      return false;
  }
}

// How the inputs of a decision that is no pick of places lie to where its result changes.
double DistanceToThreshold(const Instruction& instruction, double x, double y) {
  switch (instruction.opcode) {
    case Opcode::kCompare:
      return std::abs(x - y);
    case Opcode::kSign:
      return std::abs(x);
    case Opcode::kRoundNearestAfz:
    case Opcode::kRoundNearestEven:
      return std::abs(x - std::floor(x) - 0.5);
    default:
      return std::abs(x - std::round(x));
  }
}

// The places in an array between which a pick chose for each of its elements.
class PickedPlaces {
 public:
  PickedPlaces(const Instruction& instruction, const Shape& keys, const Shape& picked)
      : keys_(keys), picked_(picked), is_reduced_(keys.rank()) {
    keeps_rank_ = instruction.opcode != Opcode::kReduce;
    if (instruction.opcode == Opcode::kTopK) {
      is_reduced_.back() = true;
      return;
    }
    for (const int64_t dim : instruction.As<DimensionsAttributes>().dims) is_reduced_[dim] = true;
  }

  std::vector<int64_t> Of(int64_t element) const {
    std::vector<int64_t> places = {0};
    int64_t stride = 1;
    int at = picked_.rank() - 1;
    for (int dim = keys_.rank() - 1; dim >= 0; --dim) {
      int64_t index = 0;
      if (keeps_rank_ || !is_reduced_[dim]) {
        index = element % picked_.dims[at];
        element /= picked_.dims[at--];
      }
      const int64_t first = is_reduced_[dim] ? 0 : index;
      const int64_t count = is_reduced_[dim] ? keys_.dims[dim] : 1;
      std::vector<int64_t> next;
      for (int64_t i = first; i < first + count; ++i) {
        for (const int64_t place : places) next.push_back(place + i * stride);
      }
      places = std::move(next);
      stride *= keys_.dims[dim];
    }
    return places;
  }

  // Along the dimension that top-k sorts.
  int64_t IndexOf(int64_t place) const { return place % keys_.dims.back(); }

 private:
  const Shape& keys_;
  const Shape& picked_;
  std::vector<bool> is_reduced_;
  bool keeps_rank_ = false;
};

// Between the keys that both runs picked, by those of the other run: keys, what moves with them
// (top-k: nothing, their numbers do), and the picked keys.
double DistanceOfPick(const Instruction& instruction, std::span<const Literal> inputs,
                      const PickedPlaces& places, double mine, int64_t element) {
  double nearest = std::numeric_limits<double>::quiet_NaN();
  const double picked = ElementAsDouble(inputs.back(), element);
  for (const int64_t place : places.Of(element)) {
    const double payload = instruction.opcode == Opcode::kTopK
                               ? static_cast<double>(places.IndexOf(place))
                               : ElementAsDouble(inputs[1], place);
    if (payload != mine) continue;
    const double distance = std::abs(ElementAsDouble(inputs[0], place) - picked);
    if (!(nearest <= distance)) nearest = distance;
  }
  return nearest;
}

}  // namespace

bool IsPick(const Module& module, Value value) {
  const Computation& entry = module.entry_computation();
  const Instruction& instruction = entry.instruction(value);
  if (instruction.operands.empty() || !IsFloat(entry.shape(instruction.operands[0]).type)) {
    return false;
  }
  if (IsEqualityWithExtreme(module, instruction)) return true;
  return PicksPlaces(instruction) && value.result > 0 && IsInteger(entry.shape(value).type);
}

bool IsDecision(const Module& module, Value value) {
  const Computation& entry = module.entry_computation();
  const Instruction& instruction = entry.instruction(value);
  const auto reads_floats = [&] { return IsFloat(entry.shape(instruction.operands[0]).type); };
  switch (instruction.opcode) {
    case Opcode::kCeil:
    case Opcode::kCompare:
    case Opcode::kFloor:
    case Opcode::kRoundNearestAfz:
    case Opcode::kRoundNearestEven:
    case Opcode::kSign:
      return reads_floats();
    case Opcode::kConvert:
      return reads_floats() && !IsFloat(instruction.shape().type);
    default:
      return IsPick(module, value);
  }
}

bool IsUnstableAtZero(const Computation& entry, const Instruction& instruction) {
  if (instruction.results.size() != 1 || !IsFloat(instruction.shape().type)) return false;
  if (instruction.opcode != Opcode::kMultiply) return IsQuotientOrRoot(instruction);
  return std::ranges::any_of(instruction.operands, [&](Value operand) {
    return IsQuotientOrRoot(entry.instruction(Source(entry, operand)));
  });
}

std::vector<Value> FindPicks(const Module& module) {
  std::vector<Value> picks;
  const Computation& entry = module.entry_computation();
  for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
    for (int r = 0; r < static_cast<int>(entry.instructions[id].results.size()); ++r) {
      if (IsPick(module, {id, r})) picks.push_back({id, r});
    }
  }
  return picks;
}

std::vector<Value> InputsOfDecision(const Module& module, Value decision) {
  const Instruction& instruction = module.entry_computation().instruction(decision);
  if (!PicksPlaces(instruction)) return instruction.operands;
  std::vector<Value> inputs = {instruction.operands[0]};
  if (instruction.opcode != Opcode::kTopK) {
    inputs.push_back(instruction.operands[decision.result]);
  }
  inputs.push_back({decision.instruction, 0});
  return inputs;
}

double ThresholdDistance(const Module& module, Value decision, std::span<const Literal> inputs,
                         int64_t element) {
  return DistanceToThreshold(module.entry_computation().instruction(decision),
                             ElementAsDouble(inputs.front(), element),
                             ElementAsDouble(inputs.back(), element));
}

std::vector<TurnedElement> TurnedElements(const Module& module, Value decision,
                                          std::span<const Literal> inputs, const Literal& mine,
                                          const Literal& other) {
  const Instruction& instruction = module.entry_computation().instruction(decision);
  const bool picks_places = PicksPlaces(instruction);
  std::optional<PickedPlaces> places;
  if (picks_places) places.emplace(instruction, inputs[0].shape, mine.shape);
  std::vector<TurnedElement> turned;
  const std::vector<double> all_mine = ElementsAsDoubles(mine), all = ElementsAsDoubles(other);
  for (int64_t i = 0; i < mine.shape.num_elements(); ++i) {
    if (all_mine[i] == all[i]) continue;
    const double distance = picks_places
                                ? DistanceOfPick(instruction, inputs, *places, all_mine[i], i)
                                : ThresholdDistance(module, decision, inputs, i);
    turned.push_back({i, distance});
  }
  return turned;
}

std::vector<OtherPick> OtherPicks(const Module& module, Value decision,
                                  std::span<const Literal> inputs, const Literal& decided) {
  const Computation& entry = module.entry_computation();
  const Instruction& instruction = entry.instruction(decision);
  if (!IsEqualityWithExtreme(module, instruction)) return {};
  const Instruction* extreme = nullptr;
  for (const Value operand : instruction.operands) {
    const Instruction& source = entry.instruction(Source(entry, operand));
    if (IsMinOrMax(module, source)) extreme = &source;
  }
  const bool is_equality =
      instruction.As<CompareAttributes>().direction == CompareAttributes::Direction::kEq;
  // Of the keys themselves: then a row of the comparison is one of the reduction.
  const bool compares_keys =
      std::ranges::find(instruction.operands, extreme->operands[0]) != instruction.operands.end();
  if (!is_equality || !compares_keys) return {};
  const Shape reduced = extreme->shape();
  const PickedPlaces places(*extreme, decided.shape, reduced);
  std::vector<OtherPick> others;
  for (int64_t row = 0; row < reduced.num_elements(); ++row) {
    const std::vector<int64_t> elements = places.Of(row);
    std::vector<int64_t> picked;
    for (const int64_t element : elements) {
      if ((*decided.bytes)[element] != 0) picked.push_back(element);
    }
    if (picked.empty() || picked.size() == elements.size()) continue;
    for (const int64_t element : elements) {
      if ((*decided.bytes)[element] != 0) continue;
      OtherPick& other = others.emplace_back();
      other.distance = ThresholdDistance(module, decision, inputs, element);
      other.turned = picked;
      other.turned.push_back(element);
    }
  }
  return others;
}

Step WithResults(Step step, std::span<const Value> values) {
  Computation& entry = step.module.entry_computation();
  for (const Value value : values) {
    entry.results.push_back(value);
    step.results.push_back({.name = entry.instruction(value).name});
  }
  return step;
}

Step WithGiven(const Step& step, std::span<const Value> values, std::span<const Value> choices) {
  Step out = step;
  out.marks.clear();
  const Computation& entry = step.module.entry_computation();
  Rewriter rewriter(entry);
  const auto add_input = [&](const std::string& name, const Shape& shape) {
    const auto number = static_cast<int64_t>(out.parameters.size());
    out.parameters.push_back({.role = ParameterRole::kBatch, .name = rewriter.NewName(name)});
    return rewriter.AppendOne({.opcode = Opcode::kParameter,
                               .name = out.parameters.back().name,
                               .results = {shape},
                               .attributes = ParameterAttributes{number}});
  };
  std::map<Value, Value> given;
  for (const Value value : values) {
    given[value] = add_input(entry.instruction(value).name + ".given", entry.shape(value));
  }
  struct Choice {
    Value is_given, given;
  };
  std::map<Value, Choice> chosen;
  for (const Value value : choices) {
    const std::string& name = entry.instruction(value).name;
    const Value is_given = add_input(name + ".is_given", Shape{ElementType::kPred, {}});
    chosen[value] = {is_given, add_input(name + ".given", entry.shape(value))};
  }
  const auto choose = [&](Value value, const Choice& choice) {
    const Shape& shape = entry.shape(value);
    const Value own = rewriter.Now(value);
    const Value mask = rewriter.AppendOne({.opcode = Opcode::kBroadcast,
                                           .name = rewriter.NewName("is_given"),
                                           .operands = {choice.is_given},
                                           .results = {{ElementType::kPred, shape.dims}},
                                           .attributes = DimensionsAttributes{}});
    return rewriter.AppendOne({.opcode = Opcode::kSelect,
                               .name = rewriter.NewName("chosen"),
                               .operands = {mask, choice.given, own},
                               .results = {shape}});
  };
  for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
    rewriter.Copy(id);
    for (int r = 0; r < static_cast<int>(entry.instructions[id].results.size()); ++r) {
      const Value value{id, r};
      if (const auto found = given.find(value); found != given.end()) {
        rewriter.Map(value, found->second);
      } else if (const auto choice = chosen.find(value); choice != chosen.end()) {
        rewriter.Map(value, choose(value, choice->second));
      }
    }
  }
  out.module.entry_computation() = std::move(rewriter).Finish();
  return out;
}

}  // namespace minka
