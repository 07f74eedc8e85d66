#include "minka/runtime/transport/ucx_transport.h"

#include <cstring>
#include <utility>

#include "minka/base/hash.h"
#include "minka/base/status.h"
#include "minka/runtime/transport/ucx_progress_thread.h"

namespace minka {
namespace {

// The 64 bits of UCX's tag, from the highest: 12 of the job, 12 that number the sender, 40 of the
// caller. UCX matches by tag alone, whoever sent it.
constexpr int kSenderBits = 12;
static_assert(UcxTransport::kMaxPeers == 1 << kSenderBits);

ucp_tag_t UcxTag(uint64_t job_nonce, int sender, uint64_t tag) {
  // Hashed, because nonces may differ in a few bits only.
  const uint64_t job = StableHash({}, job_nonce) >> (kTagBits + kSenderBits);
  return ((job << kSenderBits | static_cast<uint64_t>(sender)) << kTagBits) | tag;
}

// Stands before UCX's own address.
struct AddressHeader {
  uint64_t job_nonce = 0;
  int64_t peer = 0;
};

std::string WithHeader(const AddressHeader& header, const std::string& worker_address) {
  std::string address(sizeof header, '\0');
  std::memcpy(address.data(), &header, sizeof header);
  return address + worker_address;
}

// UCX's own address in that of `peer`.
absl::StatusOr<std::string> WorkerAddress(const std::string& address, uint64_t job_nonce,
                                          size_t peer) {
  AddressHeader header;
  if (address.size() <= sizeof header) {
    return InvalidArgument("the address of peer {} is none: {} bytes", peer, address.size());
  }
  std::memcpy(&header, address.data(), sizeof header);
  if (header.job_nonce != job_nonce) {
    return InvalidArgument("the address of peer {} is one of another job", peer);
  }
  if (header.peer != static_cast<int64_t>(peer)) {
    return InvalidArgument("the address of peer {} is that of peer {}", peer, header.peer);
  }
  return address.substr(sizeof header);
}

class UcxPendingReceive final : public PendingReceive {
 public:
  UcxPendingReceive(std::shared_ptr<UcxProgressThread> thread, std::shared_ptr<UcxReceive> receive)
      : thread_(std::move(thread)), receive_(std::move(receive)) {}
  UcxPendingReceive(const UcxPendingReceive&) = delete;
  UcxPendingReceive& operator=(const UcxPendingReceive&) = delete;
  ~UcxPendingReceive() override {
    if (receive_->is_answered()) return;
    thread_->Drop(receive_);
    receive_->Wait().IgnoreError();
  }

  absl::Status Wait() override { return receive_->Wait(); }

 private:
  std::shared_ptr<UcxProgressThread> thread_;
  std::shared_ptr<UcxReceive> receive_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<UcxTransport>> UcxTransport::Create(
    const UcxTransportOptions& options) {
  if (options.num_peers < 1 || options.num_peers > kMaxPeers) {
    return InvalidArgument("a job of {} peers: 1 to {} are possible", options.num_peers, kMaxPeers);
  }
  RETURN_IF_ERROR(CheckPeerAndTag(options.peer, options.num_peers, /*tag=*/0));
  ASSIGN_OR_RETURN(auto thread, UcxProgressThread::Start(options.num_peers, options.interface));
  return std::unique_ptr<UcxTransport>(new UcxTransport(options, std::move(thread)));
}

UcxTransport::UcxTransport(const UcxTransportOptions& options,
                           std::shared_ptr<UcxProgressThread> thread)
    : options_(options),
      thread_(std::move(thread)),
      address_(WithHeader({.job_nonce = options.job_nonce, .peer = options.peer},
                          thread_->worker_address())) {}

UcxTransport::~UcxTransport() {
  thread_->Stop();
  thread_->Join();
}

absl::Status UcxTransport::Connect(const std::vector<std::string>& addresses) {
  if (addresses.size() != static_cast<size_t>(options_.num_peers)) {
    return InvalidArgument("{} addresses for {} peers", addresses.size(), options_.num_peers);
  }
  if (is_connected_) return FailedPrecondition("connected already");
  std::vector<std::string> worker_addresses;
  for (size_t peer = 0; peer < addresses.size(); ++peer) {
    ASSIGN_OR_RETURN(std::string worker_address,
                     WorkerAddress(addresses[peer], options_.job_nonce, peer));
    worker_addresses.push_back(std::move(worker_address));
  }
  RETURN_IF_ERROR(thread_->Connect(std::move(worker_addresses)));
  is_connected_ = true;
  return absl::OkStatus();
}

absl::Status UcxTransport::Send(int peer, uint64_t tag, std::span<const char> bytes,
                                std::shared_ptr<const void> owner) {
  RETURN_IF_ERROR(CheckPeerAndTag(peer, options_.num_peers, tag));
  if (!is_connected_) return FailedPrecondition("not connected yet");
  return thread_->Send({.peer = peer,
                        .ucx_tag = UcxTag(options_.job_nonce, options_.peer, tag),
                        .bytes = bytes,
                        .owner = std::move(owner)});
}

absl::StatusOr<std::unique_ptr<PendingReceive>> UcxTransport::Receive(int peer, uint64_t tag,
                                                                      std::span<char> destination) {
  RETURN_IF_ERROR(CheckPeerAndTag(peer, options_.num_peers, tag));
  auto receive =
      std::make_shared<UcxReceive>(peer, tag, UcxTag(options_.job_nonce, peer, tag), destination);
  RETURN_IF_ERROR(thread_->Receive(receive));
  return std::make_unique<UcxPendingReceive>(thread_, std::move(receive));
}

void UcxTransport::Cancel() { thread_->Stop(); }

}  // namespace minka
