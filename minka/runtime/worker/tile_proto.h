// Tile lists on their way to the worker that plays them.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "minka/program/pipeline_program.h"
#include "minka/runtime/worker/worker.pb.h"

namespace minka {

worker::TileList TileListToProto(const TileList& list);
// InvalidArgument: a message without tiles, a tile without devices or with fewer ends than
// beginnings, more tiles than any plan has. Whether they fit an array is for those that follow.
absl::StatusOr<TileList> TileListFromProto(const worker::TileList& proto);

// Each box is one of the array's, and of what its one device holds of it; together they are not
// larger than the array. Precondition: the slot's sharding is valid, nothing partial.
absl::Status CheckSentTiles(const ArraySlot& slot, const Mesh& mesh, const TileList& list);
// Every device gets each element of its part exactly once, and no others.
absl::Status CheckReceivedTiles(const ArraySlot& slot, const Mesh& mesh, const TileList& list);

// In the same messages.
bool HaveSameBoxes(const TileList& a, const TileList& b);

}  // namespace minka
