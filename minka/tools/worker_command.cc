// `minka worker`: holds the devices of one mesh for a driver.
#include <atomic>
#include <csignal>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "minka/base/status.h"
#include "minka/driver/hosts.h"
#include "minka/runtime/worker/progress_page.h"
#include "minka/runtime/worker/serve.h"
#include "minka/runtime/worker/shared_arena.h"
#include "minka/runtime/worker/worker_process.h"
#include "minka/tools/command.h"

namespace minka {
namespace {

struct WorkerCommandFlags {
  std::string listen = "127.0.0.1:0", interface, token_file;
  bool is_child = false;
};

std::atomic<bool> is_over = false;

absl::StatusOr<std::string> TokenOf(const WorkerCommandFlags& flags) {
  if (flags.is_child) return ReadToken();
  if (flags.token_file.empty()) {
    return InvalidArgument(
        "who may use the worker? Give --token-file FILE, whose first line drivers must know");
  }
  return ReadTokenFile(flags.token_file);
}

absl::Status RunWorker(const WorkerCommandFlags& flags) {
  ASSIGN_OR_RETURN(std::string token, TokenOf(flags));
  ASSIGN_OR_RETURN(ProgressPage progress, ProgressPage::OfThisWorker());
  ASSIGN_OR_RETURN(const std::optional<SharedArenas> arenas, SharedArenas::OfThisWorker());
  const ServeOptions options{.listen = flags.listen,
                             .interface = flags.interface,
                             .token = std::move(token),
                             .version = MINKA_VERSION,
                             .is_child = flags.is_child,
                             .arenas = arenas ? &*arenas : nullptr};
  std::signal(SIGINT, [](int) { is_over = true; });
  std::signal(SIGTERM, [](int) { is_over = true; });
  if (flags.is_child) {
    std::thread([] {
      AwaitEndOfInput();
      is_over = true;
    }).detach();
  }
  return ServeWorker(options, progress, AnnounceAddress, [] { return is_over.load(); });
}

}  // namespace

void AddWorkerCommand(CLI::App& app, CommandLine& line) {
  const auto flags = std::make_shared<WorkerCommandFlags>();
  CLI::App* const command = app.add_subcommand(
      "worker", "Hold the devices of one mesh and run on them what a driver sends");
  command->add_option("--listen", flags->listen,
                      "HOST:PORT to listen on; port 0 is any that is free. Only loopback unless "
                      "told otherwise. Default: " +
                          flags->listen);
  command->add_option("--interface", flags->interface,
                      "Network device by which arrays of other workers come in. Default: that of "
                      "the address listened on");
  command->add_option("--token-file", flags->token_file,
                      "File whose first line a driver must know");
  command->add_flag("--child", flags->is_child)->group("");  // as drivers start it
  command->callback([flags, &line] { Finish(RunWorker(*flags), line); });
}

}  // namespace minka
