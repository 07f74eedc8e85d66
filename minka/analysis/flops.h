// How much work an instruction is on full shapes. What it takes in time is the business of cost/.
#pragma once

#include <cstdint>

#include "minka/ir/module.h"

namespace minka {

struct InstructionWork {
  // Multiplications and additions of dots and convolutions, each counted: 2 batch m n k.
  // Convolutions count products with elements of the input alone, as XLA does: none with padding
  // or holes of dilation.
  double flops = 0;
  // Elements computed by everything else, each times the weight of its opcode (ElementWeight).
  double elementwise = 0;
  // Elements of transcendental opcodes among them, unweighted.
  double transcendentals = 0;
  // Read and written if the instruction ran alone; slices and gathers read what they return, views
  // (reshape, opt-barrier, parameter, constant) nothing.
  int64_t bytes = 0;

  InstructionWork& operator+=(const InstructionWork& other);
};

// Loops count by their trip count (once where it is unknown), conditionals their most expensive
// branch, calls what they call; reductions one run of the reducer per input element, sorts
// n log2(n) comparisons.
InstructionWork WorkOf(const Module& module, const Computation& computation, InstructionId id);
InstructionWork WorkOf(const Module& module, const Computation& computation);

// Operations of one element in units of an addition: 1 for arithmetic, comparison, selection and
// conversion; more where a processor needs a division, a root or a polynomial. 0: moves no bits.
double ElementWeight(Opcode opcode);
bool IsTranscendental(Opcode opcode);

}  // namespace minka
