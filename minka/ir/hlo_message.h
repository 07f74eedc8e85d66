// Modules to and from XLA's proto messages; hlo_proto.h is the public face.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "minka/ir/hlo.pb.h"
#include "minka/ir/module.h"

namespace minka {

// Consumes the message. The module is verified.
absl::StatusOr<Module> ModuleFromProto(hlo::HloModuleProto proto);
// The module must be one that Verify accepts.
hlo::HloModuleProto ModuleToProto(const Module& module);

// Text to and from the message; ids are numbered in order of appearance.
std::string PrintHlo(hlo::HloModuleProto proto);
absl::StatusOr<hlo::HloModuleProto> ParseHlo(std::string_view text);

// The bytes of a message; above 2 GiB there are none, which is a bug of the caller.
std::string Serialized(const google::protobuf::MessageLite& message);

}  // namespace minka
