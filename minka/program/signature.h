// What a mesh's program takes and gives.
#pragma once

#include <vector>

#include "minka/ir/module.h"
#include "minka/ir/shape.h"
#include "minka/sharding/sharding.h"

namespace minka {

// Whole shapes with their shardings.
struct MeshSignature {
  std::vector<Shape> parameters, results;
  std::vector<Sharding> parameter_shardings, result_shardings;
};

// Of a module that runs whole on one device.
MeshSignature SignatureOf(const Module& module);
// Of the program that `module` was lowered to.
MeshSignature SignatureOf(const Module& module, std::vector<Sharding> parameters,
                          std::vector<Sharding> results);

}  // namespace minka
