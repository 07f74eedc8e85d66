#include "minka/tools/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include "fmt/format.h"
#include "minka/base/process.h"

namespace minka {
namespace {

constexpr const char* kPipeVariable = "MINKA_CHILD_PIPE";
constexpr const char* kTerminalVariable = "MINKA_CHILD_TERMINAL";
constexpr size_t kKeptMessageBytes = 64 << 10;
constexpr int kDiedExitCode = 70;      // EX_SOFTWARE of sysexits.h
constexpr int kLargestExitCode = 125;  // shells use those above for themselves

// A signal handler can reach nothing else.
volatile std::sig_atomic_t child_pid = 0;

void PassOn(int signal) {
  if (child_pid > 0) ::kill(static_cast<pid_t>(child_pid), signal);
}

void Report(char kind, std::string_view text) {
  const char* const text_of_pipe = std::getenv(kPipeVariable);
  if (text_of_pipe == nullptr) return;
  const std::string_view number = text_of_pipe;
  int pipe = -1;
  if (std::from_chars(number.begin(), number.end(), pipe).ec != std::errc()) return;
  std::string line = kind + std::string(text) + "\n";
  std::replace(line.begin(), line.end() - 1, '\n', ' ');
  WriteToFile(pipe, line);
}

[[noreturn]] void BecomeChild(const std::vector<std::string>& arguments, int messages, int report) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const bool terminal = ::isatty(STDERR_FILENO) == 1;
  ::dup2(messages, STDERR_FILENO);
  ::setenv(kPipeVariable, std::to_string(report).c_str(), 1);
  ::setenv(kTerminalVariable, terminal ? "1" : "0", 1);
  std::vector<char*> argv = {const_cast<char*>("minka")};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  ::execv("/proc/self/exe", argv.data());
  fmt::print(stderr, "minka: cannot start itself: {}\n", std::strerror(errno));
  ::_exit(1);
}

// The read ends of what the child writes, and what has come so far.
class Listener {
 public:
  Listener(int messages, int report) : messages_(messages), report_(report) {}

  // Until both ends are closed.
  void Listen() {
    std::array<pollfd, 2> files = {pollfd{messages_, POLLIN, 0}, pollfd{report_, POLLIN, 0}};
    while (files[0].fd >= 0 || files[1].fd >= 0) {
      if (::poll(files.data(), files.size(), -1) < 0 && errno != EINTR) return;
      for (pollfd& file : files) {
        if (file.fd < 0 || (file.revents & (POLLIN | POLLHUP | POLLERR)) == 0) continue;
        if (!Take(file.fd)) file.fd = -1;
      }
    }
  }

  std::string messages, phase, part;

 private:
  bool Take(int file) {
    std::array<char, 4096> bytes;
    const ssize_t size = ::read(file, bytes.data(), bytes.size());
    if (size < 0 && errno == EINTR) return true;
    if (size <= 0) return false;
    const std::string_view text(bytes.data(), static_cast<size_t>(size));
    if (file == messages_) {
      WriteToFile(STDERR_FILENO, text);
      messages += text;
      if (messages.size() > 2 * kKeptMessageBytes) {
        messages.erase(0, messages.size() - kKeptMessageBytes);
      }
    } else {
      TakeReport(text);
    }
    return true;
  }

  void TakeReport(std::string_view text) {
    unread_ += text;
    for (size_t end = unread_.find('\n'); end != std::string::npos; end = unread_.find('\n')) {
      const std::string line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      if (line.empty()) continue;
      if (line[0] == 'P') {
        phase = line.substr(1);
        part.clear();
      } else {
        part = line.substr(1);
      }
    }
  }

  const int messages_, report_;
  std::string unread_;
};

ChildOutcome OutcomeOf(int status, const Listener& heard) {
  ChildOutcome outcome{.messages = heard.messages};
  if (WIFEXITED(status)) {
    const int code = WEXITSTATUS(status);
    outcome.exit_code = code > kLargestExitCode ? kLargestExitCode : code;
    return outcome;
  }
  outcome.exit_code = kDiedExitCode;
  outcome.death = fmt::format("died of {}", NameOfSignal(WTERMSIG(status)));
  if (!heard.phase.empty()) outcome.death += fmt::format(" in phase \"{}\"", heard.phase);
  if (!heard.part.empty()) outcome.death += fmt::format(", at {}", heard.part);
  return outcome;
}

}  // namespace

bool IsChild() { return std::getenv(kPipeVariable) != nullptr; }

bool ParentHasTerminal() {
  const char* const value = std::getenv(kTerminalVariable);
  return value != nullptr && std::string_view(value) == "1";
}

void ReportPhase(std::string_view phase) { Report('P', phase); }
void ReportPart(std::string_view part) { Report('I', part); }

ChildOutcome RunInChild(const std::vector<std::string>& arguments) {
  std::array<int, 2> messages, report;
  if (::pipe2(messages.data(), O_CLOEXEC) != 0 || ::pipe2(report.data(), O_CLOEXEC) != 0) {
    fmt::print(stderr, "minka: cannot make a pipe: {}\n", std::strerror(errno));
    return {.exit_code = 1};
  }
  ::fcntl(report[1], F_SETFD, 0);
  const pid_t child = ::fork();
  if (child == 0) BecomeChild(arguments, messages[1], report[1]);
  ::close(messages[1]);
  ::close(report[1]);
  if (child < 0) {
    fmt::print(stderr, "minka: cannot start a process: {}\n", std::strerror(errno));
    return {.exit_code = 1};
  }
  child_pid = child;
  // A terminal sends SIGINT to both; the child decides, and this process lives to report.
  std::signal(SIGINT, SIG_IGN);
  std::signal(SIGTERM, PassOn);
  std::signal(SIGHUP, PassOn);
  Listener listener(messages[0], report[0]);
  listener.Listen();
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return OutcomeOf(status, listener);
}

std::string DescribeDeath(const ChildOutcome& outcome) {
  return fmt::format("the process that runs the plugin {}; {}", outcome.death,
                     WhatItWrote(outcome.messages));
}

int RunInChildAndReport(const std::vector<std::string>& arguments) {
  const ChildOutcome outcome = RunInChild(arguments);
  if (!outcome.death.empty()) fmt::print(stderr, "minka: {}\n", DescribeDeath(outcome));
  return outcome.exit_code;
}

}  // namespace minka
