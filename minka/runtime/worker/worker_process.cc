#include "minka/runtime/worker/worker_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "minka/base/check.h"
#include "minka/base/process.h"
#include "minka/base/status.h"

namespace minka {
namespace {

constexpr std::string_view kHandshake = "minka worker listens on ";
constexpr size_t kKeptBytes = 64 << 10;
constexpr std::chrono::milliseconds kTimeToEnd{1000};
// In the worker, behind the standard ones.
constexpr int kProgressFile = 3, kPutArenaFile = 4, kFetchedArenaFile = 5,
              kLastFile = kFetchedArenaFile;
constexpr size_t kMaxTokenBytes = 4096;

// A worker before it is one. All is prepared, because between vfork and exec only what is
// async-signal-safe may be called.
struct ChildPlan {
  const char* executable = nullptr;
  char* const* arguments = nullptr;
  char* const* environment = nullptr;
  const cpu_set_t* cpus = nullptr;            // null: all
  std::array<int, kLastFile + 1> files = {};  // to become 0, 1, ...
  pid_t parent = 0;
};

// Written by the child into the memory that it still shares with its parent.
struct ChildFailure {
  const char* what = nullptr;
  int error = 0;
};

[[noreturn]] void FailInChild(volatile ChildFailure& failure, const char* what) {
  failure.what = what;
  failure.error = errno;
  ::_exit(1);
}

// Signals as a new process has them, whatever the driver's threads ignore and block.
void ResetSignals() {
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) ::sigaction(signal, &action, nullptr);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

[[noreturn]] void BecomeWorkerProcess(const ChildPlan& plan, volatile ChildFailure& failure) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The parent may have died before that.
  if (::getppid() != plan.parent) ::_exit(1);
  // A group of its own: Ctrl-C is for the driver, which ends its workers.
  ::setpgid(0, 0);
  ResetSignals();
  std::array<int, kLastFile + 1> files = plan.files;
  // First out of the way of the numbers that they get.
  for (int& file : files) {
    file = ::fcntl(file, F_DUPFD, kLastFile + 1);
    if (file < 0) FailInChild(failure, "keep a file");
  }
  for (int number = 0; number <= kLastFile; ++number) {
    if (::dup2(files[number], number) < 0) FailInChild(failure, "hand down a file");
  }
  if (::close_range(kLastFile + 1, ~0U, 0) != 0) FailInChild(failure, "close files");
  if (plan.cpus != nullptr && ::sched_setaffinity(0, sizeof(cpu_set_t), plan.cpus) != 0) {
    FailInChild(failure, "run on the CPUs wanted");
  }
  ::execve(plan.executable, plan.arguments, plan.environment);
  FailInChild(failure, "be executed");
}

// vfork, because a driver's memory is large and its libraries have handlers for fork. Signals wait
// meanwhile: a handler would run in the child, too, on the same memory.
pid_t StartChild(const ChildPlan& plan, volatile ChildFailure& failure) {
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t child = ::vfork();  // NOLINT(bugprone-unsafe-functions)
  if (child == 0) BecomeWorkerProcess(plan, failure);
  const int error = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  return child;
}

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> EnvironmentWith(
    const std::map<std::string, std::optional<std::string>>& changes) {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    if (!changes.contains(text.substr(0, text.find('=')))) variables.push_back(text);
  }
  for (const auto& [name, value] : changes) {
    if (value) variables.push_back(fmt::format("{}={}", name, *value));
  }
  return variables;
}

absl::StatusOr<std::string> ThisExecutable() {
  std::string path(PATH_MAX, '\0');
  const ssize_t size = ::readlink("/proc/self/exe", path.data(), path.size());
  if (size < 0) return Unavailable("cannot find this executable: {}", std::strerror(errno));
  path.resize(static_cast<size_t>(size));
  return path;
}

// glibc's header of these has no C linkage before 2.37.
int OpenProcess(pid_t pid) { return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)); }
void SignalProcess(int process, int signal) {
  ::syscall(SYS_pidfd_send_signal, process, signal, nullptr, 0);
}

struct Pipe {
  FileDescriptor read, write;
};

absl::StatusOr<Pipe> MakePipe() {
  std::array<int, 2> ends = {};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    return ResourceExhausted("cannot make a pipe: {}", std::strerror(errno));
  }
  return Pipe{FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

}  // namespace

std::string ToString(const WorkerDeath& death) {
  const std::string how = death.exit_code ? fmt::format("ended with exit code {}", *death.exit_code)
                                          : fmt::format("died of {}", death.signal);
  return fmt::format("{} {}; {}", how, ToString(death.progress), WhatItWrote(death.messages));
}

absl::StatusOr<std::unique_ptr<WorkerProcess>> WorkerProcess::Start(WorkerProcessOptions options) {
  MINKA_CHECK(options.token.find('\n') == std::string::npos &&
              options.token.size() < kMaxTokenBytes);
  std::unique_ptr<WorkerProcess> process(new WorkerProcess(std::move(options)));
  absl::StatusOr<ProgressPage> progress = ProgressPage::Create();
  if (!progress.ok()) return WithContext(progress.status(), process->name());
  process->progress_ = *std::move(progress);
  absl::StatusOr<SharedArenas> arenas = SharedArenas::Create(process->options_.arena_bytes);
  if (!arenas.ok()) return WithContext(arenas.status(), process->name());
  process->arenas_ = *std::move(arenas);
  process->thread_ = std::thread(&WorkerProcess::Run, process.get());
  RETURN_IF_ERROR(WithContext(process->AwaitStart(), process->name()));
  return process;
}

absl::Status WorkerProcess::AwaitStart() {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, options_.start_timeout, [&] { return state_ != State::kStarting; });
  switch (state_) {
    case State::kListening:
      return absl::OkStatus();
    case State::kEnded:
      if (!spawned_.ok()) return spawned_;
      // One that listened for a moment is a death like others.
      if (!address_.empty()) return absl::OkStatus();
      return Unavailable("{}", ToString(*death_));
    case State::kStarting:
      break;
  }
  const std::string what = WhatItWrote(RecentMessages());
  lock.unlock();
  Kill();
  return Unavailable("does not listen after {} s; {}",
                     std::chrono::duration<double>(options_.start_timeout).count(), what);
}

WorkerProcess::~WorkerProcess() {
  if (!thread_.joinable()) return;
  MINKA_CHECK(thread_.get_id() != std::this_thread::get_id(), "on_death destroys its worker");
  AskToEnd();
  std::unique_lock lock(mutex_);
  const auto has_ended = [&] { return state_ == State::kEnded; };
  const bool ends_itself = changed_.wait_for(lock, kTimeToEnd, has_ended);
  lock.unlock();
  if (!ends_itself) Kill();
  thread_.join();
}

void WorkerProcess::AskToEnd() {
  const std::lock_guard lock(mutex_);
  is_asked_to_end_ = true;
  input_.Close();
}

void WorkerProcess::Kill() {
  std::unique_lock lock(mutex_);
  is_asked_to_end_ = is_killed_ = true;
  // No number that another process may have got: the descriptor stays that of the worker.
  if (process_.number() >= 0) SignalProcess(process_.number(), SIGKILL);
  changed_.wait(lock, [&] { return state_ == State::kEnded; });
}

void WorkerProcess::Run() {
  absl::Status spawned = Spawn();
  if (spawned.ok()) return Watch();
  const std::lock_guard lock(mutex_);
  spawned_ = std::move(spawned);
  state_ = State::kEnded;
  changed_.notify_all();
}

absl::Status WorkerProcess::Spawn() {
  std::string executable = options_.executable;
  if (executable.empty()) {
    ASSIGN_OR_RETURN(executable, ThisExecutable());
  }
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  for (const int cpu : options_.cpus) {
    if (cpu < 0 || cpu >= CPU_SETSIZE) return InvalidArgument("there is no CPU {}", cpu);
    CPU_SET(cpu, &cpus);
  }
  ASSIGN_OR_RETURN(Pipe input, MakePipe());
  ASSIGN_OR_RETURN(Pipe output, MakePipe());
  ASSIGN_OR_RETURN(Pipe messages, MakePipe());
  // Fits into the pipe, so it need not wait for a reader.
  if (!WriteToFile(input.write.number(), options_.token + "\n")) {
    return Unavailable("cannot write into a pipe: {}", std::strerror(errno));
  }
  std::vector<std::string> arguments = options_.arguments;
  arguments.insert(arguments.begin(), executable);
  std::map<std::string, std::optional<std::string>> changes = options_.environment;
  changes[kProgressPageVariable] = std::to_string(kProgressFile);
  changes[kPutArenaVariable] = std::to_string(kPutArenaFile);
  changes[kFetchedArenaVariable] = std::to_string(kFetchedArenaFile);
  std::vector<std::string> environment = EnvironmentWith(changes);
  const std::vector<char*> argument_pointers = Pointers(arguments);
  const std::vector<char*> environment_pointers = Pointers(environment);
  const ChildPlan plan{
      .executable = executable.c_str(),
      .arguments = argument_pointers.data(),
      .environment = environment_pointers.data(),
      .cpus = options_.cpus.empty() ? nullptr : &cpus,
      .files = {input.read.number(), output.write.number(), messages.write.number(),
                progress_.file(), arenas_->put.file(), arenas_->fetched.file()},
      .parent = ::getpid()};
  ChildFailure failure;
  const pid_t child = StartChild(plan, failure);
  if (child < 0) return ResourceExhausted("cannot start a process: {}", std::strerror(errno));
  if (failure.what != nullptr) {
    ::waitpid(child, nullptr, 0);
    return InvalidArgument("'{}' cannot {}: {}", executable, failure.what,
                           std::strerror(failure.error));
  }
  FileDescriptor process(OpenProcess(child));
  if (process.number() < 0) {
    const int error = errno;
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    return ResourceExhausted("cannot watch a process: {}", std::strerror(error));
  }
  output_.file = std::move(output.read);
  messages_.file = std::move(messages.read);
  for (const Output* const file : {&output_, &messages_}) {
    ::fcntl(file->file.number(), F_SETFL, O_NONBLOCK);
  }
  const std::lock_guard lock(mutex_);
  pid_ = child;
  process_ = std::move(process);
  if (!is_asked_to_end_) input_ = std::move(input.write);
  if (is_killed_) SignalProcess(process_.number(), SIGKILL);
  return absl::OkStatus();
}

void WorkerProcess::Watch() {
  std::array<pollfd, 3> files = {pollfd{process_.number(), POLLIN, 0},
                                 pollfd{output_.file.number(), POLLIN, 0},
                                 pollfd{messages_.file.number(), POLLIN, 0}};
  while ((files[0].revents & POLLIN) == 0) {
    const int num_ready = ::poll(files.data(), files.size(), -1);
    MINKA_CHECK(num_ready >= 0 || errno == EINTR, "poll: {}", std::strerror(errno));
    if (num_ready < 0) continue;
    if (files[1].revents != 0 && !Read(output_)) files[1].fd = -1;
    if (files[2].revents != 0 && !Read(messages_)) files[2].fd = -1;
  }
  Drain(output_);
  Drain(messages_);
  Reap();
}

// What the worker has left in the pipe; one that it has handed on may be written to for ever.
void WorkerProcess::Drain(Output& output) {
  for (size_t bytes = 0; bytes < kKeptBytes && Read(output); bytes += PIPE_BUF) {
  }
  std::unique_lock lock(mutex_);
  std::string line = std::exchange(output.unread, {});
  lock.unlock();
  if (!line.empty()) TakeLine(output, std::move(line));
}

bool WorkerProcess::Read(Output& output) {
  std::array<char, PIPE_BUF> bytes;
  const ssize_t size = ::read(output.file.number(), bytes.data(), bytes.size());
  if (size < 0 && errno == EINTR) return true;
  if (size <= 0) return false;
  std::vector<std::string> lines;
  {
    const std::lock_guard lock(mutex_);
    output.unread.append(bytes.data(), static_cast<size_t>(size));
    size_t begin = 0;
    for (size_t end; (end = output.unread.find('\n', begin)) != std::string::npos; begin = end + 1)
      lines.push_back(output.unread.substr(begin, end - begin));
    output.unread.erase(0, begin);
    if (output.unread.size() > kKeptBytes) lines.push_back(std::exchange(output.unread, {}));
  }
  for (std::string& line : lines) TakeLine(output, std::move(line));
  return true;
}

void WorkerProcess::TakeLine(const Output& output, std::string line) {
  if (&output == &output_ && TakeAddress(line)) return;
  line += '\n';
  if (options_.forwards_messages) {
    WriteToFile(STDERR_FILENO, fmt::format("{}: {}", options_.name, line));
  }
  const std::lock_guard lock(mutex_);
  recent_ += line;
  if (recent_.size() > 2 * kKeptBytes) recent_.erase(0, recent_.size() - kKeptBytes);
}

bool WorkerProcess::TakeAddress(const std::string& line) {
  const std::lock_guard lock(mutex_);
  if (!address_.empty() || !line.starts_with(kHandshake)) return false;
  address_ = line.substr(kHandshake.size());
  if (address_.empty()) return false;
  state_ = State::kListening;
  changed_.notify_all();
  return true;
}

std::string WorkerProcess::RecentMessages() const {
  std::string messages = recent_ + output_.unread + messages_.unread;
  if (messages.size() > kKeptBytes) messages.erase(0, messages.size() - kKeptBytes);
  return messages;
}

void WorkerProcess::Reap() {
  siginfo_t info = {};
  while (::waitid(P_PIDFD, static_cast<id_t>(process_.number()), &info, WEXITED) != 0) {
    MINKA_CHECK(errno == EINTR, "waitid: {}", std::strerror(errno));
  }
  WorkerDeath death{.progress = progress_.Read()};
  if (info.si_code == CLD_EXITED) {
    death.exit_code = info.si_status;
  } else {
    death.signal = NameOfSignal(info.si_status);
  }
  bool is_surprise = false;
  {
    const std::lock_guard lock(mutex_);
    death.messages = RecentMessages();
    death_ = death;
    is_surprise = !is_asked_to_end_ && !address_.empty();
    state_ = State::kEnded;
    changed_.notify_all();
  }
  if (is_surprise && options_.on_death) options_.on_death(death);
}

absl::StatusOr<std::string> ReadToken() {
  std::string token;
  // Byte by byte: what follows is not ours to take.
  for (char byte = 0; token.size() < kMaxTokenBytes; token += byte) {
    ssize_t size = 0;
    while ((size = ::read(STDIN_FILENO, &byte, 1)) < 0 && errno == EINTR) {
    }
    if (size <= 0) break;
    if (byte == '\n') return token;
  }
  return InvalidArgument("standard input does not begin with a line, the token");
}

void AnnounceAddress(std::string_view address) {
  WriteToFile(STDOUT_FILENO, fmt::format("{}{}\n", kHandshake, address));
}

void AwaitEndOfInput() {
  std::array<char, 256> bytes;
  for (ssize_t size = 1; size > 0 || (size < 0 && errno == EINTR);) {
    size = ::read(STDIN_FILENO, bytes.data(), bytes.size());
  }
}

}  // namespace minka
