// What is sent from mesh to mesh, message by message.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "minka/ir/box.h"
#include "minka/ir/shape.h"
#include "minka/sharding/cross_mesh.h"

namespace minka {

// A box of an array as one mesh of the two sees it: the device that sends it, or those that hold it
// in the end, the one that receives it first.
struct Tile {
  Box box;
  std::vector<int> devices;
  bool operator==(const Tile&) const = default;
};

// Its tiles one behind the other, each dense and row-major.
struct TileMessage {
  std::vector<Tile> tiles;
  bool operator==(const TileMessage&) const = default;
};

// How an array leaves a mesh or comes to it; both ends have the same boxes in the same messages.
struct TileList {
  std::vector<TileMessage> messages;
  bool operator==(const TileList&) const = default;
};

struct TileLists {
  TileList sent, received;
};

// A tile that is one run of memory at both ends goes alone if it is not small; others are put
// together, so that a message has about a megabyte. Precondition: nothing is relayed, which a mesh
// in one process never needs.
TileLists PackTiles(std::span<const TileTransfer> transfers, const Shape& shape,
                    const ArrayOnMesh& from, const ArrayOnMesh& to);

// Elements of a box that lie one behind the other in memory that holds `part`, dense and row-major:
// do they all?
bool IsOneRun(const Box& box, const Box& part);
// Where the box begins there, in elements.
int64_t OffsetIn(const Box& part, const Box& box);

int64_t BytesOf(const TileMessage& message, ElementType type);
int64_t BytesOf(const TileList& list, ElementType type);

}  // namespace minka
