#include "minka/runtime/worker/tile_proto.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "minka/base/status.h"
#include "minka/sharding/held_parts.h"

namespace minka {
namespace {

// Of one list. Between two meshes of 64 devices there are 4,096 overlaps.
constexpr int kMaxTiles = 1 << 13;

absl::StatusOr<Tile> TileFromProto(const worker::Tile& proto) {
  Tile tile{.box = {.begin = {proto.begin().begin(), proto.begin().end()},
                    .end = {proto.end().begin(), proto.end().end()}},
            .devices = {proto.devices().begin(), proto.devices().end()}};
  if (tile.box.begin.size() != tile.box.end.size()) {
    return InvalidArgument("a box with {} beginnings and {} ends", tile.box.begin.size(),
                           tile.box.end.size());
  }
  for (int dim = 0; dim < tile.box.rank(); ++dim) {
    if (tile.box.begin[dim] < 0 || tile.box.end[dim] < tile.box.begin[dim]) {
      return InvalidArgument("the box {} is none", ToString(tile.box));
    }
  }
  if (tile.devices.empty()) return InvalidArgument("the box {} has no device", ToString(tile.box));
  const std::set<int> distinct(tile.devices.begin(), tile.devices.end());
  if (distinct.size() < tile.devices.size() || *distinct.begin() < 0) {
    return InvalidArgument("the box {} has devices that are none, or the same", ToString(tile.box));
  }
  return tile;
}

// The box lies in what each of its devices holds.
absl::Status CheckTile(const ArraySlot& slot, const Mesh& mesh, const Tile& tile) {
  if (tile.box.rank() != slot.shape.rank()) {
    return InvalidArgument("the box {} is none of {}", ToString(tile.box), ToString(slot.shape));
  }
  for (const int device : tile.devices) {
    if (device >= mesh.num_devices()) {
      return InvalidArgument("the box {} is for device {} of {}", ToString(tile.box), device,
                             mesh.num_devices());
    }
    const Box part = PartOf(slot.shape, slot.sharding, mesh, device);
    if (!part.Contains(tile.box)) {
      return InvalidArgument("the box {} is not in {}, which device {} holds", ToString(tile.box),
                             ToString(part), device);
    }
  }
  return absl::OkStatus();
}

bool HasElement(const Box& box) { return box.num_elements() > 0; }

}  // namespace

worker::TileList TileListToProto(const TileList& list) {
  worker::TileList proto;
  for (const TileMessage& message : list.messages) {
    worker::TileMessage& out = *proto.add_messages();
    for (const Tile& tile : message.tiles) {
      worker::Tile& out_tile = *out.add_tiles();
      out_tile.mutable_begin()->Assign(tile.box.begin.begin(), tile.box.begin.end());
      out_tile.mutable_end()->Assign(tile.box.end.begin(), tile.box.end.end());
      out_tile.mutable_devices()->Assign(tile.devices.begin(), tile.devices.end());
    }
  }
  return proto;
}

absl::StatusOr<TileList> TileListFromProto(const worker::TileList& proto) {
  TileList list;
  int num_tiles = 0;
  for (const worker::TileMessage& message : proto.messages()) {
    if (message.tiles_size() == 0) return InvalidArgument("a message without tiles");
    num_tiles += message.tiles_size();
    if (num_tiles > kMaxTiles) return InvalidArgument("more than {} tiles", kMaxTiles);
    TileMessage& out = list.messages.emplace_back();
    for (const worker::Tile& tile : message.tiles()) {
      ASSIGN_OR_RETURN(out.tiles.emplace_back(), TileFromProto(tile));
    }
  }
  if (list.messages.empty()) return InvalidArgument("no messages");
  return list;
}

absl::Status CheckSentTiles(const ArraySlot& slot, const Mesh& mesh, const TileList& list) {
  int64_t num_elements = 0;
  for (const TileMessage& message : list.messages) {
    for (const Tile& tile : message.tiles) {
      if (tile.devices.size() != 1) {
        return InvalidArgument("the box {} has {} senders", ToString(tile.box),
                               tile.devices.size());
      }
      RETURN_IF_ERROR(CheckTile(slot, mesh, tile));
      num_elements += tile.box.num_elements();
      if (num_elements > slot.shape.num_elements()) {
        return InvalidArgument("sends more than {} has", ToString(slot.shape));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckReceivedTiles(const ArraySlot& slot, const Mesh& mesh, const TileList& list) {
  std::map<int, std::vector<const Box*>> by_device;
  for (const TileMessage& message : list.messages) {
    for (const Tile& tile : message.tiles) {
      RETURN_IF_ERROR(CheckTile(slot, mesh, tile));
      for (const int device : tile.devices) {
        std::vector<const Box*>& boxes = by_device[device];
        if (!HasElement(tile.box)) continue;
        const auto twice = std::ranges::find_if(
            boxes, [&](const Box* other) { return Overlap(*other, tile.box).has_value(); });
        if (twice != boxes.end()) {
          return InvalidArgument("device {} gets elements of {} and {} twice", device,
                                 ToString(**twice), ToString(tile.box));
        }
        boxes.push_back(&tile.box);
      }
    }
  }
  for (int device = 0; device < mesh.num_devices(); ++device) {
    const Box part = PartOf(slot.shape, slot.sharding, mesh, device);
    int64_t num_elements = 0;
    for (const Box* box : by_device[device]) num_elements += box->num_elements();
    if (num_elements == part.num_elements()) continue;
    return InvalidArgument("device {} gets {} elements of the {} of {}", device, num_elements,
                           part.num_elements(), ToString(part));
  }
  return absl::OkStatus();
}

bool HaveSameBoxes(const TileList& a, const TileList& b) {
  return std::ranges::equal(
      a.messages, b.messages, [](const TileMessage& left, const TileMessage& right) {
        return std::ranges::equal(left.tiles, right.tiles, {}, &Tile::box, &Tile::box);
      });
}

}  // namespace minka
