#include "benchmarks/support/run_apart.h"

#include <sys/wait.h>
#include <unistd.h>

#include "minka/base/status.h"

namespace minka {
namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void AnswerAndExit(const absl::StatusOr<Json>& result, int answers) {
  const std::string text =
      result.ok() ? result->dump() : Json({{"error", Message(result.status())}}).dump();
  size_t num_written = 0;
  while (num_written < text.size()) {
    const ssize_t n = write(answers, text.data() + num_written, text.size() - num_written);
    if (n <= 0) _exit(1);
    num_written += static_cast<size_t>(n);
  }
  _exit(0);
}

std::string ReadToEnd(int answers) {
  std::string text;
  char block[4096];
  for (ssize_t n = 0; (n = read(answers, block, sizeof block)) > 0;) {
    text.append(block, static_cast<size_t>(n));
  }
  return text;
}

}  // namespace

absl::StatusOr<Json> RunApart(const std::string& what,
                              const std::function<absl::StatusOr<Json>()>& work) {
  int ends[2];
  if (pipe(ends) != 0) return InternalError("{}: no pipe", what);
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    AnswerAndExit(work(), ends[1]);
  }
  close(ends[1]);
  if (child < 0) {
    close(ends[0]);
    return InternalError("{}: no process", what);
  }
  const std::string text = ReadToEnd(ends[0]);
  close(ends[0]);
  waitpid(child, nullptr, 0);
  Json result = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (result.is_discarded()) return InternalError("{}: the process died", what);
  if (result.contains("error")) {
    return InternalError("{}: {}", what, result["error"].get<std::string>());
  }
  return result;
}

}  // namespace minka
