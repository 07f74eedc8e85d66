#include "minka/runtime/pipeline/tile_transfer.h"

#include <optional>
#include <span>
#include <utility>

#include "minka/base/status.h"
#include "minka/sharding/held_parts.h"

namespace minka {

TilePlayer::TilePlayer(ArrayLayout layout, const TileList& list)
    : layout_(std::move(layout)),
      element_bytes_(ElementBytes(layout_.shape.type)),
      local_shape_(LocalShape(layout_.shape, layout_.sharding, layout_.mesh)),
      part_bytes_(static_cast<size_t>(local_shape_.num_bytes())) {
  for (int64_t device = 0; device < layout_.mesh.num_devices(); ++device) {
    parts_.push_back(PartOf(layout_.shape, layout_.sharding, layout_.mesh, device));
  }
  for (const TileMessage& message : list.messages) {
    PlayedMessage& played = messages_.emplace_back();
    played.tiles = message.tiles;
    played.num_bytes = static_cast<size_t>(BytesOf(message, layout_.shape.type));
    if (message.tiles.size() > 1) continue;
    const Tile& tile = message.tiles.front();
    const Box& part = parts_[tile.devices.front()];
    played.is_in_place = IsOneRun(tile.box, part);
    played.offset = static_cast<size_t>(OffsetIn(part, tile.box) * element_bytes_);
  }
}

absl::Status TilePlayer::Send(const MeshArray& array, Sending sending, int channel, BlockPool& pool,
                              MeshChannels& channels) const {
  std::vector<std::optional<pjrt::LentContents>> lent(parts_.size());  // by device
  for (const PlayedMessage& message : messages_) {
    for (const Tile& tile : message.tiles) {
      const int device = tile.devices.front();
      if (lent[device]) continue;
      ASSIGN_OR_RETURN(lent[device], array.parts[device].Lend());
    }
    if (message.is_in_place && sending == Sending::kInPlace) {
      const pjrt::LentContents& contents = *lent[message.tiles.front().devices.front()];
      RETURN_IF_ERROR(channels.Send(
          channel, contents.bytes.subspan(message.offset, message.num_bytes), contents.owner));
      continue;
    }
    std::shared_ptr<char> packed = pool.Take(message.num_bytes);
    char* to = packed.get();
    for (const Tile& tile : message.tiles) {
      const int device = tile.devices.front();
      CopyBox(tile.box, element_bytes_, {lent[device]->bytes.data(), &parts_[device]},
              {to, &tile.box});
      to += tile.box.num_elements() * element_bytes_;
    }
    const std::span<const char> bytes(packed.get(), message.num_bytes);
    RETURN_IF_ERROR(channels.Send(channel, bytes, std::move(packed)));
  }
  return absl::OkStatus();
}

absl::StatusOr<TilePlayer::Incoming> TilePlayer::Expect(int channel, BlockPool& pool,
                                                        MeshChannels& channels) const {
  Incoming incoming;
  for (size_t device = 0; device < parts_.size(); ++device) {
    incoming.parts.push_back(pool.Take(part_bytes_));
  }
  for (const PlayedMessage& message : messages_) {
    std::shared_ptr<char>& packed = incoming.packed.emplace_back();
    char* destination = nullptr;
    if (message.is_in_place) {
      destination = incoming.parts[message.tiles.front().devices.front()].get() + message.offset;
    } else {
      packed = pool.Take(message.num_bytes);
      destination = packed.get();
    }
    RETURN_IF_ERROR(channels.Expect(channel, {destination, message.num_bytes}));
  }
  return incoming;
}

absl::StatusOr<MeshArray> TilePlayer::Receive(Incoming incoming, int channel,
                                              const pjrt::Client& client,
                                              MeshChannels& channels) const {
  for (size_t i = 0; i < messages_.size(); ++i) {
    RETURN_IF_ERROR(channels.Wait(channel));
    Spread(messages_[i], incoming, incoming.packed[i].get());
  }
  MeshArray array;
  for (size_t device = 0; device < parts_.size(); ++device) {
    ASSIGN_OR_RETURN(pjrt::Buffer buffer,
                     client.Adopt(layout_.first_device + static_cast<int>(device), local_shape_,
                                  std::move(incoming.parts[device])));
    array.parts.push_back(std::move(buffer));
  }
  return array;
}

void TilePlayer::Spread(const PlayedMessage& message, const Incoming& incoming,
                        const char* packed) const {
  const char* from = packed;
  for (const Tile& tile : message.tiles) {
    const int receiver = tile.devices.front();
    for (const int device : tile.devices) {
      const BoxMemory<char> to = {incoming.parts[device].get(), &parts_[device]};
      if (packed != nullptr) {
        CopyBox(tile.box, element_bytes_, {from, &tile.box}, to);
      } else if (device != receiver) {
        CopyBox(tile.box, element_bytes_, {incoming.parts[receiver].get(), &parts_[receiver]}, to);
      }
    }
    if (packed != nullptr) from += tile.box.num_elements() * element_bytes_;
  }
}

}  // namespace minka
