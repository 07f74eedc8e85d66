// What XLA:GPU asks of a GPU that it compiles for and that is not here.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace minka::pjrt {

// XLA's GpuTargetConfigProto as text, by the name of a cluster's device ("h100-80gb"). NotFound
// lists those that there are: V100 and 1080 Ti are too old for the compilers of CUDA 13.
absl::StatusOr<std::string> GpuTarget(std::string_view device);

}  // namespace minka::pjrt
