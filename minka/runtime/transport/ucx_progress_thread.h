// The thread that drives UCX. Others hand it what to do, or do it at once where it does not call
// UCX just then: a thread that has to be woken for a send may wait for the processor until the
// program that comes after the send has run.
#pragma once

#include <ucp/api/ucp.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace minka {

struct UcxSend {
  int peer = 0;
  ucp_tag_t ucx_tag = 0;
  std::span<const char> bytes;
  std::shared_ptr<const void> owner;
};

// A message that is expected. Thread-safe.
class UcxReceive {
 public:
  UcxReceive(int peer, uint64_t tag, ucp_tag_t ucx_tag, std::span<char> destination)
      : peer_(peer), tag_(tag), ucx_tag_(ucx_tag), destination_(destination) {}

  // The answer, once UCX writes no more to the destination.
  absl::Status Wait();
  bool is_answered();

 private:
  friend class UcxProgressThread;

  void Answer(const absl::Status& answer);
  absl::Status AnswerOf(ucs_status_t status, size_t sent_bytes) const;

  const int peer_;
  const uint64_t tag_;
  const ucp_tag_t ucx_tag_;
  const std::span<char> destination_;
  void* request_ = nullptr;  // UCX's; guarded by the thread's ucx_mutex_

  std::mutex mutex_;
  std::condition_variable answered_;
  std::optional<absl::Status> answer_;  // guarded by mutex_
};

// Thread-safe. Who starts one calls Stop and Join before the last reference goes.
class UcxProgressThread {
 public:
  // `interface` and errors as UcxTransport::Create says.
  static absl::StatusOr<std::shared_ptr<UcxProgressThread>> Start(int num_peers,
                                                                  std::string interface);
  UcxProgressThread(const UcxProgressThread&) = delete;
  UcxProgressThread& operator=(const UcxProgressThread&) = delete;
  ~UcxProgressThread();

  // Of UCX's worker, for Connect of others.
  const std::string& worker_address() const { return worker_address_; }

  // By peer, once; sends come after it.
  absl::Status Connect(std::vector<std::string> worker_addresses);
  absl::Status Send(UcxSend send);
  absl::Status Receive(std::shared_ptr<UcxReceive> receive);
  // Answers it soon, with Cancelled if no message has been matched with it yet.
  void Drop(std::shared_ptr<UcxReceive> receive);

  // Answers all that is expected with Cancelled, refuses all that comes, and ends the thread.
  void Stop();
  void Join();

 private:
  struct ConnectCommand {
    std::vector<std::string> worker_addresses;
    std::promise<absl::Status> done;
  };
  struct DropCommand {
    std::shared_ptr<UcxReceive> receive;
  };
  enum class Commands { kNone, kRun, kStopped };
  using Command = std::variant<ConnectCommand, UcxSend, std::shared_ptr<UcxReceive>, DropCommand>;

  // What UCX holds pointers to.
  struct Endpoint {
    UcxProgressThread* thread = nullptr;
    int peer = 0;
    ucp_ep_h handle = nullptr;
    ucs_status_t lost = UCS_OK;  // or why
  };
  struct InFlightSend {
    UcxProgressThread* thread = nullptr;
    int peer = 0;
    std::shared_ptr<const void> owner;
    std::list<InFlightSend>::iterator self;
  };
  struct InFlightReceive {
    UcxProgressThread* thread = nullptr;
    std::shared_ptr<UcxReceive> receive;
    std::list<InFlightReceive>::iterator self;
  };

  explicit UcxProgressThread(int num_peers) : num_peers_(num_peers) {}

  absl::Status Submit(Command command);
  // Called with mutex_ held.
  void Wake();
  // Lets go of what has been sent, too: whoever owned it may do anything then, so not while locked.
  void Unlock(std::unique_lock<std::mutex> ucx);

  // The thread's alone.
  void Run(const std::string& interface, std::promise<absl::Status> started);
  absl::Status SetUp(const std::string& interface);
  void TearDown();
  void Sleep();

  // The rest is called with ucx_mutex_ held.

  // Gives connections that are just being made time to be.
  void FinishConnecting();
  void CloseEndpoints();
  void CancelReceives(const std::function<bool(const UcxReceive& receive)>& is_meant);
  // Ends what is expected of them; false: there are no new ones.
  bool GiveUpLostPeers();
  bool IsLost(int peer) const;
  void Lose(int peer, ucs_status_t status);
  Commands RunCommands();
  void Execute(ConnectCommand& command);
  void Execute(UcxSend& send);
  void Execute(std::shared_ptr<UcxReceive>& receive);
  void Execute(DropCommand& command);
  void FinishSend(InFlightSend& send, ucs_status_t status);
  void FinishReceive(InFlightReceive& receive, ucs_status_t status, size_t sent_bytes);

  const int num_peers_;
  std::thread thread_;
  // Set before Start returns.
  std::string worker_address_;
  int worker_fd_ = -1;
  int wake_fd_ = -1;  // an eventfd

  // Once the thread is started whoever calls UCX holds it, and takes it before mutex_. It guards
  // what follows.
  std::mutex ucx_mutex_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  std::vector<Endpoint> endpoints_;                                 // by peer; empty before Connect
  std::optional<std::chrono::steady_clock::time_point> connected_;  // when it was asked for
  bool has_newly_lost_peers_ = false;
  std::list<InFlightSend> sends_;
  std::list<InFlightReceive> receives_;
  std::vector<std::shared_ptr<const void>> to_let_go_;  // owners of what has been sent
  bool is_progress_due_ = false;                        // since commands were run

  std::mutex mutex_;
  std::vector<Command> commands_;       // guarded by mutex_
  bool is_stopped_ = false;             // guarded by mutex_
  bool is_asleep_ = false;              // guarded by mutex_
  std::atomic<bool> has_news_ = false;  // commands_ or is_stopped_ are to be looked at
};

}  // namespace minka
