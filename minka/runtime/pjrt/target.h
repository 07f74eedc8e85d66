// Devices that are not here: programs are compiled for them, and not run.
//
//   ASSIGN_OR_RETURN(const std::string description, GpuTarget("h100-80gb"));
//   ASSIGN_OR_RETURN(const Target target, Target::Create(plugin, description, 8));
//   ASSIGN_OR_RETURN(const TargetProgram program, target.Compile(ExportHlo(module)));
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "minka/runtime/pjrt/executable.h"
#include "minka/runtime/pjrt/plugin.h"

namespace minka::pjrt {

struct TargetProgram {
  MemoryStatistics memory;
  std::string optimized_module;  // as Executable::OptimizedModule
};

// Thread-safe.
class Target {
 public:
  // So many devices of one host, each as described (see GpuTarget); only plugins for CUDA have
  // descriptions.
  static absl::StatusOr<Target> Create(const Plugin& plugin, const std::string& description,
                                       int num_devices);

  // A replica on each device. Kernels are not tried one against the other, for want of a device:
  // some that are chosen, and their memory, differ from those of a compiler that has one.
  absl::StatusOr<TargetProgram> Compile(std::string_view module_bytes) const;

 private:
  struct State;
  explicit Target(std::shared_ptr<const State> state) : state_(std::move(state)) {}

  std::shared_ptr<const State> state_;
};

}  // namespace minka::pjrt
