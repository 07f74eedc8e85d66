// Moves arrays between the processes of a job, past the driver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace minka {

// A tag is less than 2 to the power of this: transports keep the other bits to tell senders apart.
inline constexpr int kTagBits = 40;

// Bytes that are on their way to this process. Dropping it before they are here ends its interest
// in them and waits until nothing is written to the destination any more.
class PendingReceive {
 public:
  virtual ~PendingReceive() = default;
  // Blocks until the bytes are here; the same answer at every call. Cancelled after
  // Transport::Cancel; InvalidArgument where the peer sent another number of bytes; Unavailable
  // where the connection broke. After an error the destination holds anything.
  virtual absl::Status Wait() = 0;

 protected:
  PendingReceive() = default;
  PendingReceive(const PendingReceive&) = default;
  PendingReceive& operator=(const PendingReceive&) = default;
};

// One process's end. Peers are numbered 0.. in the order that all processes of the job agree on;
// a process may send to itself. Messages between two peers are matched by tag alone, in whatever
// order they are sent and expected; of equal tags the first sent meets the first expected.
// Thread-safe.
//
// That a peer dies may be noticed here late or never: who started the processes watches them and
// calls Cancel.
// Destroying an end cancels it: what others have not received by then may never reach them.
class Transport {
 public:
  virtual ~Transport() = default;

  // Returns at once, whether or not the peer expects the message; `owner` keeps the bytes alive and
  // is let go once they are out, on any thread, also within a call of this class. InvalidArgument
  // for a peer or a tag out of range.
  virtual absl::Status Send(int peer, uint64_t tag, std::span<const char> bytes,
                            std::shared_ptr<const void> owner) = 0;
  // Returns at once; `destination` must live until the answer is waited for or dropped. What it
  // returns may outlive the transport. InvalidArgument as for Send.
  virtual absl::StatusOr<std::unique_ptr<PendingReceive>> Receive(int peer, uint64_t tag,
                                                                  std::span<char> destination) = 0;
  // Ends what waits, and all that comes after, with Cancelled. Lets go of all bytes that are being
  // sent: a peer that is just receiving them gets others or an error, so cancel all ends of a job.
  // May be called at any time, also twice.
  virtual void Cancel() = 0;

 protected:
  Transport() = default;
  Transport(const Transport&) = default;
  Transport& operator=(const Transport&) = default;
};

// What all transports answer alike.
absl::Status CheckPeerAndTag(int peer, int num_peers, uint64_t tag);
absl::Status WrongSizeError(int peer, uint64_t tag, size_t expected_bytes, size_t sent_bytes);
absl::Status TransportCancelledError();

}  // namespace minka
