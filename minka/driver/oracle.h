// Every plan must compute what one device computes. Four runs of the same step: the plan's on its
// mesh, the step on one device, the same with inputs nudged by one rounding, and the step on one
// device with all floats widened to f64 (the reference). For every output, in the 2-norm,
//
//   |minka - ref| <= 4 max(|single - ref|, |nudged - ref|) + 16 eps |ref|
//
// with eps of the narrowest type among the values that the output is computed from, of which the
// nudge is one, too. State that is wider than that type keeps its own eps and may differ by the
// narrow roundings of what the steps add to it, 4 sqrt(eps_path) |ref - before|; the nudged run's
// error is that of its change, too.
//
// Integers and predicates must equal the single run's. What the `rng` opcode reaches is compared by
// shape and range only. (A plain tolerance cannot work: an attention key's bias has a
// mathematically zero gradient, and Adam turns rounding noise into full-size updates. Nor is one
// run's error enough of a measure of that noise: docs/design/0005.)
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/driver/compile.h"
#include "minka/driver/step_runner.h"

namespace minka {

enum class ComparisonRule { kNorm, kExact, kRange };

struct OutputComparison {
  int result = 0;
  std::string name;
  Shape shape;
  ComparisonRule rule = ComparisonRule::kNorm;
  double largest_difference = 0;  // of an element, minka's run against the single one
  // kNorm: |minka - ref|, |single - ref|, |nudged - ref|, |ref|, |ref - before| and what the first
  // may be.
  double error = 0, single_error = 0, nudged_error = 0;
  double reference_norm = 0, change_norm = 0, allowed_error = 0;
  bool ok = true;
};

struct OracleReport {
  int num_steps = 1;
  std::vector<OutputComparison> outputs;  // of the last step, by result number

  bool ok() const;
  // "" where all is well, else the outputs that are not, one per line.
  std::string Failures() const;
};

// The values of all parameters for a step, by parameter number; state is read for step 0 only and
// fed back from then on, in each run its own.
using StepInputs = std::function<absl::StatusOr<ParameterValues>(int step)>;

// The step that one device runs to say what the plan must compute: `step` itself, or, where the
// plan takes sums over the batch over each micro-batch instead, the step rewritten so, loop and
// all.
absl::StatusOr<Step> OneDeviceStep(const Step& step, const Plan& plan);

// Results of the last step on one device, by result number: as it is, from nudged inputs, and
// widened to f64. And the state that the first step read, as it is and nudged, by the number of the
// result that replaces it; without bytes, or empty, where a result is not state.
struct OneDeviceResults {
  std::vector<Literal> single, nudged, reference;
  std::vector<Literal> before, nudged_before;
};
absl::StatusOr<OneDeviceResults> RunOnOneDevice(const Step& step, const pjrt::Client& client,
                                                const StepInputs& inputs, int num_steps);

// Runs `minka`, which runs `step` by some plan, as often and compares.
absl::StatusOr<OracleReport> CompareWithOneDevice(const Step& step, StepRunner& minka,
                                                  const StepInputs& inputs, int num_steps,
                                                  const OneDeviceResults& one_device);

// Every element of a float array of 16 bits or more times 1 + epsilon or 1 - epsilon, by the seed's
// bits. Whole numbers stay, because they may be counters, masks or indices.
Literal Nudged(const Literal& literal, double epsilon, uint64_t seed);

// The distance from 1 to the next larger number in the narrowest float type among the values that a
// result is computed from, and among those that a parameter reaches; through fed-back state and
// called computations, too. 0 where there is no float.
struct PathEpsilons {
  std::vector<double> of_results, of_parameters;
};
PathEpsilons FindPathEpsilons(const Step& step);

// The comparison alone: results of the runs by result number, the reference's in f64.
OracleReport CompareResults(const Step& step, const std::vector<Literal>& minka,
                            const OneDeviceResults& one_device);

// By result: does it depend on the `rng` opcode, through fed-back state, too?
std::vector<bool> DependsOnRng(const Step& step);

}  // namespace minka
