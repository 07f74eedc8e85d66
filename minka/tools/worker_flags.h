// Where the meshes of a pipeline run, and what is written of it, as the command line says it.
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
      "File that names the workers of a pipeline's meshes, which run already (minka worker). "
      "Default: children of this process, one for each mesh");
  command
      .add_flag("--in-process", flags.in_process,
                "Run the meshes of a pipeline in this process, where they take turns")
      ->excludes(hosts);
  AddTraceFlag(command, flags.trace, "as predicted and as measured");
}

// InvalidArgument for what a method without meshes of its own would ignore.
inline absl::Status CheckTraceFlag(const std::string& trace, bool is_pipeline) {
  if (is_pipeline || trace.empty()) return absl::OkStatus();
  return InvalidArgument("--trace shows the meshes of a pipeline; give --method pipeline");
}

inline absl::Status CheckWorkerFlags(const WorkerFlags& flags, bool is_pipeline) {
  RETURN_IF_ERROR(CheckTraceFlag(flags.trace, is_pipeline));
  if (is_pipeline || (flags.hosts.empty() && !flags.in_process)) return absl::OkStatus();
  return InvalidArgument(
      "{} says where the meshes of a pipeline run; drop it, or take --method pipeline",
      flags.in_process ? "--in-process" : "--hosts");
}

}  // namespace minka
