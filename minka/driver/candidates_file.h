// What a search over submeshes chose from, as a file for spreadsheets and programs.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "minka/driver/pipeline.h"

namespace minka {

// A row for each run of layers, mesh and way to run them there (state whole or split over the mesh;
// nothing or everything recomputed): times in microseconds (forward and backward of a micro-batch,
// update, a whole step), bytes per device by what holds them, as the last stage of a pipeline; how
// many stages may be behind it for it to fit; why it is not what the search looks at; the stage of
// the plan that these layers are on this mesh. Runs of layers that are equal to earlier ones have
// one row, which says to which. All of it is estimated by layers planned alone. Tab-separated, with
// a line of names.
//
// FailedPrecondition where the submeshes were not searched for, or layers cannot be planned alone.
absl::StatusOr<std::string> CandidatesTsv(const PlannedPipeline& planned);
// The same as objects, {"candidates": [...], "refused": [...]}: what meshes layers cannot be
// planned on, and why.
absl::StatusOr<std::string> CandidatesJson(const PlannedPipeline& planned);

}  // namespace minka
