// Every plan must compute what one device computes. Runs of the same step: the plan's on its mesh,
// the step on one device, the same from inputs that are nudged by one rounding, several times, and
// the step on one device with all floats widened to f64 (the reference). comparison.h says what
// counts as equal. Devices of the mesh that must hold equal parts must do so bit for bit after
// every step.
//
// Noise is that of equal picks (decisions.h): the nudged runs and the reference take those of the
// run on one device. A plan that picks otherwise is refused; first_difference.h finds out whether
// it may.
//
// (A plain tolerance cannot work: an attention key's bias has a mathematically zero gradient, and
// Adam turns rounding noise into full-size updates. Nor is one run's error enough of a measure of
// that noise: docs/design/0005.)
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/oracle/comparison.h"
#include "minka/oracle/rounding.h"
#include "minka/runtime/mesh/step_runner.h"

namespace minka {

struct OracleReport {
  int num_steps = 1;
  std::vector<OutputComparison> outputs;  // of the last step, by result number
  // From the search behind a difference (first_difference.h), one sentence each: decisions that
  // were turned over on one device to follow the plan's, and where the runs part ways otherwise.
  std::vector<std::string> turned;
  std::string first_difference;

  bool ok() const;
  // "" where all is well, else the outputs that are not, one per line, and where that begins.
  std::string Failures() const;
};

// What is wrong with an output.
std::string Describe(const OutputComparison& output);

// The values of all parameters for a step, by parameter number; state is read for step 0 only and
// fed back from then on, in each run its own.
using StepInputs = std::function<absl::StatusOr<ParameterValues>(int step)>;

// Results of the last step on one device, by result number: as it is, from nudged inputs (each
// draw), and widened to f64. And the state that the first step read, as it is and nudged, by the
// number of the result that replaces it; without bytes, or empty, where a result is not state.
struct OneDeviceResults {
  std::vector<Literal> single, reference, before;
  std::vector<std::vector<Literal>> nudged, nudged_before;  // by draw
};

// The step compiled for one device: as it is, and with its picks given, in its own types and
// widened.
class OneDevice {
 public:
  static absl::StatusOr<OneDevice> Compile(const Step& step, const pjrt::Client& client);
  absl::StatusOr<OneDeviceResults> Run(const StepInputs& inputs, int num_steps);

 private:
  OneDevice(const Step& step, std::vector<Value> picks, StepRunner single,
            std::optional<StepRunner> held, StepRunner reference);

  Step step_;
  std::vector<Value> picks_;
  StepRunner single_;               // with the picks as more results
  std::optional<StepRunner> held_;  // with given picks; none: there are no picks
  StepRunner reference_;            // widened, with given picks
};

// OneDevice, for a single run.
absl::StatusOr<OneDeviceResults> RunOnOneDevice(const Step& step, const pjrt::Client& client,
                                                const StepInputs& inputs, int num_steps);

// What the devices of the mesh hold after the last step, by result number. Values come from the
// first device that holds each part.
struct MeshResults {
  std::vector<Literal> values;
  std::vector<PartsOfResult> parts;         // empty: whole
  std::vector<std::string> replica_faults;  // "": equal after every step
};

// Runs `minka`, which runs a step by some plan.
absl::StatusOr<MeshResults> RunOnMesh(StepRunner& minka, const StepInputs& inputs, int num_steps);

// RunOnMesh and CompareResults.
absl::StatusOr<OracleReport> CompareWithOneDevice(const Step& step, StepRunner& minka,
                                                  const StepInputs& inputs, int num_steps,
                                                  const OneDeviceResults& one_device);

// The comparison alone.
OracleReport CompareResults(const Step& step, const MeshResults& minka,
                            const OneDeviceResults& one_device);

}  // namespace minka
