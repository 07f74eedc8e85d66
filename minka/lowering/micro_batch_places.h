// Where every value of a step lies along its micro-batches, and what each operation does to them.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/ir/step.h"
#include "minka/lowering/micro_batches.h"
#include "minka/sharding/mesh.h"
#include "minka/sharding/op_rule.h"
#include "minka/sharding/sharding.h"

namespace minka {

// Of the mesh that stands for the micro-batches.
inline constexpr int kMicroAxis = 0;

// Where a value is along the micro-batches.
struct MicroPlace {
  enum class Kind : uint8_t {
    kInvariant,  // the same for all, whole in front of the loop
    kSame,       // the same for all, made inside the loop
    kSplit,      // a slice of dimension `dim`
    kPartial,    // a part of a sum
    kAfter,      // there only when the loop is over
  };
  Kind kind = Kind::kInvariant;
  int dim = -1;
  auto operator<=>(const MicroPlace&) const = default;
};

// What a sharding over that mesh means.
MicroPlace PlaceOf(const Sharding& sharding);

// What becomes of every operation.
struct MicroPlaces {
  std::vector<std::vector<MicroPlace>> places;  // [instruction][result]
  std::vector<Strategy> strategies;             // of operations inside the loop; else empty
  std::vector<bool> from_inputs;  // depends on batch inputs, keys and constants, without heavy work
  std::vector<bool> has_local;    // one micro-batch can estimate it, see per_micro_batch

  const MicroPlace& at(Value value) const { return places[value.instruction][value.result]; }
  bool IsInside(InstructionId id) const { return !strategies[id].axes.empty(); }
};

// Precondition: that of MakeMicroBatches, whose errors these are. `mesh` has one axis, the
// micro-batches.
absl::StatusOr<MicroPlaces> FindMicroPlaces(const Step& step, const MicroBatchOptions& options,
                                            const Mesh& mesh);

}  // namespace minka
