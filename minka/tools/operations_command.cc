#include "minka/sharding/supported_ops.h"
#include "minka/tools/command.h"

namespace minka {

void AddOperationsCommand(CLI::App& app, CommandLine& line) {
  CLI::App* const command = app.add_subcommand(
      "operations", "Print how each operation can be split, as Markdown (docs/operations.md)");
  command->callback([&line] { Finish(Print(SupportedOperationsMarkdown()), line); });
}

}  // namespace minka
