// XLA can abort its process, so commands that load a plugin run in a child: this executable again
// with the same arguments. The child reports over a pipe what it is at; the parent passes its
// output through and turns its death into a message.
//
//   if (!IsChild()) return RunInChild(arguments);
//   ReportPhase("compile");
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace minka {

bool IsChild();
// In the child: was the parent's standard error a terminal?
bool ParentHasTerminal();

// In the child: what it does now, and the part of it ("" none). Nothing happens elsewhere.
void ReportPhase(std::string_view phase);
void ReportPart(std::string_view part);

struct ChildOutcome {
  int exit_code = 0;     // 0 to 125; 70 where the child died of a signal
  std::string death;     // empty unless it did: "died of SIGABRT (Aborted) in phase xla, at ..."
  std::string messages;  // the last 64 KiB that it wrote to standard error
};

// Runs the child to its end. Signals that end this process end the child, too.
ChildOutcome RunInChild(const std::vector<std::string>& arguments);

// Runs the child and prints what it died of, if it did; its exit code.
int RunInChildAndReport(const std::vector<std::string>& arguments);

// The message for a child that died, with the tail of what it wrote.
std::string DescribeDeath(const ChildOutcome& outcome);

}  // namespace minka
