// Where local programs say it otherwise than HLO asks, because of who compiles them: one table, by
// platform. docs/design/0004 tells how each was found, and what is not in the table.
#pragma once

#include <array>
#include <cstdint>

#include "minka/base/platform.h"

namespace minka {

enum class Departure : uint8_t {
  // For right results.

  // A reduction begins with the neutral element, and its init is applied behind it. The compiler
  // takes an init for neutral: it drops it where the reduced dimensions have size 1 and counts it
  // several times where it reduces in steps. local_operation.cc
  kNeutralInits,
  // Scalar operands of select and clamp are broadcast: constant folding fails on them beside
  // arrays, and the reshape mover ends the process. local_operation.cc
  kSpreadScalars,
  // Starts of slices, and the indices of a gather that looks up one, which becomes a slice, are
  // widened and clamped: of a slice of a slice the starts are added, the inner one clamped wrongly.
  // local_operation.cc
  kClampedStarts,
  // A barrier keeps a product of integers from a slice of one element of it, which would lose a
  // factor. device_position.cc
  kProductsApartFromSlices,
  // A barrier keeps a concatenation from the all-to-all that sends it, whose operands would get
  // unlike layouts. reshard_steps.cc
  kConcatenationsApartFromAllToAlls,
  // Floats are reduced to the maximum of all devices as integers in the same order: what is not a
  // number is lost otherwise. local_operation.cc
  kMaximaOfIntegers,
  // For memory and speed.

  // Barriers make dots and reductions that free memory run where the program has them: the
  // scheduler leaves them until the end of the step. release_operands.h
  kReleasedOperands,
  // Depthwise convolutions as sums of products, and input and kernel exchanged where the window is
  // the larger one: the matrix library has no code for them. convolution_forms.h
  kConvolutionForms,
  // Small operands of an all-reduce are packed into one array: all devices meet for each operand.
  // reshard_steps.cc
  kPackedAllReduces,
  // What is gathered together with others, or has few rows and is gathered along another dimension
  // than the first, is put into order at once. reshard_steps.cc
  kOrderedGathers,
  // Reductions to a maximum compare: by the instruction, which hands on what is not a number, they
  // are not vectorised. compared_maxima.h
  kComparedMaxima,
  // Of reductions over several dimensions only those over one are vectorised. flatten_dims.h
  kFlatReductions,
  // Operands of dots that are no matrices are transposed in front of them. flatten_dims.h
  kFlatDots,
  // Few rows times what contracts its last dimension are packed in strides. flatten_dims.h
  kExchangedDots,
  // Products of images and matrices are convolutions again: as matrix products, images are copied
  // in front of them. dots_as_convolutions.h
  kImageConvolutions,
};

// A set of departures.
class Departures {
 public:
  static constexpr Departures Of(Platform platform);
  // Of a step that is prepared and not yet lowered for one.
  static constexpr Departures OfAnyPlatform();

  constexpr bool contains(Departure departure) const {
    return (bits_ >> static_cast<unsigned>(departure) & 1U) != 0;
  }

 private:
  constexpr void Insert(Departure departure) { bits_ |= 1U << static_cast<unsigned>(departure); }

  uint32_t bits_ = 0;
};

// All but kImageConvolutions (docs/design/0021) were seen with XLA:CPU (the wheel xla-cpu-pjrt
// 0.0.1). CUDA has those whose cause is a pass that both compilers run (simplifiers, constant
// folding, the rewriter of reductions, the decomposer of all-to-alls); none of these was tried
// there.
struct PlatformDeparture {
  Departure departure;
  Platform platform;
};
inline constexpr std::array kDepartures = {
    PlatformDeparture{Departure::kNeutralInits, Platform::kCpu},
    PlatformDeparture{Departure::kSpreadScalars, Platform::kCpu},
    PlatformDeparture{Departure::kClampedStarts, Platform::kCpu},
    PlatformDeparture{Departure::kProductsApartFromSlices, Platform::kCpu},
    PlatformDeparture{Departure::kConcatenationsApartFromAllToAlls, Platform::kCpu},
    PlatformDeparture{Departure::kMaximaOfIntegers, Platform::kCpu},
    PlatformDeparture{Departure::kReleasedOperands, Platform::kCpu},
    PlatformDeparture{Departure::kConvolutionForms, Platform::kCpu},
    PlatformDeparture{Departure::kPackedAllReduces, Platform::kCpu},
    PlatformDeparture{Departure::kOrderedGathers, Platform::kCpu},
    PlatformDeparture{Departure::kComparedMaxima, Platform::kCpu},
    PlatformDeparture{Departure::kFlatReductions, Platform::kCpu},
    PlatformDeparture{Departure::kFlatDots, Platform::kCpu},
    PlatformDeparture{Departure::kExchangedDots, Platform::kCpu},
    PlatformDeparture{Departure::kNeutralInits, Platform::kCuda},
    PlatformDeparture{Departure::kSpreadScalars, Platform::kCuda},
    PlatformDeparture{Departure::kClampedStarts, Platform::kCuda},
    PlatformDeparture{Departure::kProductsApartFromSlices, Platform::kCuda},
    PlatformDeparture{Departure::kConcatenationsApartFromAllToAlls, Platform::kCuda},
    PlatformDeparture{Departure::kImageConvolutions, Platform::kCuda},
};

constexpr Departures Departures::Of(Platform platform) {
  Departures departures;
  for (const PlatformDeparture& row : kDepartures) {
    if (row.platform == platform) departures.Insert(row.departure);
  }
  return departures;
}

constexpr Departures Departures::OfAnyPlatform() {
  Departures departures;
  for (const PlatformDeparture& row : kDepartures) departures.Insert(row.departure);
  return departures;
}

}  // namespace minka
