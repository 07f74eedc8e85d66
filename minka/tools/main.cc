#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

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

// How many letters have to be changed, added or taken away (Levenshtein).
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0]++;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

// What is wrong with the command's name; empty: nothing.
std::string UnknownCommand(CLI::App& app, const std::string& name) {
  constexpr size_t kMostTypos = 2;
  if (name.starts_with('-')) return "";
  std::string nearest;
  size_t least = kMostTypos + 1;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    const size_t distance = EditDistance(name, command->get_name());
    if (distance == 0) return "";
    if (distance < least) nearest = command->get_name();
    least = std::min(least, distance);
  }
  return fmt::format("unknown command '{}'{}", name,
                     nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest));
}

}  // namespace

int main(int argc, char** argv) {
  // Threads of XLA's pool, set for jaxlib perhaps, which may need more than there are devices:
  // these make steps slower, and this process opens as many as its devices need.
  unsetenv("NPROC");
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
  minka::AddWhatIfCommand(app, line);
  minka::AddReportCommand(app, line);
  minka::AddOperationsCommand(app, line);
  minka::AddSolveCommand(app, line.exit_code);
  minka::AddWorkerCommand(app, line);
  minka::AddDevicesCommand(app, line);
  minka::AddWorkersCommand(app, line);
  if (const std::string error = argc > 1 ? UnknownCommand(app, argv[1]) : ""; !error.empty()) {
    fmt::print(stderr, "minka: {}; minka --help lists what can be given\n", error);
    return 1;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    fmt::print(stderr, "minka: {}; {} lists what can be given\n", error.what(), HelpOf(app));
    return 1;
  }
  return line.exit_code;
}
