#include "minka/cluster/cluster.h"

#include <charconv>
#include <nlohmann/json.hpp>

#include "minka/base/file.h"
#include "minka/base/json.h"
#include "minka/base/status.h"

namespace minka {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kGiga = 1e3;  // 1 GB/s or 1 GFLOP/s per us, in bytes or flops

DeviceKind V100() {
  return {.name = "v100-16gb",
          .peak_flops_per_us = 15.7e3 * kGiga,
          .peak_half_flops_per_us = 125e3 * kGiga,
          .has_bf16 = false,
          .memory_bytes_per_us = 900 * kGiga,
          .memory_bytes = int64_t{16} << 30,
          .launch_us = 5};
}
DeviceKind A100(int64_t gibibytes) {
  return {.name = fmt::format("a100-{}gb", gibibytes),
          .peak_flops_per_us = 156e3 * kGiga,
          .peak_half_flops_per_us = 312e3 * kGiga,
          .memory_bytes_per_us = (gibibytes > 40 ? 2039 : 1555) * kGiga,
          .memory_bytes = gibibytes << 30,
          .launch_us = 4};
}
DeviceKind H100() {
  return {.name = "h100-80gb",
          .peak_flops_per_us = 494e3 * kGiga,
          .peak_half_flops_per_us = 989e3 * kGiga,
          .memory_bytes_per_us = 3350 * kGiga,
          .memory_bytes = int64_t{80} << 30,
          .launch_us = 3};
}

// Vendors' data sheets: dense tensor-core peaks (TF32 for f32 where there is one), memory
// bandwidth; links per direction and device: NVLink half of the bidirectional figure; between hosts
// what one device can use of its host's network cards.
std::vector<Cluster> Presets() {
  return {
      {.name = "p3.16xlarge",
       .devices_per_host = 8,
       .device = V100(),
       .intra_host = {5, 130 * kGiga},
       .inter_host = {30, 25.0 / 8 * kGiga},
       .host_network_bytes_per_us = 25.0 / 8 * kGiga},
      {.name = "p4d.24xlarge",
       .devices_per_host = 8,
       .device = A100(40),
       .intra_host = {5, 270 * kGiga},
       .inter_host = {20, 100.0 / 8 * kGiga},
       .host_network_bytes_per_us = 400.0 / 8 * kGiga},
      {.name = "p4de.24xlarge",
       .devices_per_host = 8,
       .device = A100(80),
       .intra_host = {5, 270 * kGiga},
       .inter_host = {20, 100.0 / 8 * kGiga},
       .host_network_bytes_per_us = 400.0 / 8 * kGiga},
      {.name = "p5.48xlarge",
       .devices_per_host = 8,
       .device = H100(),
       .intra_host = {4, 400 * kGiga},
       .inter_host = {15, 400.0 / 8 * kGiga},
       .host_network_bytes_per_us = 3200.0 / 8 * kGiga},
  };
}

Json ToJsonObject(const Link& link) {
  return {{"latency_us", link.latency_us}, {"bytes_per_us", link.bytes_per_us}};
}

Link LinkFromJson(const Json& json) {
  return {.latency_us = json.at("latency_us"), .bytes_per_us = json.at("bytes_per_us")};
}

// Beyond, numbers of devices would not fit where they are counted.
constexpr int64_t kMostDevices = int64_t{1} << 30;

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
  const bool rates = cluster.device.peak_flops_per_us > 0 &&
                     cluster.device.memory_bytes_per_us > 0 &&
                     cluster.intra_host.bytes_per_us > 0 && cluster.inter_host.bytes_per_us > 0 &&
                     cluster.host_network_bytes_per_us >= 0;
  if (!rates)
    return InvalidArgument(
        "cluster: every rate (peak_flops_per_us, memory_bytes_per_us, bytes_per_us) must be "
        "positive, host_network_bytes_per_us 0 (no limit of its own) or more");
  return absl::OkStatus();
}

}  // namespace

// Nominal figures of one desktop core or two; `minka profile` measures real ones.
Cluster Cluster::Local(int num_devices) {
  return {.name = "local",
          .devices_per_host = num_devices,
          .device = {.name = kCpuDevice,
                     .peak_flops_per_us = 100 * kGiga,
                     .memory_bytes_per_us = 15 * kGiga,
                     .launch_us = 2},
          .shared_compute_pool = true,
          .intra_host = {20, 2 * kGiga},
          .inter_host = {20, 2 * kGiga}};
}

absl::StatusOr<Cluster> Cluster::Preset(std::string_view text) {
  const size_t colon = text.find(':');
  int hosts = 1;
  if (colon != std::string_view::npos) {
    const std::string_view count = text.substr(colon + 1);
    const auto [end, error] = std::from_chars(count.data(), count.data() + count.size(), hosts);
    if (error != std::errc() || end != count.data() + count.size() || hosts < 1) {
      return InvalidArgument("cluster \"{}\": \"{}\" is no number of hosts", text, count);
    }
  }
  std::string known;
  for (Cluster& preset : Presets()) {
    if (preset.name == text.substr(0, colon)) {
      preset.num_hosts = hosts;
      RETURN_IF_ERROR(CheckCluster(preset));
      return preset;
    }
    known += (known.empty() ? "" : ", ") + preset.name;
  }
  return NotFound(
      "unknown cluster \"{}\"; known: {} (with \":HOSTS\" for several hosts), or a JSON file", text,
      known);
}

std::string Cluster::ToJson() const {
  const Json json = {{"schema_version", 1},
                     {"name", name},
                     {"num_hosts", num_hosts},
                     {"devices_per_host", devices_per_host},
                     {"shared_compute_pool", shared_compute_pool},
                     {"device",
                      {{"name", device.name},
                       {"peak_flops_per_us", device.peak_flops_per_us},
                       {"peak_half_flops_per_us", device.peak_half_flops_per_us},
                       {"has_bf16", device.has_bf16},
                       {"memory_bytes_per_us", device.memory_bytes_per_us},
                       {"memory_bytes", device.memory_bytes},
                       {"launch_us", device.launch_us}}},
                     {"intra_host", ToJsonObject(intra_host)},
                     {"inter_host", ToJsonObject(inter_host)},
                     {"host_network_bytes_per_us", host_network_bytes_per_us}};
  return json.dump(1) + "\n";
}

absl::StatusOr<Cluster> Cluster::FromJson(std::string_view text) {
  const absl::StatusOr<Json> parsed = ParseJson(text);
  if (!parsed.ok()) return WithContext(parsed.status(), "cluster");
  const Json& json = *parsed;
  try {
    const Json& device = json.at("device");
    Cluster cluster{
        .name = json.at("name"),
        .num_hosts = json.at("num_hosts"),
        .devices_per_host = json.at("devices_per_host"),
        .device = {.name = device.at("name"),
                   .peak_flops_per_us = device.at("peak_flops_per_us"),
                   .peak_half_flops_per_us = device.value("peak_half_flops_per_us", 0.0),
                   .has_bf16 = device.value("has_bf16", true),
                   .memory_bytes_per_us = device.at("memory_bytes_per_us"),
                   .memory_bytes = device.value("memory_bytes", int64_t{0}),
                   .launch_us = device.value("launch_us", 1.0)},
        .shared_compute_pool = json.value("shared_compute_pool", false),
        .intra_host = LinkFromJson(json.at("intra_host")),
        .inter_host = LinkFromJson(json.at("inter_host")),
        .host_network_bytes_per_us = json.value("host_network_bytes_per_us", 0.0)};
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

}  // namespace minka
