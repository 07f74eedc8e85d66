#include "minka/cost/cross_mesh_load.h"

#include <algorithm>

namespace minka {
namespace {

std::vector<int> HostsOf(const Cluster& cluster, const Mesh& mesh, int64_t first_device) {
  std::vector<int> hosts;
  for (int64_t device = 0; device < mesh.num_devices(); ++device) {
    hosts.push_back(static_cast<int>((first_device + device) / cluster.devices_per_host));
  }
  return hosts;
}

// So many bytes take as long as the link's latency.
int64_t BytesOfLatency(const Link& link) {
  return static_cast<int64_t>(link.latency_us * link.bytes_per_us);
}

}  // namespace

CrossMeshLoad::CrossMeshLoad(const Cluster& cluster, const Mesh& from, int64_t from_first_device,
                             const Mesh& to, int64_t to_first_device)
    : cluster_(cluster),
      from_{.mesh = from, .hosts = HostsOf(cluster, from, from_first_device)},
      to_{.mesh = to, .hosts = HostsOf(cluster, to, to_first_device)},
      sent_(from_.hosts.size()),
      relayed_(to_.hosts.size()),
      received_(to_.hosts.size()),
      from_first_device_(from_first_device),
      to_first_device_(to_first_device) {
  options_.sent_bytes.resize(sent_.size());
  options_.min_relay_bytes = BytesOfLatency(cluster.inter_host);
  // Devices of a CPU have their process's memory in common: nothing is gained by cutting.
  if (cluster.platform() != Platform::kCpu) {
    const auto is_first_host = [&](int host) { return host == from_.hosts.front(); };
    const bool is_one_host = std::ranges::all_of(from_.hosts, is_first_host) &&
                             std::ranges::all_of(to_.hosts, is_first_host);
    options_.min_piece_bytes =
        BytesOfLatency(is_one_host ? cluster.intra_host : cluster.inter_host);
  }
}

void CrossMeshLoad::Add(const Shape& shape, const Sharding& from, const Sharding& to) {
  from_.sharding = from;
  to_.sharding = to;
  for (const TileTransfer& transfer : PlanCrossMesh(shape, from_, to_, options_)) {
    const int64_t bytes = transfer.box.num_elements() * ElementBytes(shape.type);
    if (!transfer.is_relayed) options_.sent_bytes[transfer.source] += bytes;
    tile_bytes_ += bytes;
    Carry(transfer, static_cast<double>(bytes));
  }
  is_used_ = true;
}

void CrossMeshLoad::Carry(const TileTransfer& transfer, double bytes) {
  const int64_t receiver = transfer.destinations.front();
  const int from_host = (transfer.is_relayed ? to_ : from_).hosts[transfer.source];
  const int to_host = to_.hosts[receiver];
  const auto way = from_host == to_host ? &Bytes::within_host : &Bytes::between_hosts;
  (transfer.is_relayed ? relayed_ : sent_)[transfer.source].*way += bytes;
  received_[receiver].*way += bytes;
  if (from_host != to_host) {
    left_[from_host] += bytes;
    entered_[to_host] += bytes;
  } else {
    const int64_t first = transfer.is_relayed ? to_first_device_ : from_first_device_;
    CarryWithinHost(first + transfer.source, to_first_device_ + receiver, bytes);
  }
  // Each copies from the one before, while that still receives.
  int64_t before = receiver;
  for (const int64_t device : transfer.destinations) {
    if (device == receiver) continue;
    received_[device].within_host += bytes;
    CarryWithinHost(to_first_device_ + before, to_first_device_ + device, bytes);
    before = device;
  }
}

void CrossMeshLoad::CarryWithinHost(int64_t from, int64_t to, double bytes) {
  if (!cluster_.pair_bytes_per_us.empty()) between_[{from, to}] += bytes;
}

double CrossMeshLoad::DeviceUs(const Bytes& bytes) const {
  return bytes.within_host / cluster_.intra_host.bytes_per_us +
         bytes.between_hosts / cluster_.inter_host.bytes_per_us;
}

double CrossMeshLoad::Us() const {
  if (!is_used_) return 0;
  double slowest = 0;
  for (const std::vector<Bytes>* devices : {&sent_, &relayed_, &received_}) {
    for (const Bytes& bytes : *devices) slowest = std::max(slowest, DeviceUs(bytes));
  }
  for (const auto& [devices, bytes] : between_) {
    slowest = std::max(slowest, bytes / cluster_.BytesPerUsBetween(devices.first, devices.second));
  }
  if (cluster_.host_network_bytes_per_us > 0) {
    for (const auto* hosts : {&left_, &entered_}) {
      for (const auto& [host, bytes] : *hosts) {
        slowest = std::max(slowest, bytes / cluster_.host_network_bytes_per_us);
      }
    }
  }
  return slowest + (left_.empty() ? cluster_.intra_host : cluster_.inter_host).latency_us;
}

double LeastSendUs(const Cluster& cluster, int64_t bytes, int64_t num_devices_before,
                   int64_t num_devices_behind, bool crosses_hosts) {
  if (bytes <= 0) return 0;
  const int64_t num_sharing = std::min(num_devices_before, num_devices_behind);
  const Link& link = crosses_hosts ? cluster.inter_host : cluster.intra_host;
  double rate = static_cast<double>(num_sharing) * link.bytes_per_us;
  if (crosses_hosts && cluster.host_network_bytes_per_us > 0) {
    const int64_t num_hosts = std::max<int64_t>(1, num_sharing / cluster.devices_per_host);
    rate = std::min(rate, static_cast<double>(num_hosts) * cluster.host_network_bytes_per_us);
  }
  return link.latency_us + static_cast<double>(bytes) / rate;
}

}  // namespace minka
