#include "minka/driver/oracle.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "minka/analysis/widen.h"
#include "minka/base/check.h"
#include "minka/base/hash.h"
#include "minka/base/status.h"
#include "minka/driver/plan_step.h"
#include "minka/driver/prepare.h"
#include "minka/lowering/spmd.h"

namespace minka {
namespace {

// Complex arrays as twice as many real elements.
Literal AsReals(const Literal& literal) {
  if (!IsComplex(literal.shape.type)) return literal;
  Literal real = literal;
  real.shape.type = literal.shape.type == ElementType::kC64 ? ElementType::kF32 : ElementType::kF64;
  real.shape.dims.push_back(2);
  return real;
}

Literal Widened(const Literal& literal) {
  const ElementType type = WidenedType(literal.shape.type);
  if (type == literal.shape.type) return literal;
  const Literal wide = ConvertLiteral(AsReals(literal), ElementType::kF64);
  return {{type, literal.shape.dims}, wide.bytes};
}

std::vector<double> Elements(const Literal& literal) {
  const Literal reals = AsReals(literal);
  std::vector<double> elements;
  elements.reserve(static_cast<size_t>(reals.shape.num_elements()));
  for (int64_t i = 0; i < reals.shape.num_elements(); ++i) {
    elements.push_back(ElementAsDouble(reals, i));
  }
  return elements;
}

// The largest difference; infinite where only one of two elements is a number.
double LargestDifference(const std::vector<double>& x, const std::vector<double>& y) {
  double largest = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] == y[i] || (!std::isfinite(x[i]) && !std::isfinite(y[i]))) continue;
    const double difference = std::abs(x[i] - y[i]);
    largest = std::max(
        largest, std::isfinite(difference) ? difference : std::numeric_limits<double>::infinity());
  }
  return largest;
}

// The elements of one result in all runs. `before` and `nudged_before` are zeros where it is not
// state.
struct ResultElements {
  std::vector<double> minka, single, nudged, reference, before, nudged_before;
};

struct ResultEpsilons {
  double own = 0, path = 0;
  bool is_state = false;
};

// Where the sign of a sum decides, as in Adam's first steps, the part of the elements that a
// rounding turns over is proportional to eps, so the norm of what they do is to its root.
double Roundings(const ResultEpsilons& epsilons, const OutputComparison& out) {
  if (!epsilons.is_state) return 16 * epsilons.path * out.reference_norm;
  const double own = 16 * epsilons.own * out.reference_norm;
  if (epsilons.path <= epsilons.own) return own;
  return std::max(own, 4 * std::sqrt(epsilons.path) * out.change_norm);
}

void CompareNorms(const ResultElements& x, const ResultEpsilons& epsilons, OutputComparison& out) {
  double error = 0, single_error = 0, nudged_error = 0, norm = 0, change_norm = 0;
  bool all_finite = true;
  for (size_t i = 0; i < x.minka.size(); ++i) {
    if (!std::isfinite(x.single[i]) || !std::isfinite(x.reference[i])) {
      // One device overflows here, too: then so may minka.
      all_finite = all_finite && (!std::isfinite(x.minka[i]) || std::isfinite(x.reference[i]));
      continue;
    }
    all_finite = all_finite && std::isfinite(x.minka[i]);
    error += (x.minka[i] - x.reference[i]) * (x.minka[i] - x.reference[i]);
    single_error += (x.single[i] - x.reference[i]) * (x.single[i] - x.reference[i]);
    const double change = x.reference[i] - x.before[i];
    const double nudged_change = x.nudged[i] - x.nudged_before[i];
    if (std::isfinite(nudged_change)) {
      nudged_error += (nudged_change - change) * (nudged_change - change);
    }
    norm += x.reference[i] * x.reference[i];
    change_norm += change * change;
  }
  out.error = std::sqrt(error);
  out.single_error = std::sqrt(single_error);
  out.nudged_error = std::sqrt(nudged_error);
  out.reference_norm = std::sqrt(norm);
  out.change_norm = std::sqrt(change_norm);
  out.allowed_error = 4 * std::max(out.single_error, out.nudged_error) + Roundings(epsilons, out);
  out.ok = all_finite && out.error <= out.allowed_error;
}

void CompareRange(const std::vector<double>& minka, const std::vector<double>& single,
                  OutputComparison& out) {
  if (single.empty()) return;
  const auto [low, high] = std::ranges::minmax(single);
  const double margin = high - low;
  out.ok =
      std::ranges::all_of(minka, [&](double x) { return x >= low - margin && x <= high + margin; });
}

// Zeros where there is no such array.
std::vector<double> ElementsOr0(const std::vector<Literal>& literals, size_t index, size_t count) {
  if (index >= literals.size() || !literals[index].bytes) return std::vector<double>(count);
  return Elements(literals[index]);
}

OutputComparison Compare(const ResultInfo& info, size_t result, bool is_random, double path_epsilon,
                         const Literal& minka, const OneDeviceResults& one_device) {
  OutputComparison out{.result = static_cast<int>(result), .name = info.name, .shape = minka.shape};
  const Literal& single = one_device.single[result];
  if (minka.shape != single.shape) {
    out.ok = false;
    return out;
  }
  ResultElements x{.minka = Elements(minka), .single = Elements(single)};
  out.largest_difference = LargestDifference(x.minka, x.single);
  if (is_random) {
    out.rule = ComparisonRule::kRange;
    CompareRange(x.minka, x.single, out);
  } else if (IsFloat(minka.shape.type) || IsComplex(minka.shape.type)) {
    x.nudged = Elements(one_device.nudged[result]);
    x.reference = Elements(one_device.reference[result]);
    x.before = ElementsOr0(one_device.before, result, x.minka.size());
    x.nudged_before = ElementsOr0(one_device.nudged_before, result, x.minka.size());
    CompareNorms(x,
                 {.own = Epsilon(minka.shape.type),
                  .path = path_epsilon,
                  .is_state = info.role == ResultRole::kState},
                 out);
  } else {
    out.rule = ComparisonRule::kExact;
    out.ok = *minka.bytes == *single.bytes;
  }
  return out;
}

// All results of the last of `num_steps` steps, state included.
absl::StatusOr<std::vector<Literal>> RunSteps(const Step& step, StepRunner& runner,
                                              const StepInputs& inputs, int num_steps) {
  State state;
  StepOutput output;
  for (int i = 0; i < num_steps; ++i) {
    ASSIGN_OR_RETURN(ParameterValues values, inputs(i));
    if (i == 0) {
      ASSIGN_OR_RETURN(state, runner.CreateState(values));
    }
    ASSIGN_OR_RETURN(output, runner.Run(std::move(state), values));
    state = std::move(output.state);
  }
  for (int i = 0; i < static_cast<int>(step.parameters.size()); ++i) {
    const int result = step.parameters[i].state_result;
    if (step.parameters[i].role != ParameterRole::kState || result < 0) continue;
    ASSIGN_OR_RETURN(output.results[result], runner.ReadParameter(state, i));
  }
  return output.results;
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

bool CallsRng(const Module& module, const Instruction& instruction) {
  if (instruction.opcode == Opcode::kRng) return true;
  return std::ranges::any_of(instruction.called, [&](ComputationId id) {
    return std::ranges::any_of(module.computations[id].instructions,
                               [&](const Instruction& called) { return CallsRng(module, called); });
  });
}

// The largest epsilon of a computation's values, by computation, called ones included.
class ValueEpsilons {
 public:
  explicit ValueEpsilons(const Module& module)
      : module_(module), of_computations_(module.computations.size()) {}

  double Of(const Instruction& instruction) {
    double epsilon = 0;
    for (const Shape& shape : instruction.results) {
      epsilon = std::max(epsilon, Epsilon(shape.type));
    }
    if (instruction.opcode == Opcode::kReducePrecision) {
      const auto& precision = instruction.As<ReducePrecisionAttributes>();
      epsilon = std::max(epsilon, std::ldexp(1, -precision.mantissa_bits));
    }
    for (const ComputationId id : instruction.called) epsilon = std::max(epsilon, Of(id));
    return epsilon;
  }

 private:
  double Of(ComputationId id) {
    std::optional<double>& known = of_computations_[id];
    if (known) return *known;
    double epsilon = 0;
    for (const Instruction& instruction : module_.computations[id].instructions) {
      epsilon = std::max(epsilon, Of(instruction));
    }
    known = epsilon;
    return epsilon;
  }

  const Module& module_;
  std::vector<std::optional<double>> of_computations_;
};

}  // namespace

PathEpsilons FindPathEpsilons(const Step& step) {
  const Computation& entry = step.module.entry_computation();
  ValueEpsilons values(step.module);
  // Of the values that each instruction is computed from, and of those that are computed from it.
  std::vector<double> above, below;
  for (const Instruction& instruction : entry.instructions) above.push_back(values.Of(instruction));
  below = above;
  const auto raise = [](double& epsilon, double to) {
    const bool raises = to > epsilon;
    if (raises) epsilon = to;
    return raises;
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
      for (const Value operand : entry.instructions[id].operands) {
        changed |= raise(above[id], above[operand.instruction]);
      }
    }
    for (InstructionId id = entry.num_instructions() - 1; id >= 0; --id) {
      for (const Value operand : entry.instructions[id].operands) {
        changed |= raise(below[operand.instruction], below[id]);
      }
    }
    for (size_t i = 0; i < step.parameters.size(); ++i) {
      const int result = step.parameters[i].state_result;
      if (result < 0) continue;
      const InstructionId from = entry.results[result].instruction, to = entry.parameters[i];
      changed |= raise(above[to], above[from]);
      changed |= raise(below[from], below[to]);
    }
  }
  PathEpsilons epsilons;
  for (const Value result : entry.results) epsilons.of_results.push_back(above[result.instruction]);
  for (const InstructionId id : entry.parameters) epsilons.of_parameters.push_back(below[id]);
  return epsilons;
}

Literal Nudged(const Literal& literal, double epsilon, uint64_t seed) {
  if (!IsFloat(literal.shape.type) || ElementBytes(literal.shape.type) < 2) return literal;
  epsilon = std::min(epsilon, 0.5);  // signs stay
  std::string wide(literal.shape.num_elements() * sizeof(double), '\0');
  uint64_t bits = 0;
  for (int64_t i = 0; i < literal.shape.num_elements(); ++i) {
    if (i % 64 == 0) bits = StableHash(fmt::format("{}", i), seed);
    double value = ElementAsDouble(literal, i);
    if (value != std::floor(value))
      value *= (bits >> (i % 64) & 1) != 0 ? 1 + epsilon : 1 - epsilon;
    std::memcpy(wide.data() + i * sizeof(double), &value, sizeof(double));
  }
  return ConvertLiteral({{ElementType::kF64, literal.shape.dims},
                         std::make_shared<const std::string>(std::move(wide))},
                        literal.shape.type);
}

std::vector<bool> DependsOnRng(const Step& step) {
  const Computation& entry = step.module.entry_computation();
  std::vector<bool> results(entry.results.size()), parameters(entry.parameters.size());
  for (bool changed = true; changed;) {
    std::vector<bool> depends(entry.num_instructions());
    for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
      const Instruction& instruction = entry.instructions[id];
      depends[id] = CallsRng(step.module, instruction);
      if (instruction.opcode == Opcode::kParameter) {
        depends[id] = parameters[instruction.As<ParameterAttributes>().number];
      }
      for (const Value operand : instruction.operands) {
        depends[id] = depends[id] || depends[operand.instruction];
      }
    }
    for (size_t i = 0; i < results.size(); ++i) results[i] = depends[entry.results[i].instruction];
    changed = false;
    for (size_t i = 0; i < step.parameters.size(); ++i) {
      const int result = step.parameters[i].state_result;
      if (result < 0 || !results[result] || parameters[i]) continue;
      parameters[i] = changed = true;
    }
  }
  return results;
}

bool OracleReport::ok() const {
  return std::ranges::all_of(outputs, [](const OutputComparison& output) { return output.ok; });
}

std::string OracleReport::Failures() const {
  std::string text;
  for (const OutputComparison& output : outputs) {
    if (output.ok) continue;
    text += fmt::format(
        "result {} ({}, {}): error {:.3g}, allowed {:.3g} (one device's {:.3g}, from nudged inputs "
        "{:.3g}, norm {:.3g}, of the change {:.3g}); largest difference {:.3g}\n",
        output.result, output.name, ToString(output.shape), output.error, output.allowed_error,
        output.single_error, output.nudged_error, output.reference_norm, output.change_norm,
        output.largest_difference);
  }
  return text;
}

OracleReport CompareResults(const Step& step, const std::vector<Literal>& minka,
                            const OneDeviceResults& one_device) {
  const std::vector<bool> is_random = DependsOnRng(step);
  const PathEpsilons epsilons = FindPathEpsilons(step);
  OracleReport report;
  for (size_t i = 0; i < step.results.size(); ++i) {
    report.outputs.push_back(
        Compare(step.results[i], i, is_random[i], epsilons.of_results[i], minka[i], one_device));
  }
  return report;
}

absl::StatusOr<Step> OneDeviceStep(const Step& step, const Plan& plan) {
  if (!plan.per_micro_batch) return step;
  ASSIGN_OR_RETURN(const PlanResult planned,
                   PlanStep(step, {.cluster = Cluster::Local(1),
                                   .micro_batches = PreparationOf(plan).micro_batches,
                                   .remat = RematChoice{},
                                   .methods = {Method::kData}}));
  ASSIGN_OR_RETURN(
      SpmdProgram program,
      LowerSpmd(planned.prepared.module, planned.candidates[planned.best].plan.stages.front()));
  return Step{.module = std::move(program.module),
              .parameters = planned.prepared.parameters,
              .results = planned.prepared.results};
}

absl::StatusOr<OneDeviceResults> RunOnOneDevice(const Step& step, const pjrt::Client& client,
                                                const StepInputs& inputs, int num_steps) {
  OneDeviceResults results;
  const PathEpsilons epsilons = FindPathEpsilons(step);
  const auto nudge = [&](size_t parameter, const Literal& value, uint64_t seed) {
    return Nudged(value, epsilons.of_parameters[parameter], seed);
  };
  const auto widen = [](size_t, const Literal& value, uint64_t) { return Widened(value); };
  const StepInputs nudged_inputs = WithEach(inputs, nudge);
  const StepInputs wide_inputs = WithEach(inputs, widen);
  ASSIGN_OR_RETURN(results.before, StateBefore(step, inputs));
  ASSIGN_OR_RETURN(results.nudged_before, StateBefore(step, nudged_inputs));
  ASSIGN_OR_RETURN(MeshExecutor single_executor, CompileForOneDevice(step.module, client));
  StepRunner single(step, std::move(single_executor));
  ASSIGN_OR_RETURN(results.single, RunSteps(step, single, inputs, num_steps));
  ASSIGN_OR_RETURN(results.nudged, RunSteps(step, single, nudged_inputs, num_steps));
  ASSIGN_OR_RETURN(MeshExecutor reference_executor,
                   CompileForOneDevice(WidenFloats(step.module), client));
  StepRunner reference(step, std::move(reference_executor));
  ASSIGN_OR_RETURN(results.reference, RunSteps(step, reference, wide_inputs, num_steps));
  return results;
}

absl::StatusOr<OracleReport> CompareWithOneDevice(const Step& step, StepRunner& minka,
                                                  const StepInputs& inputs, int num_steps,
                                                  const OneDeviceResults& one_device) {
  ASSIGN_OR_RETURN(const std::vector<Literal> results, RunSteps(step, minka, inputs, num_steps));
  OracleReport report = CompareResults(step, results, one_device);
  report.num_steps = num_steps;
  return report;
}

}  // namespace minka
