// For tests: shardings of their own making.
#pragma once

#include <numeric>
#include <random>

#include "minka/ir/shape.h"
#include "minka/sharding/sharding.h"

namespace minka {

// Any but partial sums. Dimensions of the shape grow until their parts are equal.
inline Sharding RandomSharding(std::mt19937_64& random, Shape& shape, const Mesh& mesh) {
  Sharding sharding = Sharding::Replicated(shape.rank());
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    if (shape.rank() == 0 || random() % 3 == 0) continue;
    sharding.dims[random() % shape.rank()].PushMinor(axis);
  }
  for (int dim = 0; dim < shape.rank(); ++dim) {
    shape.dims[dim] = std::lcm(shape.dims[dim], NumParts(sharding.dims[dim], mesh));
  }
  return sharding;
}

}  // namespace minka
