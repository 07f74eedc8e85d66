// Arrays of a mesh's devices from one array, and back.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/ir/shape.h"
#include "minka/sharding/mesh.h"
#include "minka/sharding/sharding.h"

namespace minka {

// What the device holds of an array (dense, row-major). Precondition: nothing partial.
std::string PartOf(std::string_view whole, const Shape& shape, const Sharding& sharding,
                   const Mesh& mesh, int64_t device);

// The array that the devices' parts make up; an error where two devices that should hold equal
// parts differ.
absl::StatusOr<std::string> Assemble(const std::vector<std::string>& parts, const Shape& shape,
                                     const Sharding& sharding, const Mesh& mesh);

}  // namespace minka
