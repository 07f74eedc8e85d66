#include "minka/oracle/oracle.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "minka/analysis/widen.h"
#include "minka/base/status.h"
#include "minka/oracle/decisions.h"
#include "minka/oracle/draws.h"
#include "minka/oracle/replicas.h"
#include "minka/runtime/mesh/split_array.h"

namespace minka {
namespace {

// Calls `inspect(step, results)` with what the devices hold after each step.
template <typename Inspect>
absl::Status ForEachStep(StepRunner& runner, const StepInputs& inputs, int num_steps,
                         const Inspect& inspect) {
  State state;
  for (int i = 0; i < num_steps; ++i) {
    ASSIGN_OR_RETURN(const ParameterValues values, inputs(i));
    if (i == 0) {
      ASSIGN_OR_RETURN(state, runner.CreateState(values));
    }
    ASSIGN_OR_RETURN(std::vector<DistributedArray> results, runner.Launch(state, values));
    RETURN_IF_ERROR(inspect(i, results));
    ASSIGN_OR_RETURN(state, runner.NextState(std::move(state), results));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Literal>> ToHost(std::span<const DistributedArray> arrays) {
  std::vector<Literal> values;
  for (const DistributedArray& array : arrays) {
    ASSIGN_OR_RETURN(values.emplace_back(), array.ToHost());
  }
  return values;
}

// All results of the last of `num_steps` steps on one device, state included, and the last
// `num_picks` results of every step.
struct StepRuns {
  std::vector<Literal> results;
  std::vector<std::vector<Literal>> picks;  // by step
};
absl::StatusOr<StepRuns> RunSteps(StepRunner& runner, const StepInputs& inputs, int num_steps,
                                  size_t num_picks = 0) {
  StepRuns out;
  RETURN_IF_ERROR(ForEachStep(
      runner, inputs, num_steps,
      [&](int step, const std::vector<DistributedArray>& results) -> absl::Status {
        const size_t num_results = results.size() - num_picks;
        ASSIGN_OR_RETURN(out.picks.emplace_back(), ToHost(std::span(results).subspan(num_results)));
        if (step + 1 < num_steps) return absl::OkStatus();
        ASSIGN_OR_RETURN(out.results, ToHost(std::span(results).first(num_results)));
        return absl::OkStatus();
      }));
  return out;
}

PartsOfResult PartsOf(const Shape& shape, const Sharding& sharding, const Mesh& mesh) {
  PartsOfResult parts;
  if (sharding.is_replicated()) return parts;
  parts.devices = CoveringDevices(sharding, mesh);
  const Shape numbers{ElementType::kS32, shape.dims};
  parts.of_elements.resize(static_cast<size_t>(shape.num_elements()));
  const auto bytes = std::span(reinterpret_cast<char*>(parts.of_elements.data()),
                               parts.of_elements.size() * sizeof(int32_t));
  const Shape local = LocalShape(numbers, sharding, mesh);
  for (size_t i = 0; i < parts.devices.size(); ++i) {
    const std::vector<int32_t> part(static_cast<size_t>(local.num_elements()),
                                    static_cast<int32_t>(i));
    PutPart({reinterpret_cast<const char*>(part.data()), part.size() * sizeof(int32_t)}, numbers,
            sharding, mesh, parts.devices[i], bytes);
  }
  return parts;
}

std::string ElementText(const Literal& literal, int64_t element) {
  if (IsComplex(literal.shape.type)) return "a complex number";
  return fmt::format("{:.9g}", ElementAsDouble(literal, element));
}

std::string DescribeReplicas(const ReplicaDifference& difference, const Shape& shape,
                             const std::vector<std::string>& parts, int step) {
  const auto text = [&](int64_t device) {
    return ElementText({shape, std::make_shared<const std::string>(parts[device])},
                       difference.element);
  };
  return fmt::format(
      "after step {} device {} holds another value than device {} in {} element{}, "
      "first in number {} of its part: {} and {}",
      step + 1, difference.device, difference.other, difference.num_elements,
      difference.num_elements == 1 ? "" : "s", difference.element, text(difference.device),
      text(difference.other));
}

}  // namespace

std::string Describe(const OutputComparison& output) {
  const std::string part =
      output.device < 0 ? std::string() : fmt::format(" in the part of device {}", output.device);
  switch (output.fault) {
    case Fault::kNone:
      return "equal";
    case Fault::kShape:
      return "another shape than on one device";
    case Fault::kReplicas:
      return "replicas differ: " + output.detail;
    case Fault::kNotFinite:
      return "not finite: " + output.detail;
    case Fault::kNotApplied:
      return fmt::format(
          "the state is as before the first step{}, on one device it changes by "
          "{:.3g} (norm {:.3g})",
          part, output.norms.change, output.norms.reference);
    case Fault::kTogether:
      return output.detail;
    case Fault::kValue:
      break;
  }
  switch (output.rule) {
    case ComparisonRule::kExact:
      return fmt::format("must be equal, largest difference {:.3g}", output.largest_difference);
    case ComparisonRule::kRange:
      return fmt::format("random, and outside the range of one device, largest difference {:.3g}",
                         output.largest_difference);
    case ComparisonRule::kNorm:
      break;
  }
  const Norms& norms = output.norms;
  return fmt::format(
      "error {:.3g}{}, allowed {:.3g} (one device's {:.3g}, from nudged inputs {:.3g}, norm "
      "{:.3g}, "
      "of the change {:.3g}); largest difference {:.3g}",
      norms.error, part, norms.allowed_error, norms.single_error, norms.nudged_error,
      norms.reference, norms.change, output.largest_difference);
}

bool OracleReport::ok() const { return std::ranges::all_of(outputs, &OutputComparison::ok); }

std::string OracleReport::Failures() const {
  std::string text;
  for (const OutputComparison& output : outputs) {
    if (output.ok()) continue;
    text += fmt::format("result {} ({}, {}): {}\n", output.result, output.name,
                        ToString(output.shape), Describe(output));
  }
  if (text.empty()) return text;
  for (const std::string& decision : turned) {
    text += fmt::format("turned over on one device, too: {}\n", decision);
  }
  if (!first_difference.empty()) text += first_difference + "\n";
  return text;
}

OracleReport CompareResults(const Step& step, const MeshResults& minka,
                            const OneDeviceResults& one_device) {
  const std::vector<bool> is_random = DependsOnRng(step);
  const PathEpsilons epsilons = FindPathEpsilons(step);
  OracleReport report;
  std::vector<ResultRounding> roundings;
  for (size_t i = 0; i < step.results.size(); ++i) {
    ResultRuns runs{.minka = minka.values[i],
                    .single = one_device.single[i],
                    .reference = one_device.reference[i]};
    const bool is_state = i < one_device.before.size() && one_device.before[i].bytes;
    if (is_state) runs.before = one_device.before[i];
    for (size_t draw = 0; draw < one_device.nudged.size(); ++draw) {
      runs.nudged.push_back(one_device.nudged[draw][i]);
      if (is_state) runs.nudged_before.push_back(one_device.nudged_before[draw][i]);
    }
    const ResultRounding& rounding =
        roundings.emplace_back(ResultRounding{.own_epsilon = Epsilon(runs.minka.shape.type),
                                              .path_epsilon = epsilons.of_results[i],
                                              .is_state = is_state,
                                              .is_random = is_random[i]});
    OutputComparison output =
        CompareResult(runs, rounding, i < minka.parts.size() ? minka.parts[i] : PartsOfResult{});
    output.result = static_cast<int>(i);
    output.name = step.results[i].name;
    if (!is_random[i] && i < minka.replica_faults.size() && !minka.replica_faults[i].empty()) {
      output.fault = Fault::kReplicas;
      output.detail = minka.replica_faults[i];
    }
    report.outputs.push_back(std::move(output));
  }
  CompareStateTogether(roundings, report.outputs);
  return report;
}

OneDevice::OneDevice(const Step& step, std::vector<Value> picks, StepRunner single,
                     std::optional<StepRunner> held, StepRunner reference)
    : step_(step),
      picks_(std::move(picks)),
      single_(std::move(single)),
      held_(std::move(held)),
      reference_(std::move(reference)) {}

absl::StatusOr<OneDevice> OneDevice::Compile(const Step& step, const pjrt::Client& client) {
  std::vector<Value> picks = FindPicks(step.module);
  const auto compile = [&](const Step& of, const Module& module) -> absl::StatusOr<StepRunner> {
    ASSIGN_OR_RETURN(MeshExecutor executor, CompileForOneDevice(module, client));
    return StepRunner(of, std::move(executor));
  };
  const Step picking = WithResults(step, picks), holding = WithGiven(step, picks);
  ASSIGN_OR_RETURN(StepRunner single, compile(picking, picking.module));
  std::optional<StepRunner> held;
  if (!picks.empty()) {
    ASSIGN_OR_RETURN(held, compile(holding, holding.module));
  }
  ASSIGN_OR_RETURN(StepRunner reference, compile(holding, WidenFloats(holding.module)));
  return OneDevice(step, std::move(picks), std::move(single), std::move(held),
                   std::move(reference));
}

absl::StatusOr<OneDeviceResults> OneDevice::Run(const StepInputs& inputs, int num_steps) {
  std::vector<std::vector<Literal>> picks;  // of the single run, by step
  using Results = absl::StatusOr<std::vector<Literal>>;
  const auto run_single = [&](const StepInputs& values) -> Results {
    ASSIGN_OR_RETURN(StepRuns runs, RunSteps(single_, values, num_steps, picks_.size()));
    picks = std::move(runs.picks);
    return std::move(runs.results);
  };
  const auto run_held = [&](StepRunner& runner, const StepInputs& values) -> Results {
    const StepInputs held = [&](int step) -> absl::StatusOr<ParameterValues> {
      ASSIGN_OR_RETURN(ParameterValues all, values(step));
      all.resize(step_.parameters.size());
      all.insert(all.end(), picks[step].begin(), picks[step].end());
      return all;
    };
    ASSIGN_OR_RETURN(StepRuns runs, RunSteps(runner, held, num_steps));
    return std::move(runs.results);
  };
  return DrawNoise(
      step_, inputs,
      {.single = run_single,
       .nudged =
           [&](const StepInputs& values) { return run_held(held_ ? *held_ : single_, values); },
       .reference = [&](const StepInputs& values) { return run_held(reference_, values); }});
}

absl::StatusOr<OneDeviceResults> RunOnOneDevice(const Step& step, const pjrt::Client& client,
                                                const StepInputs& inputs, int num_steps) {
  ASSIGN_OR_RETURN(OneDevice one_device, OneDevice::Compile(step, client));
  return one_device.Run(inputs, num_steps);
}

absl::StatusOr<MeshResults> RunOnMesh(StepRunner& minka, const StepInputs& inputs, int num_steps) {
  MeshResults out;
  out.replica_faults.resize(minka.executor().num_results());
  const auto read = [&](int i, int step_number, const DistributedArray& array) -> absl::Status {
    const auto& [shape, sharding, mesh, first_device] = array.layout();
    ASSIGN_OR_RETURN(const std::vector<std::string> parts, array.PartsToHost());
    const auto difference = FindReplicaDifference(parts, shape, sharding, mesh);
    if (difference && out.replica_faults[i].empty()) {
      out.replica_faults[i] = DescribeReplicas(*difference, shape, parts, step_number);
    }
    if (step_number + 1 < num_steps) return absl::OkStatus();
    std::string whole(static_cast<size_t>(shape.num_bytes()), '\0');
    for (const int64_t device : CoveringDevices(sharding, mesh)) {
      PutPart(parts[device], shape, sharding, mesh, device, whole);
    }
    out.values.push_back({shape, std::make_shared<const std::string>(std::move(whole))});
    out.parts.push_back(PartsOf(shape, sharding, mesh));
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(ForEachStep(
      minka, inputs, num_steps, [&](int step_number, const std::vector<DistributedArray>& results) {
        for (size_t i = 0; i < results.size(); ++i) {
          RETURN_IF_ERROR(read(static_cast<int>(i), step_number, results[i]));
        }
        return absl::OkStatus();
      }));
  return out;
}

absl::StatusOr<OracleReport> CompareWithOneDevice(const Step& step, StepRunner& minka,
                                                  const StepInputs& inputs, int num_steps,
                                                  const OneDeviceResults& one_device) {
  ASSIGN_OR_RETURN(const MeshResults results, RunOnMesh(minka, inputs, num_steps));
  OracleReport report = CompareResults(step, results, one_device);
  report.num_steps = num_steps;
  return report;
}

}  // namespace minka
