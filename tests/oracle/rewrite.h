// Writes a module anew with one instruction replaced, or with other results.
#pragma once

#include <functional>
#include <vector>

#include "minka/ir/builder.h"
#include "minka/ir/module.h"

namespace minka {

struct Site {
  ComputationId computation = -1;
  InstructionId instruction = -1;
};

// The values that take the place of the instruction's results; its operands are the new ones.
using ReplaceInstruction =
    std::function<std::vector<Value>(ComputationBuilder& builder, const Instruction& instruction)>;
Module RewriteAt(const Module& module, Site site, const ReplaceInstruction& replace);

// The entry computation's results from its parameters and results.
using ReplaceResults = std::function<std::vector<Value>(
    ComputationBuilder& builder, const std::vector<Value>& parameters, std::vector<Value> results)>;
Module RewriteResults(const Module& module, const ReplaceResults& replace);

// All results of the instruction, appended as it is.
std::vector<Value> AppendAsItIs(ComputationBuilder& builder, const Instruction& instruction);

}  // namespace minka
