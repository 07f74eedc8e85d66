// What a compiled program says of itself, loaded or not. For the sources of this folder only.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "minka/runtime/pjrt/api.h"
#include "minka/runtime/pjrt/executable.h"

namespace minka::pjrt {

absl::StatusOr<MemoryStatistics> ReadMemoryStatistics(const PJRT_Api* api,
                                                      PJRT_Executable* program);
// As Executable::OptimizedModule.
absl::StatusOr<std::string> ReadOptimizedModule(const PJRT_Api* api, PJRT_Executable* program);

// HloModuleProto bytes as the plugin takes them; it only reads them.
PJRT_Program HloProgram(std::string_view module_bytes);

}  // namespace minka::pjrt
