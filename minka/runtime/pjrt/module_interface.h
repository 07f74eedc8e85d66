// What a launch must know of a module: what goes in and which inputs it consumes. For the sources
// of this folder only.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/ir/shape.h"
#include "minka/runtime/pjrt/pjrt.pb.h"

namespace minka::pjrt {

struct ModuleInterface {
  std::string name;
  std::vector<std::shared_ptr<const Shape>> parameters;
  std::vector<int> donated_parameters;  // ascending
};

// The interface fields of HloModuleProto bytes. InvalidArgument when they are none.
absl::StatusOr<proto::ModuleInterfaceProto> ParseModuleInterface(std::string_view module_bytes);

// InvalidArgument for parameters that are no arrays, and for donations of parameters that do not
// exist.
absl::StatusOr<ModuleInterface> InterfaceOf(const proto::ModuleInterfaceProto& module);

}  // namespace minka::pjrt
