// Instructions as bytes: equal keys mean that the same is computed from the same operands.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "minka/ir/module.h"

namespace minka {

// What stands in the key for an operand or a called computation.
using OperandKey = std::function<uint64_t(Value)>;
using ComputationKey = std::function<uint64_t(ComputationId)>;

// Opcode, operands, result shapes, attributes (constants by content), called computations and
// undecoded fields; names, metadata and frontend attributes are left out.
std::string StructureKey(const Instruction& instruction, const OperandKey& operand_key,
                         const ComputationKey& computation_key);

// By computation: a hash of what it computes; computations that differ in names alone have the
// same.
std::vector<uint64_t> ComputationHashes(const Module& module);

// The value as one number, for keys.
uint64_t PackValue(Value value);

}  // namespace minka
