#include "minka/cost/cross_mesh_load.h"

#include <algorithm>
#include <limits>

namespace minka {
namespace {

std::vector<int> HostsOf(const PlacedMesh& placed, int first_host) {
  std::vector<int> hosts;
  for (int64_t device = 0; device < placed.mesh.num_devices(); ++device) {
    const int64_t host = (placed.first_device + device) / placed.cluster.devices_per_host;
    hosts.push_back(first_host + static_cast<int>(host));
  }
  return hosts;
}

// So many bytes take as long as the link's latency.
int64_t BytesOfLatency(const Link& link) {
  return static_cast<int64_t>(link.latency_us * link.bytes_per_us);
}

// Of a message from a host of the one to a host of the other.
Link SlowerOf(const Link& one, const Link& other) {
  return {.latency_us = std::max(one.latency_us, other.latency_us),
          .bytes_per_us = std::min(one.bytes_per_us, other.bytes_per_us)};
}

}  // namespace

CrossMeshLoad::CrossMeshLoad(const PlacedMesh& from, const PlacedMesh& to)
    : from_cluster_(from.cluster),
      to_cluster_(to.cluster),
      from_{.mesh = from.mesh, .hosts = HostsOf(from, 0)},
      to_{.mesh = to.mesh, .hosts = HostsOf(to, is_one_cluster() ? 0 : from.cluster.num_hosts)},
      sent_(from_.hosts.size()),
      relayed_(to_.hosts.size()),
      received_(to_.hosts.size()),
      from_first_device_(from.first_device),
      to_first_device_(to.first_device) {
  options_.sent_bytes.resize(sent_.size());
  options_.min_relay_bytes = BytesOfLatency(LinkBetweenHosts());
  // Devices of a CPU have their process's memory in common: nothing is gained by cutting.
  if (from.cluster.platform() != Platform::kCpu) {
    const auto is_first_host = [&](int host) { return host == from_.hosts.front(); };
    const bool is_one_host = std::ranges::all_of(from_.hosts, is_first_host) &&
                             std::ranges::all_of(to_.hosts, is_first_host);
    options_.min_piece_bytes =
        BytesOfLatency(is_one_host ? from.cluster.intra_host : LinkBetweenHosts());
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

// Between devices of a host both of the sender and the receiver are of the second cluster.
void CrossMeshLoad::CarryWithinHost(int64_t from, int64_t to, double bytes) {
  if (!to_cluster_.pair_bytes_per_us.empty()) between_[{from, to}] += bytes;
}

const Cluster& CrossMeshLoad::ClusterOfHost(int host) const {
  return is_one_cluster() || host < from_cluster_.num_hosts ? from_cluster_ : to_cluster_;
}

Link CrossMeshLoad::LinkBetweenHosts() const {
  return SlowerOf(from_cluster_.inter_host, to_cluster_.inter_host);
}

double CrossMeshLoad::Us() const {
  if (!is_used_) return 0;
  double slowest = 0;
  const auto add_devices = [&](const std::vector<Bytes>& devices, const Cluster& cluster) {
    for (const Bytes& bytes : devices) {
      slowest = std::max(slowest, bytes.within_host / cluster.intra_host.bytes_per_us +
                                      bytes.between_hosts / cluster.inter_host.bytes_per_us);
    }
  };
  add_devices(sent_, from_cluster_);
  add_devices(relayed_, to_cluster_);
  add_devices(received_, to_cluster_);
  for (const auto& [devices, bytes] : between_) {
    slowest =
        std::max(slowest, bytes / to_cluster_.BytesPerUsBetween(devices.first, devices.second));
  }
  for (const auto* hosts : {&left_, &entered_}) {
    for (const auto& [host, bytes] : *hosts) {
      const double rate = ClusterOfHost(host).host_network_bytes_per_us;
      if (rate > 0) slowest = std::max(slowest, bytes / rate);
    }
  }
  return slowest + (left_.empty() ? to_cluster_.intra_host : LinkBetweenHosts()).latency_us;
}

double LeastSendUs(int64_t bytes, const PartOfCluster& before, const PartOfCluster& behind,
                   bool crosses_hosts) {
  if (bytes <= 0) return 0;
  double rate = std::numeric_limits<double>::infinity(), latency_us = 0;
  for (const auto& [cluster, num_devices] : {before, behind}) {
    const Link& link = crosses_hosts ? cluster.inter_host : cluster.intra_host;
    latency_us = std::max(latency_us, link.latency_us);
    rate = std::min(rate, static_cast<double>(num_devices) * link.bytes_per_us);
    if (!crosses_hosts || cluster.host_network_bytes_per_us <= 0) continue;
    const int64_t num_hosts = std::max<int64_t>(1, num_devices / cluster.devices_per_host);
    rate = std::min(rate, static_cast<double>(num_hosts) * cluster.host_network_bytes_per_us);
  }
  return latency_us + static_cast<double>(bytes) / rate;
}

}  // namespace minka
