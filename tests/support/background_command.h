// A command that runs beside a test.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace minka {

struct BackgroundCommandOptions {
  std::vector<std::string> arguments;              // the first is the program, searched in PATH
  std::map<std::string, std::string> environment;  // beside the test's own
  std::string folder;                              // to run in
  std::string name;  // what it writes goes to NAME.out and NAME.err in the folder
};

// Dies with the test, whatever ends that, and is killed by the destructor.
class BackgroundCommand {
 public:
  explicit BackgroundCommand(BackgroundCommandOptions options);
  BackgroundCommand(const BackgroundCommand&) = delete;
  BackgroundCommand& operator=(const BackgroundCommand&) = delete;
  ~BackgroundCommand();

  pid_t pid() const { return pid_; }
  void Signal(int signal) const;
  // The exit code, minus the signal that it died of; nullopt: it runs on.
  std::optional<int> Wait(std::chrono::milliseconds timeout);
  // What it has written so far.
  std::string Out() const;
  std::string Err() const;

 private:
  const BackgroundCommandOptions options_;
  pid_t pid_ = 0;
  std::optional<int> exit_code_;
};

// Asks until it is so; false: not in time.
bool Await(std::chrono::milliseconds timeout, const std::function<bool()>& is_so);

}  // namespace minka
