#include "CLI/CLI.hpp"
#include "minka/tools/solve_command.h"

int main(int argc, char** argv) {
  CLI::App app("minka plans and runs a single-device step on a cluster", "minka");
  app.require_subcommand(1);
  int exit_code = 0;
  minka::AddSolveCommand(app, exit_code);
  CLI11_PARSE(app, argc, argv);
  return exit_code;
}
