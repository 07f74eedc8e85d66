#include "minka/runtime/transport/transport.h"

#include "minka/base/status.h"

namespace minka {

absl::Status CheckPeerAndTag(int peer, int num_peers, uint64_t tag) {
  if (peer < 0 || peer >= num_peers) {
    return InvalidArgument("no peer {}: the job has {}", peer, num_peers);
  }
  if (tag >> kTagBits != 0) {
    return InvalidArgument("tag {} has more than {} bits", tag, kTagBits);
  }
  return absl::OkStatus();
}

absl::Status WrongSizeError(int peer, uint64_t tag, size_t expected_bytes, size_t sent_bytes) {
  return InvalidArgument("peer {} sent {} bytes with tag {}, {} were expected", peer, sent_bytes,
                         tag, expected_bytes);
}

absl::Status TransportCancelledError() {
  return MakeError(absl::StatusCode::kCancelled, "the transport was cancelled");
}

}  // namespace minka
