// CompileOptionsProto as a plugin reads it. For the sources of this folder only.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "minka/runtime/pjrt/executable.h"

namespace minka::pjrt {

// Serialised options; InvalidArgument when the devices do not fit the client. Everything that XLA
// does not default well is written: with empty options it aborts.
absl::StatusOr<std::string> CompileOptionsBytes(const Client& client,
                                                const CompileOptions& options);

}  // namespace minka::pjrt
