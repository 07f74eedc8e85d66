// Attributes at the border: which fields of HloInstructionProto hold them, opcode by opcode.
#pragma once

#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "minka/ir/hlo.pb.h"
#include "minka/ir/module.h"

namespace minka {

// Reads the attributes of an opcode from the fields that hold them and clears those; what stays is
// undecoded. Constants, parameters and opaque opcodes are the caller's.
absl::StatusOr<Attributes> DecodeAttributes(Opcode opcode, hlo::HloInstructionProto& proto);

// Writes the fields that DecodeAttributes reads. `operands` are the operands' shapes.
void EncodeAttributes(const Instruction& instruction, std::span<const Shape> operands,
                      hlo::HloInstructionProto& proto);

}  // namespace minka
