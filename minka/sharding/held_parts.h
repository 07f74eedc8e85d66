// Which boxes of an array the devices of a mesh hold.
#pragma once

#include <cstdint>
#include <vector>

#include "minka/ir/box.h"
#include "minka/ir/shape.h"
#include "minka/sharding/mesh.h"
#include "minka/sharding/sharding.h"

namespace minka {

// What the device holds. Precondition: a valid sharding, nothing partial.
Box PartOf(const Shape& shape, const Sharding& sharding, const Mesh& mesh, int64_t device);

// One of the different parts that devices hold.
struct HeldPart {
  Box box;
  std::vector<int64_t> devices;  // ascending
};
// By first device.
std::vector<HeldPart> HeldParts(const Shape& shape, const Sharding& sharding, const Mesh& mesh);

}  // namespace minka
