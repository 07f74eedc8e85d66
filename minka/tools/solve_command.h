// `minka solve`: a problem file of the IOPDDL contest in, the list of choices out, with its cost
// and how far from the optimum it can be at most.
#pragma once

#include "CLI/CLI.hpp"

namespace minka {

// Adds the subcommand; parsing a command line that names it runs it and stores its exit code.
// `exit_code` must outlive the parse.
void AddSolveCommand(CLI::App& app, int& exit_code);

}  // namespace minka
