// Where meshes run, and what is written of a pipeline, as the command line says it.
#pragma once

#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "minka/base/status.h"

namespace minka {

struct WorkerFlags {
  std::string hosts, trace;
  bool in_process = false;
};

inline void AddTraceFlag(CLI::App& command, std::string& trace, const std::string& what) {
  command.add_option("--trace", trace,
                     "Write a step of a pipeline to this file for chrome://tracing and Perfetto, " +
                         what + ". Default: not written");
}

inline void AddWorkerFlags(CLI::App& command, WorkerFlags& flags) {
  CLI::Option* const hosts = command.add_option(
      "--hosts", flags.hosts,
      "File that names the workers, which run already (minka worker), one for each mesh. "
      "Default: children of this process");
  command
      .add_flag("--in-process", flags.in_process,
                "Run without workers: all meshes in this process, where they take turns")
      ->excludes(hosts);
  AddTraceFlag(command, flags.trace, "as predicted and as measured");
}

// InvalidArgument for what a method without meshes of its own would ignore.
inline absl::Status CheckTraceFlag(const std::string& trace, bool is_pipeline) {
  if (is_pipeline || trace.empty()) return absl::OkStatus();
  return InvalidArgument("--trace shows the meshes of a pipeline; give --method pipeline");
}

}  // namespace minka
