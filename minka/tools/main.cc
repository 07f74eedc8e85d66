#include <cstdio>

#include "CLI/CLI.hpp"
#include "fmt/format.h"
#include "minka/tools/command.h"
#include "minka/tools/solve_command.h"

namespace {

// Which subcommand's --help tells more.
std::string HelpOf(const CLI::App& app) {
  const auto parsed = app.get_subcommands();
  return parsed.empty() ? "minka --help" : "minka " + parsed.front()->get_name() + " --help";
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "minka plans a single-device step for a cluster, proves how good the plan is, runs it",
      "minka");
  app.require_subcommand(1);
  minka::CommandLine line{.arguments = {argv + 1, argv + argc}};
  minka::AddTrainCommand(app, line);
  minka::AddPlanCommand(app, line);
  minka::AddRunCommand(app, line);
  minka::AddProfileCommand(app, line);
  minka::AddInspectCommand(app, line);
  minka::AddExplainCommand(app, line);
  minka::AddDiffCommand(app, line);
  minka::AddOperationsCommand(app, line);
  minka::AddSolveCommand(app, line.exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    fmt::print(stderr, "minka: {}; {} lists what can be given\n", error.what(), HelpOf(app));
    return 1;
  }
  return line.exit_code;
}
