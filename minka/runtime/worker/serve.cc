#include "minka/runtime/worker/serve.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>

#include "grpcpp/grpcpp.h"
#include "minka/base/status.h"
#include "minka/runtime/worker/wire.h"
#include "minka/runtime/worker/worker.grpc.pb.h"
#include "minka/runtime/worker/worker_session.h"

namespace minka {
namespace {

// So many bytes of requests wait at most; then the driver does.
constexpr size_t kQueuedBytes = size_t{64} << 20;
// A driver may ask that often whether the worker lives.
constexpr int kPingIntervalMs = 500;
// A driver on another machine that does not answer for so long is gone.
constexpr int kDriverKeepaliveMs = 10'000, kDriverTimeoutMs = 20'000;
constexpr auto kPoll = std::chrono::milliseconds(100);

using ServerStream = grpc::ServerReaderWriter<worker::Reply, worker::Requests>;

// Takes as long whatever the difference is.
bool IsToken(std::string_view given, std::string_view token) {
  size_t difference = given.size() ^ token.size();
  for (size_t i = 0; i < given.size(); ++i) {
    difference |= static_cast<unsigned char>(given[i] ^ token[i % token.size()]);
  }
  return difference == 0;
}

// Requests between the thread that reads and the one that carries them out.
class RequestQueue {
 public:
  // Waits while there is much to do already.
  void Push(worker::Requests requests) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return bytes_ < kQueuedBytes || is_closed_; });
    bytes_ += requests.ByteSizeLong();
    queue_.push_back(std::move(requests));
    changed_.notify_all();
  }

  // False: no more will come.
  bool Pop(worker::Requests& requests) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !queue_.empty() || is_closed_; });
    if (queue_.empty()) return false;
    requests = std::move(queue_.front());
    queue_.pop_front();
    bytes_ -= requests.ByteSizeLong();
    changed_.notify_all();
    return true;
  }

  void Close() {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<worker::Requests> queue_;
  size_t bytes_ = 0;
  bool is_closed_ = false;
};

class WorkerService : public worker::Worker::Service {
 public:
  WorkerService(const WorkerOptions& options, ProgressPage& progress)
      : options_(options), progress_(progress) {}

  grpc::Status Serve(grpc::ServerContext* context, ServerStream* stream) override {
    if (const grpc::Status refused = Admit(*context); !refused.ok()) return refused;
    if (is_busy_.exchange(true)) {
      return {grpc::StatusCode::RESOURCE_EXHAUSTED, "the worker serves another driver"};
    }
    const absl::Status status = RunSession(*stream);
    is_busy_ = false;
    num_sessions_ += 1;
    return {static_cast<grpc::StatusCode>(status.code()), Message(status)};
  }

  int num_sessions() const { return num_sessions_; }

 private:
  grpc::Status Admit(const grpc::ServerContext& context) const {
    const auto value = [&](const char* key) {
      const auto found = context.client_metadata().find(key);
      return found == context.client_metadata().end()
                 ? std::string_view()
                 : std::string_view(found->second.data(), found->second.size());
    };
    if (!IsToken(value(kTokenKey), options_.token)) {
      return {grpc::StatusCode::UNAUTHENTICATED, "wrong token"};
    }
    if (value(kVersionKey) != options_.version) {
      return {grpc::StatusCode::FAILED_PRECONDITION,
              fmt::format("the worker is minka {}, its driver {}", options_.version,
                          value(kVersionKey))};
    }
    return grpc::Status::OK;
  }

  absl::Status RunSession(ServerStream& stream) {
    WorkerSession session(progress_,
                          [&](const worker::Reply& reply) { return stream.Write(reply); });
    RequestQueue queue;
    std::thread reader([&] {
      worker::Requests requests;
      while (stream.Read(&requests)) queue.Push(std::move(requests));
      // The driver is gone, or wants no more.
      queue.Close();
      session.Cancel();
    });
    absl::Status status;
    worker::Requests requests;
    progress_.Note(WorkerActivity::kWaiting);
    while (status.ok() && queue.Pop(requests)) {
      for (const worker::Request& request : requests.requests()) {
        status = session.Handle(request);
        if (!status.ok()) break;
      }
      progress_.Note(WorkerActivity::kWaiting);
    }
    if (!status.ok()) {
      worker::Reply reply;
      reply.mutable_failed()->set_code(static_cast<int>(status.code()));
      reply.mutable_failed()->set_message(Message(status));
      stream.Write(reply);
    }
    // A driver that is told of an error ends the stream.
    queue.Close();
    reader.join();
    return status;
  }

  const WorkerOptions& options_;
  ProgressPage& progress_;
  std::atomic<bool> is_busy_ = false;
  std::atomic<int> num_sessions_ = 0;
};

}  // namespace

absl::Status ServeWorker(const WorkerOptions& options, ProgressPage& progress,
                         const std::function<void(const std::string& address)>& on_listening,
                         const std::function<bool()>& is_over) {
  if (options.token.empty()) return InvalidArgument("a worker needs a token");
  WorkerService service(options, progress);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(options.listen, grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  builder.SetMaxReceiveMessageSize(-1);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kPingIntervalMs);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kDriverKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kDriverTimeoutMs);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    return Unavailable(
        "cannot listen on {}: the port is taken, or the address is not this machine's",
        options.listen);
  }
  on_listening(options.listen.substr(0, options.listen.rfind(':') + 1) + std::to_string(port));
  while (!is_over() && !(options.is_child && service.num_sessions() > 0)) {
    std::this_thread::sleep_for(kPoll);
  }
  server->Shutdown(std::chrono::system_clock::now());
  server->Wait();
  return absl::OkStatus();
}

}  // namespace minka
