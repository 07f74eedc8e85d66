// Import from and export to XLA's HloModuleProto (serialised). Fields that nothing decodes survive
// a round trip.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "minka/ir/module.h"

namespace minka {

// Reads HloModuleProto, HloProto or HloModuleProtoWithConfig bytes and verifies. Tuples are
// dissolved, layouts dropped (all values are row-major), ids renumbered.
absl::StatusOr<Module> ImportHlo(std::string_view bytes);

// HloModuleProto bytes that a PJRT plugin compiles: flat entry parameters, tuple root, explicit
// default layouts, unique 32-bit ids, host_program_shape.
std::string ExportHlo(const Module& module);

// The text form: a subset of XLA's HLO text that other tools parse, too. ParseHloText(HloText(m))
// equals m.
std::string HloText(const Module& module);
absl::StatusOr<Module> ParseHloText(std::string_view text);

}  // namespace minka
