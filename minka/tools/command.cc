#include "minka/tools/command.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "fmt/format.h"
#include "minka/base/file.h"
#include "minka/base/status.h"
#include "minka/tools/child_process.h"

namespace minka {

void Finish(const absl::Status& status, CommandLine& line) {
  if (status.ok()) return;
  ClearStatus();
  fmt::print(stderr, "minka: {}\n", Message(status));
  line.exit_code = 1;
}

absl::Status Print(const std::string& text) {
  std::fflush(stdout);
  return WriteFile("-", text);
}

bool HasTerminal() {
  static const bool kHasTerminal = IsChild() ? ParentHasTerminal() : ::isatty(STDERR_FILENO) == 1;
  return kHasTerminal;
}

void ShowStatus(const std::string& text) {
  if (!HasTerminal()) return;
  fmt::print(stderr, "\r{}\033[K", text);
  std::fflush(stderr);
}

void ClearStatus() {
  if (!HasTerminal()) return;
  fmt::print(stderr, "\r\033[K");
  std::fflush(stderr);
}

}  // namespace minka
