// What a profile measures, by the kind of devices: a core takes milliseconds for what a GPU does in
// microseconds.
#pragma once

#include <cstdint>
#include <vector>

#include "minka/base/platform.h"
#include "minka/cost/calibration.h"
#include "minka/profiler/microprograms.h"

namespace minka {

struct DotShape {
  DotForm form = DotForm::kNN;
  int64_t batch = 1, m = 1, n = 1, k = 1;
  bool operator==(const DotShape&) const = default;
};

struct ProfileGrid {
  std::vector<DotShape> dots;          // in f32
  std::vector<DotShape> half_dots;     // in bf16; each that is among dots right behind it
  bool has_half_units = false;         // as in Calibration
  std::vector<DotShape> cached_dots;   // in f32, with operands in the caches
  double dot_flops = 1;                // of a program of dots, as nearly as
  int fewest_dots = 2, most_dots = 2;  // and
  int64_t dot_bytes = 1;               // of their right operands in one allow
  std::vector<ConvolutionShape> convolutions;
  int num_convolutions = 1;       // of each
  int64_t streamed_elements = 1;  // of each array
  int num_streamed = 1;           // arrays
  int64_t looped_elements = 1;    // of arithmetic
  int num_operations = 1;         // on each element in a loop
  int num_exponentials = 1;       // likewise
  int num_loops = 1;
  int64_t transposed_elements = 1;  // a square power of two, of each array
  ReductionSizes reductions;
  int num_reductions = 1;
  bool has_caches = false;    // a core's, which loops find what they used in
  bool draws_values = false;  // fixed ones take less power, and a GPU is faster with them
  int num_rounds = 1;         // of rates, on which much depends; their medians count
};

// `num_devices` that run at once.
ProfileGrid GridFor(Platform platform, int num_devices);

}  // namespace minka
