#include "minka/program/tile_messages.h"

#include "minka/base/check.h"
#include "minka/sharding/held_parts.h"

namespace minka {
namespace {

// Tiles of less are cheaper copied than sent for themselves: a message costs some microseconds.
constexpr int64_t kLeastAloneBytes = int64_t{32} << 10;
// While one message of put-together tiles travels, the next is put together.
constexpr int64_t kPackedBytes = int64_t{1} << 20;

}  // namespace

bool IsOneRun(const Box& box, const Box& part) {
  bool is_inside = true;  // all dimensions so far are whole
  for (int dim = box.rank() - 1; dim >= 0; --dim) {
    if (!is_inside && box.size(dim) != 1) return false;
    is_inside = is_inside && box.size(dim) == part.size(dim);
  }
  return true;
}

int64_t OffsetIn(const Box& part, const Box& box) {
  int64_t offset = 0;
  for (int dim = 0; dim < box.rank(); ++dim) {
    offset = offset * part.size(dim) + box.begin[dim] - part.begin[dim];
  }
  return offset;
}

int64_t BytesOf(const TileMessage& message, ElementType type) {
  int64_t elements = 0;
  for (const Tile& tile : message.tiles) elements += tile.box.num_elements();
  return elements * ElementBytes(type);
}

int64_t BytesOf(const TileList& list, ElementType type) {
  int64_t bytes = 0;
  for (const TileMessage& message : list.messages) bytes += BytesOf(message, type);
  return bytes;
}

TileLists PackTiles(std::span<const TileTransfer> transfers, const Shape& shape,
                    const ArrayOnMesh& from, const ArrayOnMesh& to) {
  TileLists lists;
  int64_t packed_bytes = 0;  // of the last message; kPackedBytes: it is not to be added to
  for (const TileTransfer& transfer : transfers) {
    MINKA_CHECK(!transfer.is_relayed);
    const int64_t receiver = transfer.destinations.front();
    const int64_t bytes = transfer.box.num_elements() * ElementBytes(shape.type);
    const bool is_alone =
        bytes >= kLeastAloneBytes &&
        IsOneRun(transfer.box, PartOf(shape, from.sharding, from.mesh, transfer.source)) &&
        IsOneRun(transfer.box, PartOf(shape, to.sharding, to.mesh, receiver));
    if (lists.sent.messages.empty() || is_alone || packed_bytes + bytes > kPackedBytes) {
      lists.sent.messages.emplace_back();
      lists.received.messages.emplace_back();
      packed_bytes = 0;
    }
    packed_bytes = is_alone ? kPackedBytes : packed_bytes + bytes;
    lists.sent.messages.back().tiles.push_back({transfer.box, {static_cast<int>(transfer.source)}});
    lists.received.messages.back().tiles.push_back(
        {transfer.box, {transfer.destinations.begin(), transfer.destinations.end()}});
  }
  return lists;
}

}  // namespace minka
