// The stages of a pipeline by hand, as a file:
//
//   {"stages": [{"layers": 3, "submesh": "1x2", "mesh": "data=2"},
//               {"layers": [3, 4], "mesh": "data=2,model=2", "batch_axis": "data",
//                "pins": ["params/*/kernel=[-,model]"]}]}
//
// A stage has so many layers or these, which are consecutive. `submesh` is hosts x devices per
// host, `mesh` the shape of these devices; where no stage names either, meshes are chosen. Stages
// of which several lie on a mesh name the mesh in the first round only. `pins`, and the limits
// no_all_gather, no_all_to_all, batch_axis, no_sequence_split, no_replicated_parameters,
// prefer_reduce_scatter and combine_gathers_bytes, hold for the stage alone.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "minka/driver/pipeline_options.h"

namespace minka {

// `options` with stages, submeshes, meshes and per-stage options of the text; limits that a stage
// does not name are those of `limits`. Errors name the field.
absl::StatusOr<PipelineOptions> WithStages(PipelineOptions options, std::string_view json,
                                           const SearchLimits& limits);

// "1x2" -> 2; InvalidArgument where it is no hosts x devices per host.
absl::StatusOr<int> ParseSubmesh(std::string_view text);

}  // namespace minka
