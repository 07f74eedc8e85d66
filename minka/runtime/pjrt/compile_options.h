// CompileOptionsProto as a plugin reads it. For the sources of this folder only.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/runtime/pjrt/executable.h"

namespace minka::pjrt {

// Serialised options; InvalidArgument when the devices do not fit the client. Everything that XLA
// does not default well is written: with empty options it aborts.
absl::StatusOr<std::string> CompileOptionsBytes(const Client& client,
                                                const CompileOptions& options);
// For replicas on devices by the plugin's numbers, with these options of the compiler.
std::string CompileOptionsBytes(const std::vector<int>& device_ids, const Overrides& overrides);

}  // namespace minka::pjrt
