#include "benchmarks/step_time/jax_process.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "minka/base/status.h"

namespace minka {
namespace {

struct Pipe {
  int read_end = -1;
  int write_end = -1;
};

absl::StatusOr<Pipe> MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    return Unavailable("no pipe to the JAX process: {}", strerror(errno));
  return Pipe{ends[0], ends[1]};
}

// In the child, after fork.
[[noreturn]] void Become(const JaxProcessOptions& options, const Pipe& requests,
                         const Pipe& answers) {
  dup2(requests.read_end, STDIN_FILENO);
  dup2(answers.write_end, STDOUT_FILENO);
  if (options.num_threads > 0) {
    setenv("NPROC", std::to_string(options.num_threads).c_str(), /*overwrite=*/1);
  } else {
    unsetenv("NPROC");  // this process has set it for its own devices
  }
  std::vector<char*> arguments = {const_cast<char*>(options.python.c_str()),
                                  const_cast<char*>(options.script.c_str())};
  for (const std::string& argument : options.arguments) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  execv(options.python.c_str(), arguments.data());
  _exit(127);
}

}  // namespace

absl::StatusOr<JaxProcess> JaxProcess::Start(const JaxProcessOptions& options) {
  // A child that has died is an error of the next read, not a signal.
  std::signal(SIGPIPE, SIG_IGN);
  ASSIGN_OR_RETURN(const Pipe requests, MakePipe());
  ASSIGN_OR_RETURN(const Pipe answers, MakePipe());
  const pid_t pid = fork();
  if (pid < 0) return Unavailable("cannot start {}: {}", options.python, strerror(errno));
  if (pid == 0) Become(options, requests, answers);
  close(requests.read_end);
  close(answers.write_end);
  JaxProcess process(pid, fdopen(requests.write_end, "w"), fdopen(answers.read_end, "r"));
  const absl::StatusOr<nlohmann::json> ready = process.ReadAnswer();
  if (!ready.ok()) {
    return WithContext(ready.status(), fmt::format("{} {} (`make bench` installs what it needs)",
                                                   options.python, options.script));
  }
  process.num_parameters_ = ready->at("num_parameters").get<int64_t>();
  process.shardings_ = ready->at("shardings").get<std::vector<std::string>>();
  return process;
}

JaxProcess::JaxProcess(JaxProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      requests_(std::exchange(other.requests_, nullptr)),
      answers_(std::exchange(other.answers_, nullptr)),
      num_parameters_(other.num_parameters_),
      shardings_(std::move(other.shardings_)) {}

JaxProcess::~JaxProcess() {
  if (requests_ == nullptr) return;
  if (pid_ >= 0) std::fputs("quit\n", requests_);
  std::fclose(requests_);
  std::fclose(answers_);
  if (pid_ >= 0) waitpid(pid_, nullptr, 0);
}

absl::Status JaxProcess::WhyItEnded() {
  int status = 0;
  waitpid(std::exchange(pid_, -1), &status, 0);
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT)
    return absl::AbortedError("the JAX process aborted");
  return Unavailable("the JAX process ended without an answer");
}

absl::StatusOr<nlohmann::json> JaxProcess::ReadAnswer() {
  char* line = nullptr;
  size_t capacity = 0;
  const ssize_t length = getline(&line, &capacity, answers_);
  const std::string text(line == nullptr || length < 0 ? "" : line);
  std::free(line);
  if (text.empty()) return WhyItEnded();
  nlohmann::json answer = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (answer.is_discarded()) return InternalError("the JAX process answered {}", text);
  if (answer.contains("error")) return InternalError("{}", answer["error"].get<std::string>());
  return answer;
}

absl::StatusOr<JaxSteps> JaxProcess::Run(const std::string& sharding, int num_steps) {
  std::fprintf(requests_, "run %s %d\n", sharding.c_str(), num_steps);
  std::fflush(requests_);
  ASSIGN_OR_RETURN(const nlohmann::json answer, ReadAnswer());
  return JaxSteps{.seconds = answer.at("step_seconds").get<std::vector<double>>(),
                  .first_loss = answer.at("first_loss").get<double>()};
}

}  // namespace minka
