#include "minka/driver/oracle.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "minka/analysis/widen.h"
#include "minka/base/check.h"
#include "minka/base/hash.h"
#include "minka/base/status.h"

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

Literal Widened(const Literal& literal, uint64_t) {
  const ElementType type = WidenedType(literal.shape.type);
  if (type == literal.shape.type) return literal;
  const Literal wide = ConvertLiteral(AsReals(literal), ElementType::kF64);
  return {{type, literal.shape.dims}, wide.bytes};
}

// Distance from 1 to the next larger number.
double Epsilon(ElementType type) {
  switch (type) {
    case ElementType::kF64:
      return std::ldexp(1, -52);
    case ElementType::kF32:
      return std::ldexp(1, -23);
    case ElementType::kF16:
      return std::ldexp(1, -10);
    case ElementType::kBF16:
      return std::ldexp(1, -7);
    default:  // eight bits and fewer: at least one bit of mantissa
      return 0.5;
  }
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

void CompareNorms(const std::vector<double>& minka, const std::vector<double>& single,
                  const std::vector<double>& nudged, const std::vector<double>& reference,
                  double epsilon, OutputComparison& out) {
  double error = 0, single_error = 0, nudged_error = 0, norm = 0;
  bool all_finite = true;
  for (size_t i = 0; i < minka.size(); ++i) {
    if (!std::isfinite(single[i]) || !std::isfinite(reference[i])) {
      // One device overflows here, too: then so may minka.
      all_finite = all_finite && (!std::isfinite(minka[i]) || std::isfinite(reference[i]));
      continue;
    }
    all_finite = all_finite && std::isfinite(minka[i]);
    error += (minka[i] - reference[i]) * (minka[i] - reference[i]);
    single_error += (single[i] - reference[i]) * (single[i] - reference[i]);
    if (std::isfinite(nudged[i])) {
      nudged_error += (nudged[i] - reference[i]) * (nudged[i] - reference[i]);
    }
    norm += reference[i] * reference[i];
  }
  out.error = std::sqrt(error);
  out.single_error = std::sqrt(single_error);
  out.nudged_error = std::sqrt(nudged_error);
  out.reference_norm = std::sqrt(norm);
  out.allowed_error =
      4 * std::max(out.single_error, out.nudged_error) + 16 * epsilon * out.reference_norm;
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

OutputComparison Compare(const ResultInfo& info, int result, bool is_random, const Literal& minka,
                         const Literal& single, const Literal& nudged, const Literal& reference) {
  OutputComparison out{.result = result, .name = info.name, .shape = minka.shape};
  if (minka.shape != single.shape) {
    out.ok = false;
    return out;
  }
  const std::vector<double> x = Elements(minka), y = Elements(single);
  out.largest_difference = LargestDifference(x, y);
  if (is_random) {
    out.rule = ComparisonRule::kRange;
    CompareRange(x, y, out);
  } else if (IsFloat(minka.shape.type) || IsComplex(minka.shape.type)) {
    CompareNorms(x, y, Elements(nudged), Elements(reference), Epsilon(AsReals(minka).shape.type),
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

// The inputs with a function of (value, some number) over each value.
template <typename Function>
StepInputs WithEach(const StepInputs& inputs, const Function& function) {
  return [&inputs, &function](int step) -> absl::StatusOr<ParameterValues> {
    ASSIGN_OR_RETURN(ParameterValues values, inputs(step));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = function(values[i], values.size() * static_cast<uint64_t>(step) + i);
    }
    return values;
  };
}

bool CallsRng(const Module& module, const Instruction& instruction) {
  if (instruction.opcode == Opcode::kRng) return true;
  return std::ranges::any_of(instruction.called, [&](ComputationId id) {
    return std::ranges::any_of(module.computations[id].instructions,
                               [&](const Instruction& called) { return CallsRng(module, called); });
  });
}

}  // namespace

Literal Nudged(const Literal& literal, uint64_t seed) {
  const double epsilon = Epsilon(literal.shape.type);
  if (!IsFloat(literal.shape.type) || epsilon >= 0.5) return literal;
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
        "{:.3g}, norm {:.3g}); largest difference {:.3g}\n",
        output.result, output.name, ToString(output.shape), output.error, output.allowed_error,
        output.single_error, output.nudged_error, output.reference_norm, output.largest_difference);
  }
  return text;
}

OracleReport CompareResults(const Step& step, const std::vector<Literal>& minka,
                            const OneDeviceResults& one_device) {
  const std::vector<bool> is_random = DependsOnRng(step);
  OracleReport report;
  for (size_t i = 0; i < step.results.size(); ++i) {
    report.outputs.push_back(Compare(step.results[i], static_cast<int>(i), is_random[i], minka[i],
                                     one_device.single[i], one_device.nudged[i],
                                     one_device.reference[i]));
  }
  return report;
}

absl::StatusOr<OneDeviceResults> RunOnOneDevice(const Step& step, const pjrt::Client& client,
                                                const StepInputs& inputs, int num_steps) {
  OneDeviceResults results;
  ASSIGN_OR_RETURN(MeshExecutor single_executor, CompileForOneDevice(step.module, client));
  StepRunner single(step, std::move(single_executor));
  ASSIGN_OR_RETURN(results.single, RunSteps(step, single, inputs, num_steps));
  ASSIGN_OR_RETURN(results.nudged, RunSteps(step, single, WithEach(inputs, Nudged), num_steps));
  ASSIGN_OR_RETURN(MeshExecutor reference_executor,
                   CompileForOneDevice(WidenFloats(step.module), client));
  StepRunner reference(step, std::move(reference_executor));
  ASSIGN_OR_RETURN(results.reference,
                   RunSteps(step, reference, WithEach(inputs, Widened), num_steps));
  return results;
}

absl::Status CheckComparable(const Plan& plan) {
  if (!plan.per_micro_batch) return absl::OkStatus();
  return FailedPrecondition(
      "the check compares with the full batch on one device, which a plan with --per-micro-batch "
      "does not compute; leave out one of the two");
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
