// The ways of a mesh's arrays to and from other meshes.
#pragma once

#include <memory>
#include <span>

#include "absl/status/status.h"

namespace minka {

// Messages of a channel arrive in the order in which they are sent, and are expected in it.
class MeshChannels {
 public:
  virtual ~MeshChannels() = default;
  // Goes on at once, whether or not it is received; `owner` keeps the bytes until they are out and
  // is let go on any thread.
  virtual absl::Status Send(int channel, std::span<const char> bytes,
                            std::shared_ptr<const void> owner) = 0;
  // The channel's next message goes there, which must live until it is waited for or this is
  // destroyed.
  virtual absl::Status Expect(int channel, std::span<char> destination) = 0;
  // Until the first message of the channel that was expected and not waited for is there.
  virtual absl::Status Wait(int channel) = 0;

 protected:
  MeshChannels() = default;
  MeshChannels(const MeshChannels&) = default;
  MeshChannels& operator=(const MeshChannels&) = default;
};

}  // namespace minka
