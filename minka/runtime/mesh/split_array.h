// What each device of a mesh holds of an array, and the array from what they hold. Arrays are dense
// and row-major.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "minka/ir/shape.h"
#include "minka/sharding/mesh.h"
#include "minka/sharding/sharding.h"

namespace minka {

// The device's part. Precondition: a valid sharding, nothing partial.
std::string TakePart(std::string_view whole, const Shape& shape, const Sharding& sharding,
                     const Mesh& mesh, int64_t device);

// Where the device's part lies in the whole, in bytes, if in one piece. Precondition as TakePart.
struct ArrayPiece {
  size_t begin = 0, size = 0;
};
std::optional<ArrayPiece> PartInOnePiece(const Shape& shape, const Sharding& sharding,
                                         const Mesh& mesh, int64_t device);

// Writes the device's part to its place in `whole`, which has the array's size.
void PutPart(std::string_view part, const Shape& shape, const Sharding& sharding, const Mesh& mesh,
             int64_t device, std::span<char> whole);

// The fewest devices whose parts make up the array: coordinate 0 on every axis that splits nothing.
std::vector<int64_t> CoveringDevices(const Sharding& sharding, const Mesh& mesh);

}  // namespace minka
