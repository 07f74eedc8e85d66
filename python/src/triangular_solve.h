// HLO's triangular-solve, of batches of matrices.
#pragma once

#include "minka/ir/builder.h"

namespace minka {

struct TriangularForm {
  // TriangularSolveOptions.Transpose of XLA's xla_data.proto.
  enum class Transpose { kNone = 1, kTranspose = 2, kAdjoint = 3 };

  bool is_left = true;                     // x of a x = y, else of x a = y
  bool is_lower = true;                    // what of `a` is read
  bool has_unit_diagonal = false;          // it is not read then
  Transpose transpose = Transpose::kNone;  // of `a`
};

// x of a x = y; `a` is [batch..., n, n], x is shaped as y.
Value TriangularSolve(ComputationBuilder& b, Value a, Value y, const TriangularForm& form);

}  // namespace minka
