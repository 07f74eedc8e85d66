// How HLO's triangular-solve takes its matrix.
#pragma once

namespace minka {

// TriangularSolveOptions.Transpose of XLA's xla_data.proto.
inline constexpr int kNoTranspose = 1, kTranspose = 2, kAdjoint = 3;

}  // namespace minka
