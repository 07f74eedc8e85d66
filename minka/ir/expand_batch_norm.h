// Batch normalisation in elementary operations, which can be split along every dimension: the
// statistics become sums that are owed, as any other.
#pragma once

#include "minka/ir/module.h"

namespace minka {

// Replaces every batch-norm-training, -inference and -grad by a call of a computation that does the
// same with sums and elementwise operations in f32 (f64 where x is f64); variances as XLA expands
// them, E[x^2] - E[x]^2, but never below zero. InlineCalls() then makes the calls part of their
// computations.
Module ExpandBatchNorm(Module module);

}  // namespace minka
