// Rates measured on a machine (`minka profile`), which take the place of a cluster's nominal ones.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/sharding/reshard.h"

namespace minka {

// How the matrices of a product lie, by BLAS's letters: rows of what is multiplied (n) or columns
// (t), of the left operand [m, k] and the right one [k, n]. Small products depend on it by factors.
enum class DotForm : uint8_t {
  kNN,
  kNT,  // the gradient of activations
  kTN,  // the gradient of weights; of convolutions that of kernels
};
inline constexpr DotForm kDotForms[] = {DotForm::kNN, DotForm::kNT, DotForm::kTN};
std::string_view ToString(DotForm form);  // "nn", "nt", "tn"

// Wall time of one dot of [batch, m, k] and [batch, k, n] in f32 while every device of the mesh
// runs the same.
struct DotPoint {
  DotForm form = DotForm::kNN;
  int64_t batch = 1, m = 1, n = 1, k = 1;
  double us = 0;
};

struct CollectiveLayout {
  bool is_strided = false;  // the members of a group are no neighbours
  bool is_inner = false;    // as in StepWork
  bool operator==(const CollectiveLayout&) const = default;
};

// Wall time of one collective over groups of `group_size`, all groups at once; bytes as in
// StepWork.
struct CollectivePoint {
  ReshardKind kind = ReshardKind::kAllReduce;
  int64_t group_size = 2;
  int64_t bytes = 0;
  double us = 0;
  CollectiveLayout layout;
};

// Reductions that backends run at rates of their own.
enum class ReductionKernel : uint8_t {
  kNone,
  kRows,            // sums over the last dimension
  kColumns,         // over others, as batch norms have them
  kMaximumOfRows,   // maximum or minimum over the last dimension
  kWindow,          // pooling
  kWindowGradient,  // its gradient
};
std::string_view ToString(ReductionKernel kernel);  // "rows", "columns", ...

struct ReductionRate {
  ReductionKernel kernel = ReductionKernel::kRows;
  bool is_half = false;           // of bf16
  double elementwise_per_us = 1;  // weighted operations per device
};

// How long all devices wait for the last one at a collective behind a phase of work, beyond what
// the collective itself takes: devices that share cores leave some of them idle there. Groups of
// some of the devices do not wait: others have the cores meanwhile.
struct WaitPoint {
  double phase_us = 0;  // wall time of the work since they last waited
  double us = 0;
};

struct Calibration {
  std::string processor;  // as the operating system names it, or a GPU's driver
  int cores = 1;
  std::string plugin;                  // platform and version
  int num_devices = 1;                 // that ran at once while it was measured
  double launch_us = 0;                // one fusion group, nothing to do
  double step_us = 0;                  // one launch of a program over all devices
  double arithmetic_per_us = 1;        // weighted operations such as sums and products per device
  double half_arithmetic_per_us = 1;   // the same on bf16
  double elementwise_per_us = 1;       // exponentials and what is like them
  double half_elementwise_per_us = 1;  // the same on bf16
  double bytes_per_us = 1;             // read and written in place, in memory, per device
  double copied_bytes_per_us = 0;      // read in one place and written in another; 0: as in place
  double cached_bytes_per_us = 1;      // through half of what a core has of the caches
  // Read and written by transpositions of leading dimensions, and by those that put another
  // dimension last; 0: not known, as others.
  double transposed_bytes_per_us = 0, swapped_bytes_per_us = 0;
  int64_t cache_bytes = 0;  // that all cores together read faster than memory; 0: not known
  double drift = 1;  // time of a program at the end over that at the beginning, as last measured
  double others_share = 0;  // of the cores' busy time meanwhile, that other processes took
  double stolen_share = 0;  // of what was measured, that a virtual machine's host gave to others
  // What cores took to answer each other meanwhile (base/core_distance.h), and the part of what was
  // measured while they took other times, as where the host of a virtual machine moves them; 0: not
  // known.
  double core_round_trip_ns = 0;
  double moved_share = 0;
  // Devices multiply bf16 in units of their own: half_dots are products as many and as large as
  // steps have them. Else some of dots again, for what widening them takes.
  bool has_half_units = false;
  std::vector<DotPoint> dots;
  std::vector<DotPoint> cached_dots;   // whose operands and result are in the caches
  std::vector<DotPoint> half_dots;     // in bf16
  std::vector<DotPoint> convolutions;  // as the dots that they are, depthwise ones per feature
  std::vector<ReductionRate> reductions;
  std::vector<CollectivePoint> collectives;
  std::vector<WaitPoint> waits;  // ascending in both

  // FailedPrecondition for the JSON of another version, which must be measured again;
  // InvalidArgument names a field out of range.
  static absl::StatusOr<Calibration> FromJson(std::string_view json);
  std::string ToJson() const;
};

// What to say of a calibration during which others used the machine: they took more than a fifth of
// the busy time, its host moved the cores meanwhile, or it became slower or faster by more than a
// quarter; empty: nothing.
std::string DisturbanceNote(const Calibration& calibration);

// Microseconds of a dot: parts for the operation, for each of its batch, for its multiply-adds, for
// the elements of either operand, which are packed, and of the result, for its last columns that do
// not fill registers, and for operands that are read across rows of which many share the same
// places in a core's first cache.
struct DotModel {
  static constexpr int kNumTerms = 8;
  std::array<double, kNumTerms> us = {};
  double Us(DotForm form, int64_t batch, int64_t m, int64_t n, int64_t k) const;
};

// The model nearest to the measured dots in relative error, no part below zero. A measurement
// disturbed by others on the machine counts little (iteratively reweighted least squares with
// Huber's weights: Holland and Welsch 1977), where interpolation would make one shape look twice as
// dear as its neighbours. Without caches, as on GPUs, nothing is paid for the last two.
// Precondition: dots is not empty.
DotModel FitDots(std::span<const DotPoint> dots, bool has_caches);
// That of the dots of one form; of all where none has it.
DotModel FitDots(std::span<const DotPoint> dots, bool has_caches, DotForm form);

// Microseconds per element of operands and result that dots in bf16 take beyond the same ones in
// f32: they are widened to copies, which the caches of a core hold or do not. Medians of what was
// measured, never below 0; 0 where nothing was.
struct HalfDotCosts {
  double cached_us = 0, uncached_us = 0;

  // `cache_bytes`: of one core.
  double Us(double elements, double cache_bytes) const;
};
HalfDotCosts HalfDotCostsOf(const Calibration& calibration);

// Microseconds of a collective, linear between the measured sizes and beyond them, group sizes
// interpolated likewise. What was not measured in its layout costs what it does with groups of
// neighbours, or along the first dimension. Zero when nothing of the kind was measured.
double CalibratedCollectiveUs(const Calibration& calibration, ReshardKind kind, int64_t group_size,
                              double bytes, CollectiveLayout layout = {});

// Microseconds that all devices wait at a collective behind `phase_us` of work, between measured
// points linear in the logarithm of the work and beyond them as at the nearest. Zero when nothing
// was measured.
double CalibratedWaitUs(const Calibration& calibration, double phase_us);

}  // namespace minka
