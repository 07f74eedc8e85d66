// Steps of a reshard by text, as plan.json, tables and messages show them:
//
//   all-reduce data+model      reduce-scatter data dim 0      all-gather data+model dim 1
//   all-to-all data dim 0 to 1      slice model dim 1      make-partial data
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "minka/sharding/mesh.h"
#include "minka/sharding/reshard.h"
#include "minka/sharding/sharding.h"

namespace minka {

std::string ToString(const ReshardStep& step, const Mesh& mesh);

// The step with that text, applied to `before`: `result` is filled in.
absl::StatusOr<ReshardStep> ParseReshardStep(std::string_view text, const Sharding& before,
                                             const Mesh& mesh);

// The sharding after the step, whatever step.result says; an error where the step cannot follow
// `before` ("all-gather of axis model, which is not the minor axis of dimension 0").
absl::StatusOr<Sharding> ApplyStep(const Sharding& before, const ReshardStep& step,
                                   const Mesh& mesh);

}  // namespace minka
