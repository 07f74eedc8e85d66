// Small programs that `minka profile` times.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "minka/cost/calibration.h"
#include "minka/ir/module.h"
#include "minka/sharding/reshard.h"

namespace minka {

// `count` dots of [batch, m, k] and [batch, k, n], whose matrices lie as the form says, each with a
// right operand and a result of its own that no cache holds, as a model's layers have them, and
// every fourth with another left one; all of the type.
absl::StatusOr<Module> DotProgram(DotForm form, ElementType type, int64_t batch, int64_t m,
                                  int64_t n, int64_t k, int count);

// `count` dots as in the loops of recurrent networks: the same left operand and a few right ones by
// turns, which stay in the caches if they fit, and one small kernel more for each.
absl::StatusOr<Module> CachedDotProgram(DotForm form, int64_t batch, int64_t m, int64_t n,
                                        int64_t k, int count);

// `count` arrays of `num_elements` floats, each read, changed and written in its place, or else
// into an array of its own.
absl::StatusOr<Module> StreamProgram(int64_t num_elements, int count, bool is_in_place);

// One array, `count` times read, changed and written.
absl::StatusOr<Module> CachedStreamProgram(int64_t num_elements, int count);

// `count` times an operation on every one of `num_elements` values of the type, in one loop; so
// many loops one behind the other.
absl::StatusOr<Module> ElementwiseProgram(Opcode opcode, ElementType type, int64_t num_elements,
                                          int count, int num_loops);

// Square images under windows of 3 x 3 with borders of padding; features in groups that see
// different inputs.
struct ConvolutionShape {
  int64_t images = 1, size = 1, inputs = 1, features = 1, groups = 1;
};
// The products of matrices, one for each group, that a convolution is, and those of its kernel's
// gradient; products with padding count in groups alone, which are computed so.
struct ProductSizes {
  int64_t batch = 1, m = 1, n = 1, k = 1;
};
ProductSizes ProductOf(const ConvolutionShape& shape);
ProductSizes ProductOfKernelGradient(const ConvolutionShape& shape);

// `count` convolutions of the same images, each with a kernel of its own.
absl::StatusOr<Module> ConvolutionProgram(const ConvolutionShape& shape, int count);
// The gradients of `count` kernels for the same images: windows as large as the images.
absl::StatusOr<Module> KernelGradientProgram(const ConvolutionShape& shape, int count);

// Matrices whose rows or columns are reduced, and square images that are pooled.
struct ReductionSizes {
  int64_t rows = 1, columns = 1;
  int64_t images = 1, size = 2, features = 1;
};

// `count` arrays of their own, of the type, each reduced. WorkOf says how much that is.
absl::StatusOr<Module> ReductionProgram(ReductionKernel kernel, ElementType type,
                                        const ReductionSizes& sizes, int count);

// `count` arrays of floats of these dimensions, each transposed into one of its own.
absl::StatusOr<Module> TransposeProgram(const std::vector<int64_t>& dims,
                                        const std::vector<int64_t>& permutation, int count);

// `count` times a multiplication and an addition on every one of `num_elements` values of the type,
// in one loop; so many loops one behind the other.
absl::StatusOr<Module> ArithmeticProgram(ElementType type, int64_t num_elements, int count,
                                         int num_loops);

// `count` pairs of kernels with next to nothing to do, one after the other.
absl::StatusOr<Module> LaunchProgram(int count);

// Devices in groups of equal size: neighbours, or as far apart as equal steps allow.
struct DeviceGroups {
  int64_t size = 1;
  int64_t num_devices = 1;
  bool is_strided = false;
};

// `count` collectives over the groups, one after the other, each of a matrix of its own, as those
// of steps are: what was just moved lies in the caches. bytes as in StepWork. Those that divide do
// so along the dimension; matrices and results lie by rows, so that along the second one they are
// transposed before and behind.
absl::StatusOr<Module> CollectiveProgram(ReshardKind kind, int64_t bytes,
                                         const DeviceGroups& groups, int64_t dim, int count);

// `num_phases` phases of `num_pairs` times x -> x w -> (x w) v on a small matrix, behind each an
// all-reduce over the groups, if given: devices that share cores wait there for the last one.
absl::StatusOr<Module> PhasesProgram(const std::optional<DeviceGroups>& groups, int num_phases,
                                     int num_pairs);
// Bytes of each of its all-reduces.
int64_t PhasesProgramBytes();

}  // namespace minka
