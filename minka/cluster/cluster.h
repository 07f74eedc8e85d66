// What a plan runs on: hosts, their devices, the links between them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/base/platform.h"

namespace minka {

// Latency and bandwidth of one link level, of one device that uses it alone, per direction.
struct Link {
  double latency_us = 1;
  double bytes_per_us = 1;  // 1 byte/us = 1 MB/s
};

// Devices in their order, the last dimension running fastest.
struct Torus {
  std::vector<int> sizes;
  int wraps_at = 1;  // dimensions of a multiple of so many have links from their end to their begin
};

inline constexpr char kCpuDevice[] = "cpu";

// So many kinds of hosts can be planned for together.
inline constexpr int kMostKinds = 4;

// Names of the clusters that are this machine: its cores as virtual devices, its GPUs.
inline constexpr char kLocalCluster[] = "local";
inline constexpr char kLocalCudaCluster[] = "local-cuda";

struct DeviceKind {
  std::string name;                   // kCpuDevice, "v100-16gb", "h100-80gb"
  double peak_flops_per_us = 1;       // dense matrix work in f32
  double peak_half_flops_per_us = 0;  // bf16/f16; 0: no such units
  double f32_efficiency = 1;          // what large products reach of the peak in f32, at most 1
  double half_efficiency = 1;         // and in bf16/f16
  int num_multiprocessors = 0;        // of a GPU, which divide a product's tiles; 0: not known
  double elementwise_per_us = 0;      // operations on elements; 0: peak_flops_per_us / 16
  bool has_bf16 = true;
  double memory_bytes_per_us = 1;  // that copying reaches
  int64_t memory_bytes = 0;        // 0: unknown, no limit
  double launch_us = 1;            // overhead of one kernel or fusion group
};

// Equal hosts with equal devices. Devices that share a compute pool (virtual devices of one host's
// cores) share its rate: with n devices busy each runs at pool rate / n. DeviceKind rates are those
// of one device alone.
struct Cluster {
  std::string name;
  int num_hosts = 1;
  int devices_per_host = 1;
  DeviceKind device;
  bool shared_compute_pool = false;  // all devices of a host share one pool
  // Where devices of a host have links to their neighbours alone; "host" stands for all of the
  // torus then, and intra_host is one of these links, its latency that of a hop. Empty: all reach
  // each other alike.
  Torus torus;
  Link intra_host;
  // Where two devices of a host have fewer links than a device has to all: bytes per us from one to
  // the other, per direction, by their places in the host; intra_host is what a device sends to all
  // at most. Symmetric; empty: all reach each other alike.
  std::vector<std::vector<double>> pair_bytes_per_us;
  Link inter_host;
  // Of all devices of a host together to others, per direction; 0: what inter_host says for each.
  double host_network_bytes_per_us = 0;

  int num_devices() const { return num_hosts * devices_per_host; }
  // What one device sends to another of its host, by their numbers.
  double BytesPerUsBetween(int64_t from, int64_t to) const {
    if (pair_bytes_per_us.empty() || from == to) return intra_host.bytes_per_us;
    return pair_bytes_per_us[from % devices_per_host][to % devices_per_host];
  }
  // Do links alike join any two devices?
  bool has_equal_links() const {
    return num_hosts == 1 && torus.sizes.empty() && pair_bytes_per_us.empty();
  }
  // Whose compiler programs for it go through.
  Platform platform() const { return device.name == kCpuDevice ? Platform::kCpu : Platform::kCuda; }

  // The first devices of its first host, or so many whole hosts. Precondition: they are.
  Cluster FirstDevices(int num_devices) const;

  // Virtual devices on this machine's cores, uncalibrated (cost/calibration.h gives measured
  // figures). At most 64.
  static Cluster Local(int num_devices);
  // So many of this machine's GPUs, of which one must ask their plugin: the device has no rates
  // before SetGpu.
  static Cluster LocalCuda(int num_devices);
  // Takes the nominal rates of a GPU by what its driver calls it ("NVIDIA H100 80GB HBM3"), and its
  // memory as given, in bytes. False: no rates of it are known, and the device has its name alone.
  bool SetGpu(std::string_view name, int64_t memory_bytes);
  static absl::StatusOr<Cluster> FromJson(std::string_view json);
  static absl::StatusOr<Cluster> FromFile(const std::string& path);
  // "p3.16xlarge:8" = preset with 8 hosts, "p3.16xlarge:2x4" = four devices of two hosts each,
  // "tpu-v4:4x4x8" = one torus of these sizes; "v100", "a100", "h100", "h200", "b200" stand for the
  // preset of AWS with these GPUs. The error lists the presets and names the nearest.
  static absl::StatusOr<Cluster> Preset(std::string_view name);
  // What a user names: a file (it ends in .json, or is there) or a preset.
  static absl::StatusOr<Cluster> Named(const std::string& name);
  // Hosts of several kinds: names joined by commas, unless all of it names a file. They are of one
  // platform, and kMostKinds at most.
  static absl::StatusOr<std::vector<Cluster>> OfKinds(const std::string& names);
  std::string ToJson() const;
};

}  // namespace minka
