#include "minka/runtime/transport/ucx_progress_thread.h"

#include <dlfcn.h>
#include <link.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <ucs/config/global_opts.h>
#include <ucs/debug/log_def.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <string_view>
#include <utility>

#include "fmt/format.h"
#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/runtime/transport/transport.h"

namespace minka {
namespace {

// How long to look for news before going to sleep: what comes next often comes soon, and to be
// woken takes longer.
constexpr auto kPollTime = std::chrono::microseconds(20);

// What waits is looked at again after so long: over shared memory UCX wakes by sockets that do not
// reach from one network namespace into another.
constexpr int kMostSleepMs = 5;

// UCX 1.13 aborts (an assertion of ucp_request_send_state_ff) where a worker is destroyed whose
// first messages over TCP wait for the connection still. It takes less than a millisecond within a
// host.
constexpr auto kTimeToConnect = std::chrono::milliseconds(100);

// To close endpoints by force takes a few rounds of progress, which wait for nobody; without them
// UCX warns.
constexpr int kMaxClosingRounds = 100;

constexpr ucp_tag_t kWholeTag = ~ucp_tag_t{0};

absl::Status UcxError(const std::string& what, ucs_status_t status) {
  return Unavailable("{}: {}", what, ucs_status_string(status));
}

absl::Status LostPeerError(int peer, ucs_status_t status) {
  return Unavailable("lost peer {}: {}", peer, ucs_status_string(status));
}

absl::Status Modify(ucp_config_t* config, const std::string& name, const std::string& value) {
  const ucs_status_t status = ucp_config_modify(config, name.c_str(), value.c_str());
  if (status == UCS_OK) return absl::OkStatus();
  return UcxError("cannot set UCX_" + name + " to " + value, status);
}

// Whether the value of UCX_TLS, a list of transports and of groups of them, has shared memory.
bool HasSharedMemory(std::string_view transports) {
  return std::ranges::any_of(
      std::array{"all", "sm", "shm", "mm", "posix", "sysv", "^"},
      [&](std::string_view name) { return transports.find(name) != std::string_view::npos; });
}

absl::Status Configure(ucp_config_t* config, const std::string& interface) {
  if (std::getenv("UCX_NET_DEVICES") == nullptr) {
    RETURN_IF_ERROR(Modify(config, "NET_DEVICES", interface.empty() ? "lo" : interface));
  }
  const char* const transports_by_user = std::getenv("UCX_TLS");
  if (transports_by_user == nullptr && interface.empty()) {
    RETURN_IF_ERROR(Modify(config, "TLS", "self,posix,cma,tcp"));
  }
  if (transports_by_user != nullptr && !HasSharedMemory(transports_by_user)) {
    return absl::OkStatus();
  }
  // UCX leaves shared memory out where endpoints have to survive a peer's death unless told that it
  // can do so. What CMA cannot do, to keep a peer from reading what a send has let go of, we do not
  // promise.
  RETURN_IF_ERROR(Modify(config, "MM_ERROR_HANDLING", "y"));
  return Modify(config, "MEMORY_INVALIDATE", "y");
}

// UCX only warns of a device that does not exist.
absl::Status CheckInterface(const std::string& interface) {
  const std::string device = interface.substr(0, interface.find(':'));
  for (const std::string folder : {"/sys/class/net/", "/sys/class/infiniband/"}) {
    if (device.empty() || std::filesystem::exists(folder + device)) return absl::OkStatus();
  }
  return NotFound("no network device {}; ucx_info -d names all", interface);
}

// What UCX says goes to the standard output unless told otherwise, where results are.
ucs_log_func_rc_t WriteToStandardError(const char*, unsigned, const char*, ucs_log_level_t level,
                                       const ucs_log_component_config_t*, const char* format,
                                       va_list arguments) {
  std::array<char, 1024> message = {};
  std::vsnprintf(message.data(), message.size(), format, arguments);
  fmt::print(stderr, "UCX {}: {}\n", ucs_log_level_names[level], message.data());
  return UCS_LOG_FUNC_RC_STOP;
}

void KeepStandardOutputClean() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (std::getenv("UCX_LOG_FILE") == nullptr) ucs_log_push_handler(&WriteToStandardError);
  });
}

// Beside those that lie with its library UCX also loads modules from where Debian has them. These
// may be of another version, which does not fit, where the library is one that came with minka.
absl::Status LoadModulesBesideTheLibraryOnly() {
  if (std::getenv("UCX_MODULE_DIR") != nullptr) return absl::OkStatus();
  void* const library = dlopen("libucs.so.0", RTLD_NOLOAD | RTLD_LAZY);
  if (library == nullptr) return absl::OkStatus();
  link_map* where = nullptr;
  MINKA_CHECK(dlinfo(library, RTLD_DI_LINKMAP, static_cast<void*>(&where)) == 0, "{}", dlerror());
  const std::filesystem::path folder = std::filesystem::path(where->l_name).parent_path() / "ucx";
  dlclose(library);
  const ucs_status_t status = ucs_global_opts_set_value("MODULE_DIR", folder.c_str());
  return status == UCS_OK ? absl::OkStatus() : UcxError("cannot set UCX_MODULE_DIR", status);
}

absl::StatusOr<ucp_context_h> MakeContext(int num_peers, const std::string& interface) {
  KeepStandardOutputClean();
  static const absl::Status modules = LoadModulesBesideTheLibraryOnly();
  RETURN_IF_ERROR(modules);
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) return UcxError("cannot read the configuration of UCX", status);
  const absl::Status configured = Configure(config, interface);
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS;
  params.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
  params.estimated_num_eps = static_cast<size_t>(num_peers);
  ucp_context_h context = nullptr;
  if (configured.ok()) status = ucp_init(&params, config, &context);
  ucp_config_release(config);
  RETURN_IF_ERROR(configured);
  if (status == UCS_ERR_NO_DEVICE) {
    return UcxError(fmt::format("cannot start UCX on the network device {}; is it up?",
                                interface.empty() ? "lo" : interface),
                    status);
  }
  if (status != UCS_OK) return UcxError("cannot start UCX", status);
  return context;
}

absl::StatusOr<std::string> AddressOf(ucp_worker_h worker) {
  ucp_address_t* address = nullptr;
  size_t num_bytes = 0;
  const ucs_status_t status = ucp_worker_get_address(worker, &address, &num_bytes);
  if (status != UCS_OK) return UcxError("UCX has no address", status);
  std::string bytes(reinterpret_cast<const char*>(address), num_bytes);
  ucp_worker_release_address(worker, address);
  return bytes;
}

// Takes all messages that nobody has expected, so that UCX does not warn of them.
void DiscardUnexpected(ucp_worker_h worker) {
  ucp_tag_recv_info_t info{};
  while (true) {
    const ucp_tag_message_h message =
        ucp_tag_probe_nb(worker, /*tag=*/0, /*tag_mask=*/0, /*remove=*/1, &info);
    if (message == nullptr) return;
    const ucp_request_param_t param{};
    const ucs_status_ptr_t request =
        ucp_tag_msg_recv_nbx(worker, /*buffer=*/nullptr, /*count=*/0, message, &param);
    if (UCS_PTR_IS_PTR(request)) ucp_request_free(request);
  }
}

}  // namespace

absl::Status UcxReceive::Wait() {
  std::unique_lock lock(mutex_);
  answered_.wait(lock, [&] { return answer_.has_value(); });
  return *answer_;
}

bool UcxReceive::is_answered() {
  const std::lock_guard lock(mutex_);
  return answer_.has_value();
}

void UcxReceive::Answer(const absl::Status& answer) {
  const std::lock_guard lock(mutex_);
  answer_ = answer;
  answered_.notify_all();
}

absl::Status UcxReceive::AnswerOf(ucs_status_t status, size_t sent_bytes) const {
  if (status == UCS_ERR_MESSAGE_TRUNCATED ||
      (status == UCS_OK && sent_bytes != destination_.size())) {
    return WrongSizeError(peer_, tag_, destination_.size(), sent_bytes);
  }
  if (status == UCS_OK) return absl::OkStatus();
  if (status == UCS_ERR_CANCELED) return TransportCancelledError();
  return LostPeerError(peer_, status);
}

absl::StatusOr<std::shared_ptr<UcxProgressThread>> UcxProgressThread::Start(int num_peers,
                                                                            std::string interface) {
  std::shared_ptr<UcxProgressThread> thread(new UcxProgressThread(num_peers));
  thread->wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (thread->wake_fd_ < 0) return ResourceExhausted("no eventfd: {}", std::strerror(errno));
  std::promise<absl::Status> started;
  std::future<absl::Status> status = started.get_future();
  thread->thread_ =
      std::thread(&UcxProgressThread::Run, thread.get(), std::move(interface), std::move(started));
  absl::Status is_started = status.get();
  if (is_started.ok()) return thread;
  thread->Join();
  return is_started;
}

UcxProgressThread::~UcxProgressThread() {
  MINKA_CHECK(!thread_.joinable());
  if (wake_fd_ >= 0) close(wake_fd_);
}

absl::Status UcxProgressThread::Connect(std::vector<std::string> worker_addresses) {
  ConnectCommand command = {.worker_addresses = std::move(worker_addresses), .done = {}};
  std::future<absl::Status> done = command.done.get_future();
  RETURN_IF_ERROR(Submit(std::move(command)));
  return done.get();
}

absl::Status UcxProgressThread::Send(UcxSend send) { return Submit(std::move(send)); }

absl::Status UcxProgressThread::Receive(std::shared_ptr<UcxReceive> receive) {
  return Submit(std::move(receive));
}

void UcxProgressThread::Drop(std::shared_ptr<UcxReceive> receive) {
  // A thread that has stopped has answered or is about to.
  Submit(DropCommand{.receive = std::move(receive)}).IgnoreError();
}

void UcxProgressThread::Stop() {
  const std::lock_guard lock(mutex_);
  is_stopped_ = true;
  Wake();
}

void UcxProgressThread::Join() { thread_.join(); }

absl::Status UcxProgressThread::Submit(Command command) {
  {
    const std::lock_guard lock(mutex_);
    if (is_stopped_) return TransportCancelledError();
    commands_.push_back(std::move(command));
    Wake();
  }
  // Who holds the mutex looks for commands again behind it.
  while (has_news_) {
    std::unique_lock ucx(ucx_mutex_, std::try_to_lock);
    if (!ucx.owns_lock() || RunCommands() == Commands::kStopped) break;
    Unlock(std::move(ucx));
  }
  return absl::OkStatus();
}

void UcxProgressThread::Unlock(std::unique_lock<std::mutex> ucx) {
  const std::vector<std::shared_ptr<const void>> owners = std::exchange(to_let_go_, {});
  ucx.unlock();
}

void UcxProgressThread::Wake() {
  has_news_ = true;
  if (!std::exchange(is_asleep_, false)) return;
  const uint64_t one = 1;
  // Fails only when the counter is full, which wakes as well.
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof one);
}

void UcxProgressThread::Run(const std::string& interface, std::promise<absl::Status> started) {
  const absl::Status status = SetUp(interface);
  const bool is_up = status.ok();
  if (!is_up) Stop();
  started.set_value(status);
  using Clock = std::chrono::steady_clock;
  Clock::time_point last_news = Clock::now();
  while (is_up) {
    std::unique_lock ucx(ucx_mutex_);
    if (RunCommands() == Commands::kStopped) break;
    bool any = std::exchange(is_progress_due_, false);
    any |= ucp_worker_progress(worker_) != 0;
    any |= GiveUpLostPeers();
    Unlock(std::move(ucx));
    if (any) {
      last_news = Clock::now();
    } else if (Clock::now() - last_news <= kPollTime) {
      // News may come from a thread that wants this processor.
      std::this_thread::yield();
    } else {
      Sleep();
      last_news = Clock::now();
    }
  }
  TearDown();
}

absl::Status UcxProgressThread::SetUp(const std::string& interface) {
  RETURN_IF_ERROR(CheckInterface(interface));
  ASSIGN_OR_RETURN(context_, MakeContext(num_peers_, interface));
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_FLAGS;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  // TearDown leaves the requests that only a peer could end.
  params.flags = UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK;
  ucs_status_t status = ucp_worker_create(context_, &params, &worker_);
  if (status != UCS_OK) return UcxError("cannot make a worker of UCX", status);
  status = ucp_worker_get_efd(worker_, &worker_fd_);
  if (status != UCS_OK) return UcxError("UCX cannot wake a thread that waits", status);
  ASSIGN_OR_RETURN(worker_address_, AddressOf(worker_));
  return absl::OkStatus();
}

void UcxProgressThread::TearDown() {
  std::unique_lock ucx(ucx_mutex_);
  CancelReceives([](const UcxReceive&) { return true; });
  FinishConnecting();
  if (worker_ != nullptr) DiscardUnexpected(worker_);
  CloseEndpoints();
  // Ends what is left, and all that writes to memory.
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  if (context_ != nullptr) ucp_cleanup(context_);

  for (InFlightSend& in_flight : sends_) to_let_go_.push_back(std::move(in_flight.owner));
  sends_.clear();
  for (const InFlightReceive& in_flight : receives_) {
    in_flight.receive->Answer(TransportCancelledError());
  }
  receives_.clear();
  std::vector<Command> commands;
  {
    const std::lock_guard lock(mutex_);
    commands.swap(commands_);
  }
  for (Command& command : commands) {
    if (auto* connect = std::get_if<ConnectCommand>(&command)) {
      connect->done.set_value(TransportCancelledError());
    }
    if (auto* receive = std::get_if<std::shared_ptr<UcxReceive>>(&command)) {
      (*receive)->Answer(TransportCancelledError());
    }
  }
  Unlock(std::move(ucx));
}

void UcxProgressThread::FinishConnecting() {
  if (!connected_) return;
  while (std::chrono::steady_clock::now() - *connected_ < kTimeToConnect) {
    if (ucp_worker_progress(worker_) == 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void UcxProgressThread::CloseEndpoints() {
  ucp_request_param_t by_force{};
  by_force.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  by_force.flags = UCP_EP_CLOSE_FLAG_FORCE;
  for (const Endpoint& endpoint : endpoints_) {
    const ucs_status_ptr_t request = ucp_ep_close_nbx(endpoint.handle, &by_force);
    if (UCS_PTR_IS_PTR(request)) ucp_request_free(request);
  }
  for (int i = 0; i < kMaxClosingRounds && !endpoints_.empty(); ++i) ucp_worker_progress(worker_);
  endpoints_.clear();
}

void UcxProgressThread::CancelReceives(
    const std::function<bool(const UcxReceive& receive)>& is_meant) {
  std::vector<void*> requests;  // apart, because cancelling removes from receives_
  for (const InFlightReceive& in_flight : receives_) {
    if (is_meant(*in_flight.receive)) requests.push_back(in_flight.receive->request_);
  }
  for (void* request : requests) ucp_request_cancel(worker_, request);
}

bool UcxProgressThread::GiveUpLostPeers() {
  if (!std::exchange(has_newly_lost_peers_, false)) return false;
  CancelReceives([&](const UcxReceive& receive) { return IsLost(receive.peer_); });
  return true;
}

bool UcxProgressThread::IsLost(int peer) const {
  return static_cast<size_t>(peer) < endpoints_.size() && endpoints_[peer].lost != UCS_OK;
}

void UcxProgressThread::Lose(int peer, ucs_status_t status) {
  // Without endpoints all is closing.
  if (endpoints_.empty() || IsLost(peer)) return;
  endpoints_[peer].lost = status;
  has_newly_lost_peers_ = true;
}

UcxProgressThread::Commands UcxProgressThread::RunCommands() {
  if (!has_news_) return Commands::kNone;
  std::vector<Command> commands;
  {
    const std::lock_guard lock(mutex_);
    if (is_stopped_) return Commands::kStopped;
    has_news_ = false;
    commands.swap(commands_);
  }
  for (Command& command : commands) {
    std::visit([&](auto& alternative) { Execute(alternative); }, command);
  }
  is_progress_due_ = true;
  return Commands::kRun;
}

void UcxProgressThread::Execute(ConnectCommand& command) {
  connected_ = std::chrono::steady_clock::now();
  endpoints_.reserve(command.worker_addresses.size());  // UCX holds pointers to them
  for (const std::string& worker_address : command.worker_addresses) {
    const int peer = static_cast<int>(endpoints_.size());
    Endpoint& endpoint = endpoints_.emplace_back();
    endpoint = {.thread = this, .peer = peer};
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                        UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params.address = reinterpret_cast<const ucp_address_t*>(worker_address.data());
    // Without it UCX ends the process when a peer dies in the middle of a message.
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params.err_handler.cb = [](void* lost, ucp_ep_h, ucs_status_t status) {
      const auto& lost_endpoint = *static_cast<Endpoint*>(lost);
      lost_endpoint.thread->Lose(lost_endpoint.peer, status);
    };
    params.err_handler.arg = &endpoint;
    const ucs_status_t status = ucp_ep_create(worker_, &params, &endpoint.handle);
    if (status != UCS_OK) {
      endpoints_.pop_back();
      CloseEndpoints();
      command.done.set_value(
          Unavailable("cannot connect to peer {}: {}", peer, ucs_status_string(status)));
      return;
    }
  }
  command.done.set_value(absl::OkStatus());
}

void UcxProgressThread::Execute(UcxSend& send) {
  InFlightSend& in_flight = sends_.emplace_back();
  in_flight = {.thread = this,
               .peer = send.peer,
               .owner = std::move(send.owner),
               .self = std::prev(sends_.end())};
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.cb.send = [](void* request, ucs_status_t status, void* user_data) {
    ucp_request_free(request);
    auto& finished = *static_cast<InFlightSend*>(user_data);
    finished.thread->FinishSend(finished, status);
  };
  param.user_data = &in_flight;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  const ucs_status_ptr_t request = ucp_tag_send_nbx(endpoints_[send.peer].handle, send.bytes.data(),
                                                    send.bytes.size(), send.ucx_tag, &param);
  if (!UCS_PTR_IS_PTR(request)) FinishSend(in_flight, UCS_PTR_STATUS(request));
}

void UcxProgressThread::Execute(std::shared_ptr<UcxReceive>& receive) {
  InFlightReceive& in_flight = receives_.emplace_back();
  in_flight = {.thread = this, .receive = receive, .self = std::prev(receives_.end())};
  ucp_request_param_t param{};
  // Only the callback learns the size of a message that has been here before.
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                       UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  param.cb.recv = [](void*, ucs_status_t status, const ucp_tag_recv_info_t* info, void* user_data) {
    auto& finished = *static_cast<InFlightReceive*>(user_data);
    finished.thread->FinishReceive(finished, status, info->length);
  };
  param.user_data = &in_flight;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  const std::span<char> destination = receive->destination_;
  const ucs_status_ptr_t request = ucp_tag_recv_nbx(worker_, destination.data(), destination.size(),
                                                    receive->ucx_tag_, kWholeTag, &param);
  if (!UCS_PTR_IS_PTR(request)) {
    FinishReceive(in_flight, UCS_PTR_STATUS(request), /*sent_bytes=*/0);
  } else if (receive->is_answered()) {
    ucp_request_free(request);
  } else {
    receive->request_ = request;
    if (IsLost(receive->peer_)) ucp_request_cancel(worker_, request);
  }
}

void UcxProgressThread::Execute(DropCommand& command) {
  // One that a message has been matched with goes on until that is here.
  if (command.receive->request_ != nullptr) {
    ucp_request_cancel(worker_, command.receive->request_);
  }
}

void UcxProgressThread::Sleep() {
  std::unique_lock ucx(ucx_mutex_);
  if (is_progress_due_) return;
  {
    const std::lock_guard lock(mutex_);
    if (has_news_) return;
    is_asleep_ = true;
  }
  const bool has_pending = !sends_.empty() || !receives_.empty();
  const bool is_armed = ucp_worker_arm(worker_) == UCS_OK;
  ucx.unlock();
  if (is_armed) {
    std::array<pollfd, 2> fds = {pollfd{.fd = worker_fd_, .events = POLLIN, .revents = 0},
                                 pollfd{.fd = wake_fd_, .events = POLLIN, .revents = 0}};
    poll(fds.data(), fds.size(), has_pending ? kMostSleepMs : -1);
  }
  const std::lock_guard lock(mutex_);
  is_asleep_ = false;
  uint64_t count = 0;
  // Nothing to read when it was UCX that woke.
  [[maybe_unused]] const ssize_t num_read = read(wake_fd_, &count, sizeof count);
}

void UcxProgressThread::FinishSend(InFlightSend& send, ucs_status_t status) {
  // Nobody waits for a send: what is expected of the peer tells that it failed. UCX cancels one
  // only when its endpoint is closed here.
  if (status != UCS_OK && status != UCS_ERR_CANCELED) Lose(send.peer, status);
  to_let_go_.push_back(std::move(send.owner));
  sends_.erase(send.self);
}

void UcxProgressThread::FinishReceive(InFlightReceive& receive, ucs_status_t status,
                                      size_t sent_bytes) {
  const std::shared_ptr<UcxReceive> finished = std::move(receive.receive);
  receives_.erase(receive.self);
  if (void* const request = std::exchange(finished->request_, nullptr)) ucp_request_free(request);
  if (status == UCS_ERR_CANCELED && IsLost(finished->peer_)) {
    status = endpoints_[finished->peer_].lost;
  }
  finished->Answer(finished->AnswerOf(status, sent_bytes));
}

}  // namespace minka
