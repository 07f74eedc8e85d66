#include "minka/runtime/worker/serve.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <climits>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "grpcpp/grpcpp.h"
#include "minka/base/parallel.h"
#include "minka/base/status.h"
#include "minka/runtime/worker/wire.h"
#include "minka/runtime/worker/worker.grpc.pb.h"
#include "minka/runtime/worker/worker_session.h"

#define RETURN_IF_REFUSED(status) \
  if (const grpc::Status refused = (status); !refused.ok()) return refused

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

  // None after Wake. False: no more will come.
  bool Pop(worker::Requests& requests) {
    requests.Clear();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !queue_.empty() || is_woken_ || is_closed_; });
    if (std::exchange(is_woken_, false)) return true;
    if (queue_.empty()) return false;
    requests = std::move(queue_.front());
    queue_.pop_front();
    bytes_ -= requests.ByteSizeLong();
    changed_.notify_all();
    return true;
  }

  // From any thread: Pop returns.
  void Wake() {
    const std::lock_guard lock(mutex_);
    is_woken_ = true;
    changed_.notify_all();
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
  bool is_woken_ = false, is_closed_ = false;
};

std::string_view ValueOf(const grpc::ServerContext& context, const char* key) {
  const auto found = context.client_metadata().find(key);
  if (found == context.client_metadata().end()) return {};
  return {found->second.data(), found->second.size()};
}

// HOST of HOST:PORT; gRPC takes a port of its own choice for one that is missing or none.
absl::StatusOr<std::string> HostOf(const std::string& listen) {
  const size_t colon = listen.rfind(':');
  const char* const end = listen.data() + listen.size();
  uint16_t port = 0;
  const bool is_port =
      colon != std::string::npos && std::from_chars(listen.data() + colon + 1, end, port) ==
                                        std::from_chars_result{end, std::errc()};
  if (is_port) return listen.substr(0, colon);
  return InvalidArgument(
      "'{}' is no address to listen on; HOST:PORT is, with a port from 0 to 65535", listen);
}

// The name of the network device that has the address; empty: a loopback device.
absl::StatusOr<std::string> InterfaceOf(const std::string& host) {
  if (host.empty() || host == "0.0.0.0" || host == "[::]") {
    return InvalidArgument(
        "listening on all addresses, arrays would come in by which? Give one address to --listen, "
        "or a network device to --interface");
  }
  const addrinfo hints{.ai_family = AF_INET};
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) {
    return InvalidArgument("'{}' is no IPv4 address", host);
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(found, &::freeaddrinfo);
  ifaddrs* devices = nullptr;
  if (::getifaddrs(&devices) != 0) return Unavailable("cannot list the network devices");
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(devices, &::freeifaddrs);
  for (const ifaddrs* device = devices; device != nullptr; device = device->ifa_next) {
    if (device->ifa_addr == nullptr || device->ifa_addr->sa_family != AF_INET) continue;
    const auto address = [](const sockaddr* of) {
      return reinterpret_cast<const sockaddr_in*>(of)->sin_addr.s_addr;
    };
    if (address(device->ifa_addr) != address(found->ai_addr)) continue;
    return (device->ifa_flags & IFF_LOOPBACK) != 0 ? std::string() : device->ifa_name;
  }
  return InvalidArgument("{} is not an IPv4 address of this machine", host);
}

class WorkerService : public worker::Worker::Service {
 public:
  WorkerService(const ServeOptions& options, std::string interface, ProgressPage& progress)
      : options_(options), interface_(std::move(interface)), progress_(progress) {}

  grpc::Status Serve(grpc::ServerContext* context, ServerStream* stream) override {
    RETURN_IF_REFUSED(CheckToken(*context));
    RETURN_IF_REFUSED(CheckVersion(*context));
    if (is_busy_.exchange(true)) {
      return {grpc::StatusCode::RESOURCE_EXHAUSTED, "the worker serves another driver"};
    }
    const absl::Status status = RunSession(*stream);
    is_busy_ = false;
    num_sessions_ += 1;
    return {static_cast<grpc::StatusCode>(status.code()), Message(status)};
  }

  grpc::Status About(grpc::ServerContext* context, const worker::AboutRequest*,
                     worker::AboutReply* about) override {
    RETURN_IF_REFUSED(CheckToken(*context));
    about->set_version(options_.version);
    std::array<char, HOST_NAME_MAX + 1> host = {};
    if (::gethostname(host.data(), host.size() - 1) == 0) about->set_host(host.data());
    about->set_cpus(NumHardwareThreads());
    const int64_t page = ::sysconf(_SC_PAGESIZE);
    about->set_memory_bytes(page * ::sysconf(_SC_PHYS_PAGES));
    about->set_available_memory_bytes(page * ::sysconf(_SC_AVPHYS_PAGES));
    about->set_is_busy(is_busy_);
    return grpc::Status::OK;
  }

  int num_sessions() const { return num_sessions_; }

 private:
  grpc::Status CheckToken(const grpc::ServerContext& context) const {
    if (IsToken(ValueOf(context, kTokenKey), options_.token)) return grpc::Status::OK;
    return {grpc::StatusCode::UNAUTHENTICATED, "wrong token"};
  }

  grpc::Status CheckVersion(const grpc::ServerContext& context) const {
    const std::string_view version = ValueOf(context, kVersionKey);
    if (version == options_.version) return grpc::Status::OK;
    return {grpc::StatusCode::FAILED_PRECONDITION,
            fmt::format("the worker is minka {}, its driver {}", options_.version, version)};
  }

  absl::Status RunSession(ServerStream& stream) {
    const auto queue = std::make_shared<RequestQueue>();
    WorkerSession session(
        interface_, progress_, options_.arenas,
        [&](const worker::Reply& reply) { return stream.Write(reply); },
        [queue] { queue->Wake(); });
    std::thread reader([&] {
      worker::Requests requests;
      while (stream.Read(&requests)) queue->Push(std::move(requests));
      // The driver is gone, or wants no more.
      queue->Close();
      session.Cancel();
    });
    absl::Status status;
    worker::Requests requests;
    progress_.Note(WorkerActivity::kWaiting);
    while (status.ok() && queue->Pop(requests)) {
      for (const worker::Request& request : requests.requests()) {
        status = session.Handle(request);
        if (!status.ok()) break;
      }
      if (status.ok()) status = session.AnswerFinishedSteps();
      if (!session.HasUnfinishedSteps()) progress_.Note(WorkerActivity::kWaiting);
    }
    if (!status.ok()) {
      worker::Reply reply;
      reply.mutable_failed()->set_code(static_cast<int>(status.code()));
      reply.mutable_failed()->set_message(Message(status));
      stream.Write(reply);
    }
    // A driver that is told of an error ends the stream.
    queue->Close();
    reader.join();
    return status;
  }

  const ServeOptions& options_;
  const std::string interface_;
  ProgressPage& progress_;
  std::atomic<bool> is_busy_ = false;
  std::atomic<int> num_sessions_ = 0;
};

}  // namespace

absl::Status ServeWorker(const ServeOptions& options, ProgressPage& progress,
                         const std::function<void(const std::string& address)>& on_listening,
                         const std::function<bool()>& is_over) {
  if (options.token.empty()) return InvalidArgument("a worker needs a token");
  ASSIGN_OR_RETURN(const std::string host, HostOf(options.listen));
  std::string interface = options.interface;
  if (interface.empty()) {
    ASSIGN_OR_RETURN(interface, InterfaceOf(host));
  }
  WorkerService service(options, std::move(interface), progress);
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
  // Also while neither says anything, however long that is.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    return Unavailable(
        "cannot listen on {}: the port is taken, or the address is not this machine's",
        options.listen);
  }
  on_listening(fmt::format("{}:{}", host, port));
  while (!is_over() && !(options.is_child && service.num_sessions() > 0)) {
    std::this_thread::sleep_for(kPoll);
  }
  server->Shutdown(std::chrono::system_clock::now());
  server->Wait();
  return absl::OkStatus();
}

}  // namespace minka
