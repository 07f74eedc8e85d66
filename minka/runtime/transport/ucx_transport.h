// Moves arrays between processes by UCX: shared memory within a host, TCP or RDMA between hosts.
//
//   ASSIGN_OR_RETURN(const auto transport, UcxTransport::Create({.peer = 1, .num_peers = 2}));
//   ... tells the others transport->address() and learns theirs ...
//   RETURN_IF_ERROR(transport->Connect(addresses));
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "minka/runtime/transport/transport.h"

namespace minka {

class UcxProgressThread;

struct UcxTransportOptions {
  int peer = 0;  // this process
  int num_peers = 1;
  // The same in all processes of a job, drawn at random for it: processes of other jobs are
  // refused.
  uint64_t job_nonce = 0;
  // The network device as UCX calls it, "eth0" or "mlx5_0:1"; empty: "lo". No other has an open
  // port; peers of the same host share memory in any case.
  std::string interface;
};

// UCX_TLS and UCX_NET_DEVICES in the environment go before what `interface` means, and UCX reads
// its other variables, too. A peer is lost once UCX finds that it is dead or cannot be reached, in
// the middle of a message at once: receives from it end with Unavailable then.
class UcxTransport final : public Transport {
 public:
  // More senders than this have no room in the tags of UCX.
  static constexpr int kMaxPeers = 1 << 12;

  // InvalidArgument for numbers out of range; NotFound where there is no such device.
  static absl::StatusOr<std::unique_ptr<UcxTransport>> Create(const UcxTransportOptions& options);
  UcxTransport(const UcxTransport&) = delete;
  UcxTransport& operator=(const UcxTransport&) = delete;
  // Waits for no peer.
  ~UcxTransport() override;

  // Bytes by which the other processes connect.
  const std::string& address() const { return address_; }
  // Takes the addresses of all peers, this one's too, in their order; waits for none of them. To be
  // called once; Receive may come before, Send only after. InvalidArgument for an address of
  // another job or peer.
  absl::Status Connect(const std::vector<std::string>& addresses);

  absl::Status Send(int peer, uint64_t tag, std::span<const char> bytes,
                    std::shared_ptr<const void> owner) override;
  absl::StatusOr<std::unique_ptr<PendingReceive>> Receive(int peer, uint64_t tag,
                                                          std::span<char> destination) override;
  void Cancel() override;

 private:
  UcxTransport(const UcxTransportOptions& options, std::shared_ptr<UcxProgressThread> thread);

  UcxTransportOptions options_;
  std::shared_ptr<UcxProgressThread> thread_;  // also of the pending receives
  std::string address_;
  std::atomic<bool> is_connected_ = false;
};

}  // namespace minka
