// The collectives that turn one sharding of a tensor into another.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "minka/ir/shape.h"
#include "minka/sharding/mesh.h"
#include "minka/sharding/sharding.h"

namespace minka {

enum class ReshardKind : uint8_t {
  kAllReduce,      // completes partial axes
  kReduceScatter,  // completes a partial axis by splitting `dim` over it
  kAllGather,      // takes the minor axis (or minor axes) of `dim` away
  kAllToAll,       // moves the minor axis of `dim` to be the minor axis of `to_dim`
  kSlice,          // splits `dim` over an axis; local, no communication
  kMakePartial,    // replicated -> partial: kept on coordinate 0, zero elsewhere; local
};

bool IsCollective(ReshardKind kind);
// HLO's name: "all-reduce"; "slice" and "make-partial" for the local ones.
std::string_view ToString(ReshardKind kind);

struct ReshardStep {
  ReshardKind kind = ReshardKind::kSlice;
  AxisList axes;  // major to minor; several only for kAllReduce and for kAllGather of neighbouring
                  // minor axes
  int dim = -1;
  int to_dim = -1;  // kAllToAll
  Sharding result;  // after this step
  bool operator==(const ReshardStep&) const = default;
};

// Cost of one collective; bytes as in HLO: all-reduce and reduce-scatter: the local operand;
// all-gather: the local result; all-to-all: the local operand. Local steps may be priced too
// (kSlice, kMakePartial).
using ReshardPrice = std::function<double(ReshardKind kind, int64_t local_bytes, AxisSet axes)>;

struct ReshardPath {
  std::vector<ReshardStep> steps;
  double cost = 0;
};

// The cheapest sequence under `price` (Dijkstra over the shardings reachable by single steps); ties
// by fewer steps, then by step order, so the same input gives the same path. Always exists: gather
// everything, then slice.
ReshardPath CheapestReshard(const Shape& shape, const Sharding& from, const Sharding& to,
                            const Mesh& mesh, const ReshardPrice& price);

// Bytes that the price of the step is asked for, see ReshardPrice.
int64_t StepBytes(const Shape& shape, const Sharding& before, const ReshardStep& step,
                  const Mesh& mesh);

}  // namespace minka
