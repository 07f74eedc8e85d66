// What the subcommands share: each adds itself to the command line, and parsing a command line that
// names it runs it.
#pragma once

#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"

namespace minka {

// Outlives the parse.
struct CommandLine {
  std::vector<std::string> arguments;  // as given, without the program's name
  int exit_code = 0;
};

// Prints "minka: MESSAGE" on standard error and sets the exit code unless the status is OK.
void Finish(const absl::Status& status, CommandLine& line);

// Text to standard output, in one piece; an error if it cannot be written.
absl::Status Print(const std::string& text);

// A line on standard error that the next one overwrites, where that is a terminal; nothing
// elsewhere.
void ShowStatus(const std::string& text);
void ClearStatus();
// Is standard error a terminal (for a child: its parent's)?
bool HasTerminal();

void AddPlanCommand(CLI::App& app, CommandLine& line);
void AddRunCommand(CLI::App& app, CommandLine& line);
void AddTrainCommand(CLI::App& app, CommandLine& line);
void AddInspectCommand(CLI::App& app, CommandLine& line);
void AddProfileCommand(CLI::App& app, CommandLine& line);
void AddExplainCommand(CLI::App& app, CommandLine& line);
void AddDiffCommand(CLI::App& app, CommandLine& line);
void AddWhatIfCommand(CLI::App& app, CommandLine& line);
void AddReportCommand(CLI::App& app, CommandLine& line);
void AddOperationsCommand(CLI::App& app, CommandLine& line);
void AddWorkerCommand(CLI::App& app, CommandLine& line);
void AddDevicesCommand(CLI::App& app, CommandLine& line);
void AddWorkersCommand(CLI::App& app, CommandLine& line);

}  // namespace minka
