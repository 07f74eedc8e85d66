// Arrays of a mesh on their way to another one, tile by tile.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "minka/program/tile_messages.h"
#include "minka/runtime/mesh/mesh_array.h"
#include "minka/runtime/pipeline/block_pool.h"
#include "minka/runtime/pipeline/mesh_channels.h"
#include "minka/runtime/pjrt/client.h"

namespace minka {

// A tile list with all that a step needs to know of it.
class TilePlayer {
 public:
  // The list is that of one end of a channel, the array lies there as the layout says.
  TilePlayer(ArrayLayout layout, const TileList& list);

  // How arrays are sent.
  enum class Sending {
    kInPlace,  // a tile that is one run of a device's memory goes out of it
    kCopied,   // because a launch is going to take the memory
  };
  absl::Status Send(const MeshArray& array, Sending sending, int channel, BlockPool& pool,
                    MeshChannels& channels) const;

  // An array that is expected.
  struct Incoming {
    std::vector<std::shared_ptr<char>> parts;   // by device
    std::vector<std::shared_ptr<char>> packed;  // by message; null: it goes to its place
  };
  absl::StatusOr<Incoming> Expect(int channel, BlockPool& pool, MeshChannels& channels) const;
  // Waits for it and lets every device have its part.
  absl::StatusOr<MeshArray> Receive(Incoming incoming, int channel, const pjrt::Client& client,
                                    MeshChannels& channels) const;

 private:
  struct PlayedMessage {
    std::vector<Tile> tiles;
    size_t num_bytes = 0;
    // Where it lies in the part of its (first) device, if it is one tile and one run of memory.
    bool is_in_place = false;
    size_t offset = 0;
  };

  // Brings what came in to all devices that want it.
  void Spread(const PlayedMessage& message, const Incoming& incoming, const char* packed) const;

  ArrayLayout layout_;
  int64_t element_bytes_ = 0;
  Shape local_shape_;
  size_t part_bytes_ = 0;
  std::vector<Box> parts_;  // by device
  std::vector<PlayedMessage> messages_;
};

}  // namespace minka
