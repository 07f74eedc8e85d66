// Devices that must hold the same part of an array: every one against the first of them, bit for
// bit. What devices compute in common, each for itself, comes out in equal bits, and so does what a
// collective gives to all of a group.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "minka/ir/shape.h"
#include "minka/sharding/mesh.h"
#include "minka/sharding/sharding.h"

namespace minka {

struct ReplicaDifference {
  int64_t device = 0, other = 0;  // hold the same part; `other` is the first that does
  int64_t num_elements = 0;       // that differ
  int64_t element = 0;            // the first of them, row-major within the part
};

// `parts` by device, dense and row-major. The difference of the first device that has one.
std::optional<ReplicaDifference> FindReplicaDifference(std::span<const std::string> parts,
                                                       const Shape& shape, const Sharding& sharding,
                                                       const Mesh& mesh);

// The first device that holds the same part.
int64_t FirstHolder(int64_t device, const Sharding& sharding, const Mesh& mesh);

}  // namespace minka
