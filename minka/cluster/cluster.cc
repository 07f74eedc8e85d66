#include "minka/cluster/cluster.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <functional>
#include <numeric>
#include <optional>
#include <system_error>
#include <utility>

#include "fmt/ranges.h"
#include "minka/base/file.h"
#include "minka/base/json.h"
#include "minka/base/status.h"
#include "nlohmann/json.hpp"

namespace minka {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kGiga = 1e3;  // 1 GB/s or 1 GFLOP/s per us, in bytes or flops

// Dense peaks with tensor cores (TF32 for f32 where there is one) and memory as the vendor states
// them, but for memory that a driver keeps (H200 and B200: what it reports as there).
//
// The efficiencies are what the fastest products were measured at: 83 of 125 TFLOP/s on V100 in
// half precision, a seventh of that in f32 (Markidis et al., "NVIDIA Tensor Core Programmability,
// Performance & Precision", 2018), 267.9 of 312 on A100, 794.5 of 989 on H100 and H200, 1,745 of
// 2,250 on B200 ("Maximum Achievable Matmul FLOPS comparison table",
// github.com/stas00/ml-engineering). Where nobody is known to have published one they are 1, where
// of one type alone both are the same.
//
// Memory is read and written at nine tenths of what the vendor states (3.57 of 3.94 TB/s by a copy
// of 4 GiB on an H100 in the H100 NVL's form); on V100 at 750 of 900 GB/s (Jia et al., "Dissecting
// the NVIDIA Volta GPU Architecture via Microbenchmarking", 2018).
//
// Where f32 has matrix units, a sixteenth of their peak is what the others do (A100: 9.75 and 156
// TFLOP/s, an operation being half of a multiply-add); devices without say it.
constexpr double kReachedOfMemory = 0.9;

DeviceKind V100(int64_t gibibytes) {
  return {.name = fmt::format("v100-{}gb", gibibytes),
          .peak_flops_per_us = 15.7e3 * kGiga,
          .peak_half_flops_per_us = 125e3 * kGiga,
          .f32_efficiency = 0.76,
          .half_efficiency = 0.66,
          .num_multiprocessors = 80,
          .elementwise_per_us = 15.7e3 / 2 * kGiga,
          .has_bf16 = false,
          .memory_bytes_per_us = 750 * kGiga,
          .memory_bytes = gibibytes << 30,
          .launch_us = 5};
}
DeviceKind A100(int64_t gibibytes) {
  return {.name = fmt::format("a100-{}gb", gibibytes),
          .peak_flops_per_us = 156e3 * kGiga,
          .peak_half_flops_per_us = 312e3 * kGiga,
          .f32_efficiency = 0.86,
          .half_efficiency = 0.86,
          .num_multiprocessors = 108,
          .memory_bytes_per_us = kReachedOfMemory * (gibibytes > 40 ? 2039 : 1555) * kGiga,
          .memory_bytes = gibibytes << 30,
          .launch_us = 4};
}
DeviceKind H100() {
  return {.name = "h100-80gb",
          .peak_flops_per_us = 494e3 * kGiga,
          .peak_half_flops_per_us = 989e3 * kGiga,
          .f32_efficiency = 0.8,
          .half_efficiency = 0.8,
          .num_multiprocessors = 132,
          .memory_bytes_per_us = kReachedOfMemory * 3350 * kGiga,
          .memory_bytes = int64_t{80} << 30,
          .launch_us = 3};
}
DeviceKind H200() {
  return {.name = "h200-141gb",
          .peak_flops_per_us = 494e3 * kGiga,
          .peak_half_flops_per_us = 989e3 * kGiga,
          .f32_efficiency = 0.8,
          .half_efficiency = 0.8,
          .num_multiprocessors = 132,
          .memory_bytes_per_us = kReachedOfMemory * 4800 * kGiga,
          .memory_bytes = int64_t{140} << 30,
          .launch_us = 3};
}
DeviceKind B200() {
  return {.name = "b200-180gb",
          .peak_flops_per_us = 1100e3 * kGiga,
          .peak_half_flops_per_us = 2250e3 * kGiga,
          .f32_efficiency = 0.78,
          .half_efficiency = 0.78,
          .num_multiprocessors = 148,
          .memory_bytes_per_us = kReachedOfMemory * 8000 * kGiga,
          .memory_bytes = int64_t{179} << 30,
          .launch_us = 3};
}
// Halves in f16 run at a 64th of the rate of f32.
DeviceKind Gtx1080Ti() {
  return {.name = "gtx1080ti-11gb",
          .peak_flops_per_us = 11.3e3 * kGiga,
          .num_multiprocessors = 28,
          .elementwise_per_us = 11.3e3 / 2 * kGiga,
          .has_bf16 = false,
          .memory_bytes_per_us = kReachedOfMemory * 484 * kGiga,
          .memory_bytes = int64_t{11} << 30,
          .launch_us = 6};
}
// Sums in f32.
DeviceKind Rtx4090() {
  return {.name = "rtx4090-24gb",
          .peak_flops_per_us = 82.6e3 * kGiga,
          .peak_half_flops_per_us = 165.2e3 * kGiga,
          .num_multiprocessors = 128,
          .elementwise_per_us = 82.6e3 / 2 * kGiga,
          .memory_bytes_per_us = kReachedOfMemory * 1008 * kGiga,
          .memory_bytes = int64_t{24} << 30,
          .launch_us = 4};
}

// By a part of the name that the driver has for it, the first that fits.
std::optional<DeviceKind> GpuCalled(std::string_view name) {
  const std::pair<std::string_view, DeviceKind> known[] = {{"V100", V100(16)},
                                                           {"A100-SXM4-40GB", A100(40)},
                                                           {"A100-PCIE-40GB", A100(40)},
                                                           {"A100", A100(80)},
                                                           {"H100", H100()},
                                                           {"H200", H200()},
                                                           {"B200", B200()},
                                                           {"4090", Rtx4090()},
                                                           {"1080 Ti", Gtx1080Ti()}};
  const auto found = std::ranges::find_if(
      known, [&](const auto& gpu) { return name.find(gpu.first) != std::string_view::npos; });
  if (found == std::end(known)) return std::nullopt;
  return found->second;
}

// What runs in f32 at XLA's default precision is multiplied in bf16.
DeviceKind Tpu(std::string_view name, double peak_teraflops, double gigabytes_per_second,
               int64_t gibibytes) {
  return {.name = fmt::format("{}-{}gb", name, gibibytes),
          .peak_flops_per_us = peak_teraflops * 1e3 * kGiga,
          .peak_half_flops_per_us = peak_teraflops * 1e3 * kGiga,
          .memory_bytes_per_us = gigabytes_per_second * kGiga,
          .memory_bytes = gibibytes << 30,
          .launch_us = 1};
}

// Eight V100s in two quads: a device has six NVLinks, one or two to each other one of its quad and
// to one of the other quad; the rest it reaches through the host. Counted by NCCL's description of
// the topology (github.com/NVIDIA/nccl/issues/671) and by "Figure 3. Link topology of p3.16xlarge"
// of MXNet's wiki.
std::vector<std::vector<double>> PairsOfTwoQuads(double link_bytes_per_us,
                                                 double host_bytes_per_us) {
  constexpr int kLinks[8][8] = {{0, 1, 1, 2, 2, 0, 0, 0}, {1, 0, 2, 1, 0, 2, 0, 0},
                                {1, 2, 0, 2, 0, 0, 1, 0}, {2, 1, 2, 0, 0, 0, 0, 1},
                                {2, 0, 0, 0, 0, 1, 1, 2}, {0, 2, 0, 0, 1, 0, 2, 1},
                                {0, 0, 1, 0, 1, 2, 0, 2}, {0, 0, 0, 1, 2, 1, 2, 0}};
  std::vector<std::vector<double>> pairs;
  for (int from = 0; from < 8; ++from) {
    std::vector<double>& row = pairs.emplace_back();
    for (int to = 0; to < 8; ++to) {
      const int links = kLinks[from][to];
      row.push_back(from == to ? 0 : links > 0 ? links * link_bytes_per_us : host_bytes_per_us);
    }
  }
  return pairs;
}

// Links per direction and device, about nine tenths of what the vendor states: NVLink 2 to 5 with
// 150, 300, 450 and 900 GB/s. Where devices have PCIe alone (3.0 x16: 15.8 GB/s, 4.0 x16: 31.5
// GB/s), what goes from one to another passes the host's memory. Between hosts what one device can
// use of its host's network cards, as the cloud states it, or one 400 Gbit/s InfiniBand card for
// each device of a DGX. TPUs have a link to each neighbour in a torus: of what the vendor states
// per chip (v4 2,400, v5e 1,600, v5p 4,800, v6e 3,584 Gbit/s) a sixth in three dimensions, a
// quarter in two; dimensions that are a multiple of four devices (v4, v5p) or sixteen (v5e, v6e)
// wrap around. What leaves the torus goes through the data centre's network, 50 Gbit/s a chip.
std::vector<Cluster> Presets() {
  const auto eight = [](const char* name, const DeviceKind& device, Link intra_host,
                        double latency_us, double device_gbits, double host_gbits) {
    return Cluster{.name = name,
                   .devices_per_host = 8,
                   .device = device,
                   .intra_host = intra_host,
                   .inter_host = {latency_us, device_gbits / 8 * kGiga},
                   .host_network_bytes_per_us = host_gbits / 8 * kGiga};
  };
  const auto torus = [](const char* name, const DeviceKind& device, double gigabytes_per_second,
                        Torus smallest) {
    const int num_devices =
        std::accumulate(smallest.sizes.begin(), smallest.sizes.end(), 1, std::multiplies<>());
    return Cluster{.name = name,
                   .devices_per_host = num_devices,
                   .device = device,
                   .torus = std::move(smallest),
                   .intra_host = {1, gigabytes_per_second * kGiga},
                   .inter_host = {50, 50.0 / 8 * kGiga}};
  };
  const auto two_quads = [](Cluster of_eight) {
    const double link_bytes_per_us = of_eight.intra_host.bytes_per_us / 6;
    of_eight.pair_bytes_per_us = PairsOfTwoQuads(link_bytes_per_us, 10 * kGiga);
    return of_eight;
  };
  const Torus in_three = {.sizes = {2, 2, 1}, .wraps_at = 4};
  const Torus in_two = {.sizes = {2, 4}, .wraps_at = 16};
  return {
      two_quads(eight("p3.16xlarge", V100(16), {5, 130 * kGiga}, 30, 25, 25)),
      eight("p4d.24xlarge", A100(40), {5, 270 * kGiga}, 20, 100, 400),
      eight("p4de.24xlarge", A100(80), {5, 270 * kGiga}, 20, 100, 400),
      eight("p5.48xlarge", H100(), {4, 400 * kGiga}, 15, 400, 3200),
      eight("p5en.48xlarge", H200(), {4, 400 * kGiga}, 15, 400, 3200),
      eight("p6-b200.48xlarge", B200(), {4, 800 * kGiga}, 15, 400, 3200),
      two_quads(eight("dgx-1v", V100(32), {5, 130 * kGiga}, 5, 100, 400)),
      eight("dgx-h100", H100(), {4, 400 * kGiga}, 5, 400, 3200),
      eight("dgx-h200", H200(), {4, 400 * kGiga}, 5, 400, 3200),
      eight("dgx-b200", B200(), {4, 800 * kGiga}, 5, 400, 3200),
      eight("1080ti", Gtx1080Ti(), {15, 7 * kGiga}, 40, 10, 10),
      eight("4090", Rtx4090(), {12, 14 * kGiga}, 30, 25, 25),
      torus("tpu-v4", Tpu("tpu-v4", 275, 1228, 32), 45, in_three),
      torus("tpu-v5e", Tpu("tpu-v5e", 197, 819, 16), 45, in_two),
      torus("tpu-v5p", Tpu("tpu-v5p", 459, 2765, 95), 90, in_three),
      torus("tpu-v6e", Tpu("tpu-v6e", 918, 1640, 32), 90, in_two),
  };
}

absl::StatusOr<int> ParseCount(std::string_view cluster, std::string_view text,
                               std::string_view what) {
  int count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || end != text.data() + text.size() || count < 1) {
    return InvalidArgument("cluster \"{}\": \"{}\" is no number of {}", cluster, text, what);
  }
  return count;
}

constexpr std::pair<std::string_view, std::string_view> kPresetOfGpu[] = {
    {"v100", "p3.16xlarge"},   {"a100", "p4d.24xlarge"},     {"h100", "p5.48xlarge"},
    {"h200", "p5en.48xlarge"}, {"b200", "p6-b200.48xlarge"},
};

// Edits of one character that make one text of the other (Levenshtein).
size_t NumEdits(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0]++;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

Json ToJsonObject(const Link& link) {
  return {{"latency_us", link.latency_us}, {"bytes_per_us", link.bytes_per_us}};
}

// Beyond, numbers of devices would not fit where they are counted.
constexpr int64_t kMostDevices = int64_t{1} << 30;

// Beyond, doubles are not all whole numbers and integers do not fit.
absl::Status CheckWhole(const Json& number, const char* name, double largest) {
  if (!number.is_number()) return absl::OkStatus();  // reading it says so
  const auto value = number.get<double>();
  if (value == std::floor(value) && std::abs(value) <= largest) return absl::OkStatus();
  return InvalidArgument("cluster: {} is {}, not a whole number of at most {}", name, value,
                         largest);
}

absl::Status CheckWholeNumbers(const Json& json) {
  const auto check = [](const Json& object, const char* key, double largest) {
    return object.contains(key) ? CheckWhole(object[key], key, largest) : absl::OkStatus();
  };
  RETURN_IF_ERROR(check(json, "num_hosts", kMostDevices));
  RETURN_IF_ERROR(check(json, "devices_per_host", kMostDevices));
  RETURN_IF_ERROR(check(json.at("device"), "num_multiprocessors", kMostDevices));
  RETURN_IF_ERROR(check(json.at("device"), "memory_bytes", 1e15));
  if (!json.contains("torus")) return absl::OkStatus();
  RETURN_IF_ERROR(check(json["torus"], "wraps_at", kMostDevices));
  for (const Json& size : json["torus"].at("sizes"))
    RETURN_IF_ERROR(CheckWhole(size, "torus.sizes", kMostDevices));
  return absl::OkStatus();
}

Link LinkFromJson(const Json& json) {
  return {.latency_us = json.at("latency_us"), .bytes_per_us = json.at("bytes_per_us")};
}

absl::Status CheckTorus(const Cluster& cluster) {
  if (cluster.torus.sizes.empty()) return absl::OkStatus();
  int64_t product = 1;
  for (const int size : cluster.torus.sizes) {
    if (size < 1 || product > kMostDevices / size) {
      return InvalidArgument("cluster: the torus {} has a size below 1, or more than {} devices",
                             fmt::join(cluster.torus.sizes, " x "), kMostDevices);
    }
    product *= size;
  }
  if (cluster.torus.wraps_at < 1) {
    return InvalidArgument("cluster: torus.wraps_at is {}, not at least 1", cluster.torus.wraps_at);
  }
  if (product == cluster.devices_per_host) return absl::OkStatus();
  return InvalidArgument("cluster: the torus {} has {} devices, devices_per_host says {}",
                         fmt::join(cluster.torus.sizes, " x "), product, cluster.devices_per_host);
}

absl::Status CheckPairs(const Cluster& cluster) {
  const std::vector<std::vector<double>>& pairs = cluster.pair_bytes_per_us;
  if (pairs.empty()) return absl::OkStatus();
  const auto num_devices = static_cast<size_t>(cluster.devices_per_host);
  const auto has_all = [&](const auto& row) { return row.size() == num_devices; };
  if (pairs.size() != num_devices || !std::ranges::all_of(pairs, has_all)) {
    return InvalidArgument("cluster: pair_bytes_per_us does not have {0} rows of {0} devices",
                           num_devices);
  }
  if (!cluster.torus.sizes.empty()) {
    return InvalidArgument("cluster: the devices of a torus have no pair_bytes_per_us");
  }
  for (size_t from = 0; from < num_devices; ++from) {
    for (size_t to = 0; to < from; ++to) {
      if (pairs[from][to] > 0 && pairs[from][to] == pairs[to][from]) continue;
      return InvalidArgument(
          "cluster: pair_bytes_per_us[{0}][{1}] is {2} and [{1}][{0}] {3}, not the same above 0",
          from, to, pairs[from][to], pairs[to][from]);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckCluster(const Cluster& cluster) {
  if (cluster.num_hosts < 1 || cluster.devices_per_host < 1) {
    return InvalidArgument(
        "cluster: num_hosts and devices_per_host must be at least 1, got {} and {}",
        cluster.num_hosts, cluster.devices_per_host);
  }
  if (int64_t{cluster.num_hosts} * cluster.devices_per_host > kMostDevices) {
    return InvalidArgument("cluster: {} hosts of {} devices are more than {} devices",
                           cluster.num_hosts, cluster.devices_per_host, kMostDevices);
  }
  const bool times = cluster.device.launch_us >= 0 && cluster.intra_host.latency_us >= 0 &&
                     cluster.inter_host.latency_us >= 0;
  if (!times || cluster.device.memory_bytes < 0) {
    return InvalidArgument(
        "cluster: launch_us, latency_us and memory_bytes must be 0 or more (memory_bytes 0: not "
        "known, no limit)");
  }
  const bool rates = cluster.device.peak_flops_per_us > 0 &&
                     cluster.device.memory_bytes_per_us > 0 &&
                     cluster.intra_host.bytes_per_us > 0 && cluster.inter_host.bytes_per_us > 0 &&
                     cluster.host_network_bytes_per_us >= 0;
  if (!rates)
    return InvalidArgument(
        "cluster: every rate (peak_flops_per_us, memory_bytes_per_us, bytes_per_us) must be "
        "positive, host_network_bytes_per_us 0 (no limit of its own) or more");
  for (const double efficiency : {cluster.device.f32_efficiency, cluster.device.half_efficiency}) {
    if (efficiency > 0 && efficiency <= 1) continue;
    return InvalidArgument(
        "cluster: device.f32_efficiency is {} and device.half_efficiency {}, not both above 0 and "
        "at most 1",
        cluster.device.f32_efficiency, cluster.device.half_efficiency);
  }
  if (cluster.device.num_multiprocessors < 0 || !(cluster.device.elementwise_per_us >= 0)) {
    return InvalidArgument(
        "cluster: device.num_multiprocessors is {} and device.elementwise_per_us {}, not both 0 "
        "(not known) or more",
        cluster.device.num_multiprocessors, cluster.device.elementwise_per_us);
  }
  RETURN_IF_ERROR(CheckPairs(cluster));
  return CheckTorus(cluster);
}

// "4x4x8" behind the name of a torus of three dimensions.
absl::Status SetTorus(std::string_view text, std::string_view sizes, Cluster& preset) {
  std::vector<int> given;
  for (size_t begin = 0; begin <= sizes.size();) {
    const size_t end = std::min(sizes.find('x', begin), sizes.size());
    ASSIGN_OR_RETURN(given.emplace_back(), ParseCount(text, sizes.substr(begin, end - begin),
                                                      "devices along a dimension"));
    begin = end + 1;
  }
  if (given.size() != preset.torus.sizes.size()) {
    return InvalidArgument(
        "cluster \"{}\": {} is a torus of {} dimensions, so \":\" and {} sizes with x between them "
        "follow its name",
        text, preset.name, preset.torus.sizes.size(), preset.torus.sizes.size());
  }
  int64_t product = 1;
  for (const int size : given) product = std::min(kMostDevices, product * size);
  preset.torus.sizes = std::move(given);
  preset.devices_per_host = static_cast<int>(product);
  return CheckCluster(preset);
}

}  // namespace

Cluster Cluster::FirstDevices(int num_devices) const {
  Cluster first = *this;
  if (num_devices > devices_per_host) {
    first.num_hosts = num_devices / devices_per_host;
    return first;
  }
  first.num_hosts = 1;
  first.devices_per_host = num_devices;
  if (pair_bytes_per_us.empty()) return first;
  first.pair_bytes_per_us.resize(num_devices);
  for (std::vector<double>& row : first.pair_bytes_per_us) row.resize(num_devices);
  return first;
}

// Nominal figures of one desktop core or two; `minka profile` measures real ones.
Cluster Cluster::Local(int num_devices) {
  return {.name = kLocalCluster,
          .devices_per_host = num_devices,
          .device = {.name = kCpuDevice,
                     .peak_flops_per_us = 100 * kGiga,
                     .memory_bytes_per_us = 15 * kGiga,
                     .launch_us = 2},
          .shared_compute_pool = true,
          .intra_host = {20, 2 * kGiga},
          .inter_host = {20, 2 * kGiga}};
}

// Links as those of PCIe 4.0; profiles of several GPUs measure real ones.
Cluster Cluster::LocalCuda(int num_devices) {
  return {.name = kLocalCudaCluster,
          .devices_per_host = num_devices,
          .device = {.name = "cuda"},
          .intra_host = {12, 14 * kGiga},
          .inter_host = {30, 3 * kGiga}};
}

bool Cluster::SetGpu(std::string_view name, int64_t memory_bytes) {
  const std::optional<DeviceKind> known = GpuCalled(name);
  if (known) device = *known;
  device.name = name;
  device.memory_bytes = memory_bytes;
  return known.has_value();
}

absl::StatusOr<Cluster> Cluster::Preset(std::string_view text) {
  const size_t colon = text.find(':');
  const std::string_view given = text.substr(0, colon);
  const auto of_gpu =
      std::ranges::find(kPresetOfGpu, given, &std::pair<std::string_view, std::string_view>::first);
  const std::string_view name = of_gpu == std::end(kPresetOfGpu) ? given : of_gpu->second;
  std::vector<Cluster> presets = Presets();
  const auto preset = std::ranges::find(presets, name, &Cluster::name);
  if (preset == presets.end()) {
    std::vector<std::string> known;
    for (const Cluster& other : presets) known.push_back(other.name);
    const std::string nearest = std::ranges::min(
        known, {}, [&](const std::string& other) { return NumEdits(name, other); });
    return NotFound(
        "unknown cluster \"{}\", did you mean {}? known: {}; with \":HOSTS\" for several hosts, "
        "\":HOSTSxDEVICES\" for some devices of each, \":2x4\" and the like for the sizes of a "
        "torus; or a JSON file",
        text, nearest, fmt::join(known, ", "));
  }
  if (colon == std::string_view::npos) return *preset;
  const std::string_view size = text.substr(colon + 1);
  if (!preset->torus.sizes.empty()) {
    RETURN_IF_ERROR(SetTorus(text, size, *preset));
    return *preset;
  }
  const size_t cross = size.find('x');
  ASSIGN_OR_RETURN(preset->num_hosts, ParseCount(text, size.substr(0, cross), "hosts"));
  if (cross != std::string_view::npos) {
    ASSIGN_OR_RETURN(const int devices,
                     ParseCount(text, size.substr(cross + 1), "devices of a host"));
    if (devices > preset->devices_per_host) {
      return InvalidArgument("cluster \"{}\": a host of {} has {} devices, not {}", text, name,
                             preset->devices_per_host, devices);
    }
    const int num_hosts = preset->num_hosts;
    *preset = preset->FirstDevices(devices);
    preset->num_hosts = num_hosts;
  }
  RETURN_IF_ERROR(CheckCluster(*preset));
  return *preset;
}

std::string Cluster::ToJson() const {
  Json json = {{"schema_version", 1},
               {"name", name},
               {"num_hosts", num_hosts},
               {"devices_per_host", devices_per_host},
               {"shared_compute_pool", shared_compute_pool},
               {"device",
                {{"name", device.name},
                 {"peak_flops_per_us", device.peak_flops_per_us},
                 {"peak_half_flops_per_us", device.peak_half_flops_per_us},
                 {"f32_efficiency", device.f32_efficiency},
                 {"half_efficiency", device.half_efficiency},
                 {"num_multiprocessors", device.num_multiprocessors},
                 {"elementwise_per_us", device.elementwise_per_us},
                 {"has_bf16", device.has_bf16},
                 {"memory_bytes_per_us", device.memory_bytes_per_us},
                 {"memory_bytes", device.memory_bytes},
                 {"launch_us", device.launch_us}}},
               {"intra_host", ToJsonObject(intra_host)},
               {"inter_host", ToJsonObject(inter_host)},
               {"host_network_bytes_per_us", host_network_bytes_per_us}};
  if (!pair_bytes_per_us.empty()) json["pair_bytes_per_us"] = pair_bytes_per_us;
  if (!torus.sizes.empty()) json["torus"] = {{"sizes", torus.sizes}, {"wraps_at", torus.wraps_at}};
  return json.dump(1) + "\n";
}

absl::StatusOr<Cluster> Cluster::FromJson(std::string_view text) {
  const absl::StatusOr<Json> parsed = ParseJson(text);
  if (!parsed.ok()) return WithContext(parsed.status(), "cluster");
  const Json& json = *parsed;
  try {
    const Json& device = json.at("device");
    RETURN_IF_ERROR(CheckWholeNumbers(json));
    Cluster cluster{
        .name = json.at("name"),
        .num_hosts = json.at("num_hosts"),
        .devices_per_host = json.at("devices_per_host"),
        .device = {.name = device.at("name"),
                   .peak_flops_per_us = device.at("peak_flops_per_us"),
                   .peak_half_flops_per_us = device.value("peak_half_flops_per_us", 0.0),
                   .f32_efficiency = device.value("f32_efficiency", 1.0),
                   .half_efficiency = device.value("half_efficiency", 1.0),
                   .num_multiprocessors = device.value("num_multiprocessors", 0),
                   .elementwise_per_us = device.value("elementwise_per_us", 0.0),
                   .has_bf16 = device.value("has_bf16", true),
                   .memory_bytes_per_us = device.at("memory_bytes_per_us"),
                   .memory_bytes = device.value("memory_bytes", int64_t{0}),
                   .launch_us = device.value("launch_us", 1.0)},
        .shared_compute_pool = json.value("shared_compute_pool", false),
        .intra_host = LinkFromJson(json.at("intra_host")),
        .pair_bytes_per_us = json.value("pair_bytes_per_us", std::vector<std::vector<double>>()),
        .inter_host = LinkFromJson(json.at("inter_host")),
        .host_network_bytes_per_us = json.value("host_network_bytes_per_us", 0.0)};
    if (const auto torus = json.find("torus"); torus != json.end()) {
      cluster.torus = {.sizes = torus->at("sizes"), .wraps_at = torus->value("wraps_at", 1)};
    }
    RETURN_IF_ERROR(CheckCluster(cluster));
    return cluster;
  } catch (const Json::exception& error) {
    return InvalidArgument("cluster: {}", error.what());
  }
}

absl::StatusOr<Cluster> Cluster::FromFile(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  auto cluster = FromJson(text);
  if (!cluster.ok()) return WithContext(cluster.status(), path);
  return cluster;
}

absl::StatusOr<Cluster> Cluster::Named(const std::string& name) {
  std::error_code ignored;
  const bool is_file = name.ends_with(".json") || std::filesystem::exists(name, ignored);
  return is_file ? FromFile(name) : Preset(name);
}

absl::StatusOr<std::vector<Cluster>> Cluster::OfKinds(const std::string& names) {
  std::vector<Cluster> kinds;
  std::error_code ignored;
  if (std::filesystem::exists(names, ignored)) {
    ASSIGN_OR_RETURN(kinds.emplace_back(), FromFile(names));
    return kinds;
  }
  for (size_t begin = 0; begin <= names.size();) {
    const size_t end = std::min(names.find(',', begin), names.size());
    const std::string name = names.substr(begin, end - begin);
    begin = end + 1;
    if (name == kLocalCluster || name == kLocalCudaCluster) {
      return InvalidArgument("cluster \"{}\": {} stands alone, not beside hosts of other kinds",
                             names, name);
    }
    ASSIGN_OR_RETURN(kinds.emplace_back(), Named(name));
    if (kinds.back().device.name.empty() && name != names)
      return InvalidArgument("cluster \"{}\": the devices of {} have no name", names, name);
    if (kinds.back().platform() == kinds.front().platform()) continue;
    return InvalidArgument("cluster \"{}\": programs for {} and {} go through different compilers",
                           names, kinds.front().device.name, kinds.back().device.name);
  }
  if (kinds.size() <= kMostKinds) return kinds;
  return InvalidArgument("cluster \"{}\" has hosts of {} kinds; {} can be planned for at most",
                         names, kinds.size(), kMostKinds);
}

}  // namespace minka
