// Runs a module on the host, slowly and exactly: for tests that must not depend on a plugin. Floats
// are computed in extended precision whatever their type; integers wrap as their type does.
#pragma once

#include <vector>

#include "minka/ir/module.h"

namespace minka::testing {

// Elements in row-major order. long double holds every 64-bit integer.
struct Array {
  Shape shape;
  std::vector<long double> elements;
};

// Results of the entry computation. Opcodes: elementwise and data moving ones, dot, reduce, gather,
// scatter, opt-barrier; aborts at any other.
std::vector<Array> Evaluate(const Module& module, const std::vector<Array>& parameters);

// From -11 to 11, others for another seed: sums of their products are exact in whatever order.
Array SmallWholeNumbers(const Shape& shape, int seed);

Array FromLiteral(const Literal& literal);

}  // namespace minka::testing
