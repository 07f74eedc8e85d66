#include "minka/runtime/pjrt/platform.h"

#include <algorithm>
#include <numeric>

#include "minka/base/parallel.h"

namespace minka::pjrt {
namespace {

constexpr const char* kDisabledPasses = "xla_disable_hlo_passes";

// Of a GPU's memory: XLA takes three quarters unless told, and cuBLAS, cuDNN and the CUDA context
// together took less than 2 GiB of 80 on an H100.
constexpr float kMemoryFraction = 0.93F;

std::vector<int64_t> DevicesFrom(int first, int num_devices) {
  std::vector<int64_t> ids(num_devices);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

}  // namespace

std::map<std::string, ClientOption> PlatformClientOptions(Platform kind, int first_device,
                                                          int num_devices) {
  std::map<std::string, ClientOption> options;
  switch (kind) {
    case Platform::kCpu:
      if (num_devices > 0) options["cpu_device_count"] = static_cast<int64_t>(num_devices);
      break;
    case Platform::kCuda:
      options["preallocate"] = false;
      options["memory_fraction"] = kMemoryFraction;
      if (num_devices > 0) options["visible_devices"] = DevicesFrom(first_device, num_devices);
      break;
  }
  return options;
}

Overrides RequiredOverrides(Platform kind) {
  // The reshape mover makes constants fold wrongly, and XNNPACK's dots go wrong where a step writes
  // new weights over the old. By XLA's own choice, which is not JAX's, maxima lose what is not a
  // number (docs/design/0004).
  switch (kind) {
    case Platform::kCpu:
      return {{kDisabledPasses, "cse_barrier_expander,reshape-mover,cpu-all-reduce-combiner"},
              {"xla_cpu_enable_concurrency_optimized_scheduler", false},
              {"xla_cpu_enable_fast_min_max", false},
              {"xla_cpu_use_xnnpack", false}};
    case Platform::kCuda:
      // The GPU compiler combines collectives up to these bytes; the plan has combined them
      // already. Barriers have to go before code is made, which knows none; they stay until
      // operations are fused and in order.
      return {{kDisabledPasses, "reshape-mover"},
              {"xla_gpu_all_reduce_combine_threshold_bytes", int64_t{0}},
              {"xla_gpu_all_gather_combine_threshold_bytes", int64_t{0}},
              {"xla_gpu_reduce_scatter_combine_threshold_bytes", int64_t{0}}};
  }
  return {};
}

Overrides ClientOverrides(Platform kind, int num_devices) {
  switch (kind) {
    case Platform::kCpu:
      if (CpuThreadPoolFor(num_devices).divides_operations) return {};
      // Neither products nor loops.
      return {{"xla_cpu_multi_thread_eigen", false},
              {kDisabledPasses, "cpu-parallel-task-assigner"}};
    case Platform::kCuda:
      return {};
  }
  return {};
}

CpuThreadPool CpuThreadPoolFor(int num_devices) {
  const int num_cores = NumHardwareThreads();
  if (num_devices >= num_cores) return {.num_threads = num_devices, .divides_operations = false};
  return {.num_threads = std::max(2 * num_devices, num_cores), .divides_operations = true};
}

Overrides MergeOverrides(Overrides required, const Overrides& extra) {
  for (const auto& [name, value] : extra) {
    const auto existing = required.find(name);
    if (name == kDisabledPasses && existing != required.end())
      existing->second =
          std::get<std::string>(existing->second) + "," + std::get<std::string>(value);
    else
      required[name] = value;
  }
  return required;
}

}  // namespace minka::pjrt
