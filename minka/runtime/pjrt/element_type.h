// Element types as PJRT numbers them. For the sources of this folder only.
#pragma once

#include <pjrt_c_api.h>

#include "absl/status/statusor.h"
#include "minka/ir/shape.h"

namespace minka::pjrt {

// Unimplemented for what no device keeps: tokens and opaque values.
absl::StatusOr<PJRT_Buffer_Type> ToPjrtType(ElementType type);

// Unimplemented for a type that came after this program.
absl::StatusOr<ElementType> FromPjrtType(PJRT_Buffer_Type type);

}  // namespace minka::pjrt
