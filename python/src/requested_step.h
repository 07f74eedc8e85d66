// The step of a request, as JAX has it and as it is planned.
#pragma once

#include "absl/status/statusor.h"
#include "executable.h"
#include "minka/minka.h"

namespace minka {

struct RequestedStep {
  Step given;
  // For a pipeline its loops over layers are written out, and each layer has its row of what is
  // stacked for them; else it is the given one.
  SplitStep planned;
  // In which what names stacked parameters names their rows.
  ParallelizeRequest request;
};

absl::StatusOr<RequestedStep> StepOfRequest(const ParallelizeRequest& request);

// What matches names of parameters, as a glob that matches their rows where they have some.
std::string GlobOfRows(const std::string& glob, const Step& given, const StepRows& rows);

}  // namespace minka
