#include "minka/runtime/pjrt/gpu_target.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

#include "fmt/ranges.h"
#include "minka/base/status.h"

namespace minka::pjrt {
namespace {

// As the CUDA programming guide (compute capabilities) and the vendor's data sheets have them.
struct Gpu {
  std::string_view device;  // of a cluster
  std::string_view name;    // by the driver
  int major, minor;         // compute capability
  int multiprocessors;
  int shared_bytes_per_multiprocessor, shared_bytes_per_block;  // the most that can be asked for
  int64_t cache_bytes;                                          // second level
  double clock_ghz;
  int64_t memory_bytes;
  int64_t memory_bytes_per_second;
};

constexpr int64_t kGibi = int64_t{1} << 30, kMebi = int64_t{1} << 20;
constexpr int64_t kGiga = 1'000'000'000;

constexpr Gpu kGpus[] = {{"a100-40gb", "NVIDIA A100-SXM4-40GB", 8, 0, 108, 167936, 166912,
                          40 * kMebi, 1.41, 40 * kGibi, 1555 * kGiga},
                         {"a100-80gb", "NVIDIA A100-SXM4-80GB", 8, 0, 108, 167936, 166912,
                          40 * kMebi, 1.41, 80 * kGibi, 2039 * kGiga},
                         {"h100-80gb", "NVIDIA H100 80GB HBM3", 9, 0, 132, 233472, 232448,
                          50 * kMebi, 1.98, 80 * kGibi, 3352 * kGiga},
                         {"h200-141gb", "NVIDIA H200", 9, 0, 132, 233472, 232448, 50 * kMebi, 1.98,
                          140 * kGibi, 4800 * kGiga},
                         {"b200-180gb", "NVIDIA B200", 10, 0, 148, 233472, 232448, 126 * kMebi,
                          1.965, 179 * kGibi, 8000 * kGiga},
                         {"rtx4090-24gb", "NVIDIA GeForce RTX 4090", 8, 9, 128, 102400, 101376,
                          72 * kMebi, 2.52, 24 * kGibi, 1008 * kGiga}};

}  // namespace

absl::StatusOr<std::string> GpuTarget(std::string_view device) {
  const auto* const gpu = std::ranges::find(kGpus, device, &Gpu::device);
  if (gpu == std::end(kGpus)) {
    std::vector<std::string_view> known;
    for (const Gpu& other : kGpus) known.push_back(other.device);
    return NotFound("programs cannot be compiled for a {} that is not here, only for {}", device,
                    fmt::join(known, ", "));
  }
  // From compute capability 9.0 on, kernels for this very chip.
  const std::string_view extension =
      gpu->major >= 9 ? " feature_extension: ACCELERATED_FEATURES" : "";
  return fmt::format(
      R"(gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {shared}
  shared_memory_per_block_optin: {shared_optin}
  threads_per_core_limit: {threads}
  core_count: {cores}
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  memory_bandwidth: {bandwidth}
  l2_cache_size: {cache}
  clock_rate_ghz: {clock}
  device_memory_size: {memory}
  cuda_compute_capability {{ major: {major} minor: {minor}{extension} }}
  device_vendor: "NVIDIA Corporation"
  platform_version: "Compute Capability {major}.{minor}"
  device_address_bits: 64
  pcie_bandwidth: 34359738368
  ecc_enabled: true
  name: "{name}"
  driver_version: "13.0.0"
  runtime_version: "13.0.0"
  compile_time_toolkit_version: "13.0.0"
  dnn_version: "9.10.0"
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
device_description_str: "{name}"
)",
      fmt::arg("shared", gpu->shared_bytes_per_multiprocessor),
      fmt::arg("shared_optin", gpu->shared_bytes_per_block),
      fmt::arg("threads", gpu->minor == 9 ? 1536 : 2048), fmt::arg("cores", gpu->multiprocessors),
      fmt::arg("bandwidth", gpu->memory_bytes_per_second), fmt::arg("cache", gpu->cache_bytes),
      fmt::arg("clock", gpu->clock_ghz), fmt::arg("memory", gpu->memory_bytes),
      fmt::arg("major", gpu->major), fmt::arg("minor", gpu->minor),
      fmt::arg("extension", extension), fmt::arg("name", gpu->name));
}

}  // namespace minka::pjrt
