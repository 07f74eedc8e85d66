#include "minka/oracle/draws.h"

#include <utility>

#include "minka/analysis/widen.h"
#include "minka/base/status.h"

namespace minka {
namespace {

constexpr int kNudges = 6;

Literal Widened(const Literal& literal) {
  const ElementType type = WidenedType(literal.shape.type);
  if (type == literal.shape.type) return literal;
  Literal reals = literal;
  if (IsComplex(type)) {  // as twice as many real elements
    reals.shape.type = ElementType::kF32;
    reals.shape.dims.push_back(2);
  }
  return {{type, literal.shape.dims}, ConvertLiteral(reals, ElementType::kF64).bytes};
}

// A rounding moves a value by at most half the distance of its neighbours; in the value's own type
// only the whole distance leads to another one.
double NudgeOf(ElementType type, double path_epsilon) {
  return path_epsilon > Epsilon(type) ? path_epsilon / 2 : path_epsilon;
}

// The inputs with a function of (parameter, value, some number) over each value.
template <typename Function>
StepInputs WithEach(const StepInputs& inputs, const Function& function) {
  return [&inputs, &function](int step) -> absl::StatusOr<ParameterValues> {
    ASSIGN_OR_RETURN(ParameterValues values, inputs(step));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = function(i, values[i], values.size() * static_cast<uint64_t>(step) + i);
    }
    return values;
  };
}

// The state that the first step reads, by result.
absl::StatusOr<std::vector<Literal>> StateBefore(const Step& step, const StepInputs& inputs) {
  std::vector<Literal> before(step.results.size());
  ASSIGN_OR_RETURN(const ParameterValues values, inputs(0));
  for (size_t i = 0; i < step.parameters.size(); ++i) {
    const int result = step.parameters[i].state_result;
    if (step.parameters[i].role != ParameterRole::kState || result < 0) continue;
    before[result] = values[i];
  }
  return before;
}

}  // namespace

absl::StatusOr<OneDeviceResults> DrawNoise(const Step& step, const StepInputs& inputs,
                                           const OneDeviceRuns& runs) {
  const PathEpsilons epsilons = FindPathEpsilons(step);
  OneDeviceResults results;
  ASSIGN_OR_RETURN(results.before, StateBefore(step, inputs));
  ASSIGN_OR_RETURN(results.single, runs.single(inputs));
  for (uint64_t draw = 0; draw < kNudges; ++draw) {
    const auto nudge = [&](size_t parameter, const Literal& value, uint64_t seed) {
      return Nudged(value, NudgeOf(value.shape.type, epsilons.of_parameters[parameter]),
                    seed + (draw << 32));
    };
    const StepInputs nudged = WithEach(inputs, nudge);
    ASSIGN_OR_RETURN(results.nudged_before.emplace_back(), StateBefore(step, nudged));
    ASSIGN_OR_RETURN(results.nudged.emplace_back(), runs.nudged(nudged));
  }
  const auto widen = [](size_t, const Literal& value, uint64_t) { return Widened(value); };
  ASSIGN_OR_RETURN(results.reference, runs.reference(WithEach(inputs, widen)));
  return results;
}

}  // namespace minka
