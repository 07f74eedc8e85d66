// Which computation calls which.
#pragma once

#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/ir/module.h"

namespace minka {

// All computations, callees before callers, otherwise by id, the entry last. A cycle or a call of a
// computation that does not exist is an error.
absl::StatusOr<std::vector<ComputationId>> CalleesFirst(const Module& module);

// The computations that the entry reaches, itself included, in ascending order.
std::vector<ComputationId> ReachableComputations(const Module& module);

// The module with the listed computations only, in that order; they must include what they call.
Module KeepComputations(Module module, std::span<const ComputationId> kept);

// May the instruction be neither dropped nor merged with an equal one? True for unknown opcodes,
// custom calls that say so, and calls of computations that have such an instruction.
bool HasSideEffect(const Module& module, const Instruction& instruction);

// Does another run of it give the same? Not with stateful random bits, custom calls or side
// effects, in what it calls neither.
bool GivesTheSameAgain(const Module& module, const Instruction& instruction);

}  // namespace minka
