// Values for the parameters of a step.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/frontend/trace.h"
#include "minka/ir/literal.h"
#include "minka/ir/step.h"
#include "minka/tensors/safetensors.h"

namespace minka {

// The tensors named "0", "1", ... of a file by parameter number; errors name what is missing, left
// over or of another shape.
absl::StatusOr<std::vector<Literal>> InputsFromTensors(const Module& module,
                                                       const TensorFile& file);
// The other way: values named "0", "1", ... by their position.
TensorFile ToTensorFile(std::span<const Literal> values);

// The same values for the same seed, by parameter number:
//   floats            batch inputs normal with deviation 1; all others uniform in [0, 0.04), so
//                     that square roots of an optimizer's moments exist
//   keys, u32, u64    any bits
//   other integers    uniform in [0, IndexBound), else 0 or 1
// Unimplemented for tokens and opaque values.
absl::StatusOr<std::vector<Literal>> RandomInputs(const Step& step, uint64_t seed);
absl::StatusOr<Literal> RandomInput(const Step& step, int parameter, uint64_t seed);
// Of the batch inputs alone, in their order.
absl::StatusOr<std::vector<Literal>> RandomBatch(const Step& step, uint64_t seed);

// The number of values that an integer parameter may take as an index: the smallest table that it
// indexes (gather, scatter, dynamic-slice) or iota that it is compared with (one-hot rows),
// directly or after conversions, moves of data and additions. nullopt: it indexes nothing.
std::optional<int64_t> IndexBound(const Module& module, int parameter);

// By parameter number: the initial value of state and constants by their initialisers; no bytes for
// batch inputs and keys, which have none.
std::vector<Literal> InitialValues(const Step& step,
                                   std::span<const std::optional<Initializer>> initializers,
                                   uint64_t seed);

// The key of a training step, as every random mask of a traced model takes it: u32[2].
Literal StepKey(uint64_t seed, int64_t step);

}  // namespace minka
