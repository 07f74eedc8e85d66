// How an array gets from one mesh to another: which device sends which box of it to whom.
//
//   s32[4,8] from [x,-] on x=2 to [-,-] on x=2, each mesh on a host of its own:
//   0 -> 0,1: [0:2,0:8]     device 0 sends the upper half to device 0, which copies it to device 1
//   1 -> 1,0: [2:4,0:8]
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/ir/box.h"
#include "minka/ir/shape.h"
#include "minka/sharding/mesh.h"
#include "minka/sharding/sharding.h"

namespace minka {

// An array as it lies on a mesh.
struct ArrayOnMesh {
  Sharding sharding;
  Mesh mesh;
  // By device of the mesh, numbered as those of the other mesh; devices of one host share memory.
  std::vector<int> hosts;
};

struct TileTransfer {
  // Of the mesh that the array comes from; or, relayed, of the one that it goes to, on another
  // host, which has received the box by an earlier transfer.
  int64_t source = 0;
  bool is_relayed = false;
  Box box;
  // Of the mesh that it goes to, all on one host: the first one receives the box and the others
  // copy it from there.
  std::vector<int64_t> destinations;
  auto operator<=>(const TileTransfer&) const = default;
};

struct CrossMeshOptions {
  // What devices of the first mesh have sent of other arrays, for the balance; empty: nothing.
  std::vector<int64_t> sent_bytes;
  // Boxes that several devices want are cut, so that each of them receives a piece and the others
  // copy it from there, as long as pieces have so many bytes.
  int64_t min_piece_bytes = std::numeric_limits<int64_t>::max();
  // Boxes of so many bytes are passed on by a host that has received them where the hosts that they
  // come from have sent more than it; smaller ones would lose more by waiting.
  int64_t min_relay_bytes = 0;
};

// Each host gets each element that its devices hold once, as all of them do in the end, from a
// device of its own where one has it, otherwise from the one that has sent least of those whose
// host has sent least to other hosts. The same input gives the same list. Preconditions: both
// shardings are valid, nothing partial.
std::vector<TileTransfer> PlanCrossMesh(const Shape& shape, const ArrayOnMesh& from,
                                        const ArrayOnMesh& to,
                                        const CrossMeshOptions& options = {});

// The least that all hosts together can receive: what the devices of each hold, counted once.
int64_t NeededBytes(const Shape& shape, const ArrayOnMesh& to);

// One line per transfer: "0 -> 0,1: [0:2,0:8]", "relay 1 -> 4,5: [0:2,0:8]".
std::string ToString(std::span<const TileTransfer> transfers);
absl::StatusOr<std::vector<TileTransfer>> ParseTileTransfers(std::string_view text);

}  // namespace minka
