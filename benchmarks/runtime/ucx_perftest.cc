#include "benchmarks/runtime/ucx_perftest.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <thread>
#include <vector>

#include "fmt/format.h"
#include "minka/base/status.h"

namespace minka {
namespace {

constexpr char kProgram[] = "ucx_perftest";

// The server's port; runs follow each other sooner than a port is free again.
int NextPort() {
  static int num_runs = 0;
  return 20000 + (getpid() % 1000) * 10 + num_runs++ % 1000;
}

pid_t StartServer(const std::string& port) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  const int nowhere = open("/dev/null", O_WRONLY);
  dup2(nowhere, STDOUT_FILENO);
  dup2(nowhere, STDERR_FILENO);
  execlp(kProgram, kProgram, "-p", port.c_str(), nullptr);
  _exit(127);
}

// All that a shell command prints; empty if it fails.
std::string OutputOf(const std::string& command) {
  FILE* const output = popen(command.c_str(), "r");
  if (output == nullptr) return "";
  std::string text;
  char block[4096];
  while (const size_t size = fread(block, 1, sizeof block, output)) text.append(block, size);
  return pclose(output) == 0 ? text : "";
}

std::vector<double> NumbersOfLastLine(const std::string& text) {
  std::istringstream lines(text);
  std::string line, last;
  while (std::getline(lines, line)) {
    if (!line.empty()) last = line;
  }
  std::istringstream words(last);
  std::vector<double> numbers;
  for (double number = 0; words >> number;) numbers.push_back(number);
  return numbers;
}

}  // namespace

bool IsUcxPerftestInstalled() {
  return !OutputOf(fmt::format("command -v {} 2>/dev/null", kProgram)).empty();
}

absl::StatusOr<UcxPerftestResult> RunUcxPerftest(const UcxPerftestOptions& options) {
  setenv("UCX_TLS", "self,posix,cma,tcp", /*overwrite=*/0);
  setenv("UCX_NET_DEVICES", "lo", /*overwrite=*/0);
  const std::string port = std::to_string(NextPort());
  const std::string client =
      fmt::format("{} 127.0.0.1 -p {} -t {} -s {} -n {} -w {} -f {} 2>&1", kProgram, port,
                  options.test, options.num_bytes, options.num_messages,
                  options.num_warm_up_messages, options.sleeps ? "-E sleep" : "");
  const pid_t server = StartServer(port);
  std::string output;
  // Until the server listens.
  for (int attempt = 0; attempt < 50 && output.empty(); ++attempt) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    output = OutputOf(client);
  }
  kill(server, SIGKILL);  // if the client never came
  waitpid(server, nullptr, 0);
  // Messages, the median's time, their average, that of all; MiB/s of the last, of all; and rates.
  const std::vector<double> numbers = NumbersOfLastLine(output);
  constexpr size_t kOverallTime = 3, kOverallBandwidth = 5;
  if (numbers.size() <= kOverallBandwidth) {
    return Unavailable("{} says nothing of use: {}", client, output);
  }
  return UcxPerftestResult{.message_us = numbers[kOverallTime],
                           .gb_per_second = numbers[kOverallBandwidth] * (1 << 20) / 1e9};
}

}  // namespace minka
