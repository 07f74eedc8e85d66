// LU factors of matrices by HLO's operations, since no XLA that minka runs on has them.
#pragma once

#include "minka/ir/builder.h"

namespace minka {

struct LuFactors {
  Value factors;  // L below the diagonal, which is one, and U from it upwards
  Value pivots;   // s32[batch..., min(m, n)]: the row, from 1 on, that row i changed places with
};

// What LAPACK's getrf makes of [batch..., m, n], real or complex: rows are exchanged so that each
// pivot is the largest of its column. Singular matrices have a zero on U's diagonal.
LuFactors FactorLu(ComputationBuilder& b, Value matrices);

}  // namespace minka
