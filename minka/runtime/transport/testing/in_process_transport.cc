#include "minka/runtime/transport/testing/in_process_transport.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "minka/base/status.h"

namespace minka {
namespace {

struct Message {
  std::span<const char> bytes;
  std::shared_ptr<const void> owner;
};

struct Expected {
  std::optional<Message> message;      // sent, not copied yet
  std::optional<absl::Status> answer;  // of all calls of Wait
};

struct ChannelKey {
  int sender = 0;
  uint64_t tag = 0;
  auto operator<=>(const ChannelKey&) const = default;
};

// Messages of one sender with one tag. At most one of the queues is not empty.
struct Channel {
  std::deque<Message> sent;
  std::deque<std::shared_ptr<Expected>> expected;
};

// What is on its way to one peer. Thread-safe.
class Mailbox {
 public:
  void Put(const ChannelKey& key, Message message);
  absl::StatusOr<std::shared_ptr<Expected>> Expect(const ChannelKey& key);
  // Waits until there is an answer or a message, and takes that.
  std::optional<Message> Take(Expected& expected);
  // The answer, which becomes `answer` if there was none.
  absl::Status Answer(Expected& expected, const absl::Status& answer);
  void Withdraw(const ChannelKey& key, const std::shared_ptr<Expected>& expected);
  void DropMessagesOf(int sender);
  void Cancel();
  bool is_cancelled() const;

 private:
  void EraseIfEmpty(const ChannelKey& key);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool is_cancelled_ = false;               // guarded by mutex_, like all Expected
  std::map<ChannelKey, Channel> channels_;  // guarded by mutex_; none is empty
};

void Mailbox::Put(const ChannelKey& key, Message message) {
  const std::lock_guard lock(mutex_);
  if (is_cancelled_) return;
  Channel& channel = channels_[key];
  if (channel.expected.empty()) {
    channel.sent.push_back(std::move(message));
    return;
  }
  channel.expected.front()->message = std::move(message);
  channel.expected.pop_front();
  EraseIfEmpty(key);
  changed_.notify_all();
}

absl::StatusOr<std::shared_ptr<Expected>> Mailbox::Expect(const ChannelKey& key) {
  auto expected = std::make_shared<Expected>();
  const std::lock_guard lock(mutex_);
  if (is_cancelled_) return TransportCancelledError();
  Channel& channel = channels_[key];
  if (channel.sent.empty()) {
    channel.expected.push_back(expected);
    return expected;
  }
  expected->message = std::move(channel.sent.front());
  channel.sent.pop_front();
  EraseIfEmpty(key);
  return expected;
}

std::optional<Message> Mailbox::Take(Expected& expected) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return expected.answer || expected.message; });
  return std::exchange(expected.message, std::nullopt);
}

absl::Status Mailbox::Answer(Expected& expected, const absl::Status& answer) {
  const std::lock_guard lock(mutex_);
  if (!expected.answer) expected.answer = answer;
  changed_.notify_all();
  return *expected.answer;
}

void Mailbox::Withdraw(const ChannelKey& key, const std::shared_ptr<Expected>& expected) {
  const std::lock_guard lock(mutex_);
  const auto channel = channels_.find(key);
  if (channel == channels_.end()) return;
  std::erase(channel->second.expected, expected);
  EraseIfEmpty(key);
}

void Mailbox::DropMessagesOf(int sender) {
  std::deque<Message> dropped;  // before the lock, because owners are let go without it
  const std::lock_guard lock(mutex_);
  for (auto& [key, channel] : channels_) {
    if (key.sender != sender) continue;
    std::ranges::move(channel.sent, std::back_inserter(dropped));
    channel.sent.clear();
  }
  std::erase_if(channels_, [](const auto& entry) {
    return entry.second.sent.empty() && entry.second.expected.empty();
  });
}

void Mailbox::Cancel() {
  std::map<ChannelKey, Channel> channels;  // before the lock, because owners are let go without it
  const std::lock_guard lock(mutex_);
  is_cancelled_ = true;
  channels.swap(channels_);
  for (auto& [key, channel] : channels) {
    for (const auto& expected : channel.expected) expected->answer = TransportCancelledError();
  }
  changed_.notify_all();
}

bool Mailbox::is_cancelled() const {
  const std::lock_guard lock(mutex_);
  return is_cancelled_;
}

void Mailbox::EraseIfEmpty(const ChannelKey& key) {
  const auto channel = channels_.find(key);
  if (channel->second.sent.empty() && channel->second.expected.empty()) channels_.erase(channel);
}

class InProcessReceive final : public PendingReceive {
 public:
  InProcessReceive(std::shared_ptr<Mailbox> mailbox, const ChannelKey& key,
                   std::shared_ptr<Expected> expected, std::span<char> destination)
      : mailbox_(std::move(mailbox)),
        key_(key),
        expected_(std::move(expected)),
        destination_(destination) {}
  InProcessReceive(const InProcessReceive&) = delete;
  InProcessReceive& operator=(const InProcessReceive&) = delete;
  ~InProcessReceive() override { mailbox_->Withdraw(key_, expected_); }

  absl::Status Wait() override {
    const std::optional<Message> message = mailbox_->Take(*expected_);
    return mailbox_->Answer(*expected_, message ? Copy(message->bytes) : absl::OkStatus());
  }

 private:
  absl::Status Copy(std::span<const char> bytes) const {
    if (bytes.size() != destination_.size()) {
      return WrongSizeError(key_.sender, key_.tag, destination_.size(), bytes.size());
    }
    // An empty span may have a null pointer, which memcpy does not take.
    if (!bytes.empty()) std::memcpy(destination_.data(), bytes.data(), bytes.size());
    return absl::OkStatus();
  }

  std::shared_ptr<Mailbox> mailbox_;
  ChannelKey key_;
  std::shared_ptr<Expected> expected_;
  std::span<char> destination_;
};

class InProcessTransport final : public Transport {
 public:
  InProcessTransport(int self, std::vector<std::shared_ptr<Mailbox>> mailboxes)
      : self_(self), mailboxes_(std::move(mailboxes)) {}
  InProcessTransport(const InProcessTransport&) = delete;
  InProcessTransport& operator=(const InProcessTransport&) = delete;
  ~InProcessTransport() override { CancelSelf(); }

  absl::Status Send(int peer, uint64_t tag, std::span<const char> bytes,
                    std::shared_ptr<const void> owner) override {
    RETURN_IF_ERROR(CheckPeerAndTag(peer, num_peers(), tag));
    if (mailboxes_[self_]->is_cancelled()) return TransportCancelledError();
    mailboxes_[peer]->Put({.sender = self_, .tag = tag},
                          {.bytes = bytes, .owner = std::move(owner)});
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<PendingReceive>> Receive(int peer, uint64_t tag,
                                                          std::span<char> destination) override {
    RETURN_IF_ERROR(CheckPeerAndTag(peer, num_peers(), tag));
    const ChannelKey key = {.sender = peer, .tag = tag};
    ASSIGN_OR_RETURN(auto expected, mailboxes_[self_]->Expect(key));
    return std::make_unique<InProcessReceive>(mailboxes_[self_], key, std::move(expected),
                                              destination);
  }

  void Cancel() override { CancelSelf(); }

 private:
  int num_peers() const { return static_cast<int>(mailboxes_.size()); }

  void CancelSelf() {
    mailboxes_[self_]->Cancel();
    for (const auto& mailbox : mailboxes_) mailbox->DropMessagesOf(self_);
  }

  int self_;
  std::vector<std::shared_ptr<Mailbox>> mailboxes_;  // by peer
};

}  // namespace

std::vector<std::unique_ptr<Transport>> MakeInProcessTransports(int num_peers) {
  std::vector<std::shared_ptr<Mailbox>> mailboxes;
  for (int peer = 0; peer < num_peers; ++peer) mailboxes.push_back(std::make_shared<Mailbox>());
  std::vector<std::unique_ptr<Transport>> transports;
  for (int peer = 0; peer < num_peers; ++peer) {
    transports.push_back(std::make_unique<InProcessTransport>(peer, mailboxes));
  }
  return transports;
}

}  // namespace minka
