#include "tests/support/background_command.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

namespace minka {
namespace {

constexpr std::chrono::milliseconds kPoll{10};

std::string TextOf(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

bool WriteTo(const std::string& path, int number) {
  const int file = ::open(path.c_str(), O_WRONLY | O_APPEND);
  return file >= 0 && ::dup2(file, number) >= 0;
}

[[noreturn]] void Become(const BackgroundCommandOptions& options, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);
  const bool is_ready = ::chdir(options.folder.c_str()) == 0 &&
                        WriteTo(options.name + ".out", STDOUT_FILENO) &&
                        WriteTo(options.name + ".err", STDERR_FILENO);
  for (const auto& [name, value] : options.environment) ::setenv(name.c_str(), value.c_str(), 1);
  std::vector<char*> arguments;
  for (const std::string& argument : options.arguments) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  if (is_ready) ::execvp(arguments.front(), arguments.data());
  std::perror(arguments.front());
  ::_exit(127);
}

}  // namespace

BackgroundCommand::BackgroundCommand(BackgroundCommandOptions options)
    : options_(std::move(options)) {
  // Here, because those of an earlier command of the name are not to be read.
  for (const char* const suffix : {".out", ".err"}) {
    std::ofstream(options_.folder + "/" + options_.name + suffix);
  }
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0) Become(options_, parent);
  if (pid_ > 0) return;
  std::perror("fork");
  std::abort();
}

BackgroundCommand::~BackgroundCommand() {
  if (exit_code_) return;
  Signal(SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void BackgroundCommand::Signal(int signal) const {
  if (!exit_code_) ::kill(pid_, signal);
}

std::optional<int> BackgroundCommand::Wait(std::chrono::milliseconds timeout) {
  Await(timeout, [&] {
    int status = 0;
    if (!exit_code_ && ::waitpid(pid_, &status, WNOHANG) == pid_) {
      exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    }
    return exit_code_.has_value();
  });
  return exit_code_;
}

std::string BackgroundCommand::Out() const {
  return TextOf(options_.folder + "/" + options_.name + ".out");
}

std::string BackgroundCommand::Err() const {
  return TextOf(options_.folder + "/" + options_.name + ".err");
}

bool Await(std::chrono::milliseconds timeout, const std::function<bool()>& is_so) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  while (!is_so()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(kPoll);
  }
  return true;
}

}  // namespace minka
