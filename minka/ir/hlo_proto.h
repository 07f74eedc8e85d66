// Import from and export to XLA's HloModuleProto (serialised) and HLO text. Fields that nothing
// decodes (shardings, precisions, a custom call's backend_config ...) travel in `undecoded`.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "minka/ir/module.h"

namespace minka {

// Reads HloModuleProto, HloProto or HloModuleProtoWithConfig bytes and verifies. Any bytes are
// safe; errors name computation and instruction. Tuples are dissolved: a tuple-shaped parameter
// becomes several, each named after the get-tuple-element that reads it. Dropped: layouts (all
// values are row-major; a custom call keeps its own in OpaqueAttributes), source positions, control
// predecessors, schedules. Refused: dimensions of unknown size, replica groups by mesh axes,
// callees or operands after their use.
absl::StatusOr<Module> ImportHlo(std::string_view bytes);

// HloModuleProto bytes that a PJRT plugin compiles: flat entry parameters, tuple root, explicit
// default layouts, unique 32-bit ids, host_program_shape. The module must be one that Verify
// accepts. Instruction names are made unique in the module; a computation that both a while and a
// call use is written once for each. Otherwise ImportHlo(ExportHlo(m)) equals m.
std::string ExportHlo(const Module& module);

// The text form of the exported proto, which XLA's parser reads, too, unless undecoded fields
// without a syntax in text are left: those are the attribute `minka_extra` (base64).
// ParseHloText(HloText(m)) equals m as above; it also reads what XLA prints, with or without
// layouts, operand shapes and '%'.
std::string HloText(const Module& module);
absl::StatusOr<Module> ParseHloText(std::string_view text);

}  // namespace minka
