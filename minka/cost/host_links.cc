#include "minka/cost/host_links.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace minka {
namespace {

// Recursive halving and doubling (Thakur, Rabenseifner, Gropp: Optimization of Collective
// Communication Operations in MPICH, 2005): with n members, latency L per message and w bytes per
// us, for B bytes as in StepWork,
//   all-reduce                  2 log2(n) L + 2 (n-1)/n B/w
//   all-gather, reduce-scatter    log2(n) L +   (n-1)/n B/w
//   all-to-all (pairwise)           (n-1) L +   (n-1)/n B/w
double OnOneLink(ReshardKind kind, double bytes, double n, const Link& link) {
  const double moved = (n - 1) / n * bytes / link.bytes_per_us;
  const double rounds = std::ceil(std::log2(n));
  if (kind == ReshardKind::kAllReduce) return 2 * (rounds * link.latency_us + moved);
  return (kind == ReshardKind::kAllToAll ? n - 1 : rounds) * link.latency_us + moved;
}

// Sums are made within each host first, every member completing its part between the hosts, and
// gathered within each host at last, as NCCL's trees and rings do. For 2 GB on 4 hosts of 8 A100
// (12.5 GB/s per device between hosts, 270 within) that is 43 ms, 90 GB/s by NCCL's count (bus
// bandwidth); 90.6 were measured, and 12.5 between two devices of two hosts (Alpa's
// benchmark/cupy/profile_communication.py).
double InSteps(ReshardKind kind, double bytes, double hosts, double per_host, const Link& intra,
               const Link& inter) {
  if (kind != ReshardKind::kAllToAll) {
    return OnOneLink(kind, bytes / per_host, hosts, inter) +
           OnOneLink(kind, bytes, per_host, intra);
  }
  // Every member sends to each other one.
  const double part = bytes / (hosts * per_host);
  const double outside = (hosts - 1) * per_host, inside = per_host - 1;
  return outside * (inter.latency_us + part / inter.bytes_per_us) +
         inside * (intra.latency_us + part / intra.bytes_per_us);
}

}  // namespace

HostLinks::HostLinks(const Cluster& cluster, const Mesh& mesh)
    : cluster_(cluster), mesh_(mesh), inter_host_(cluster.inter_host) {
  const bool is_on_torus =
      !cluster.torus.sizes.empty() && mesh.num_devices() <= cluster.devices_per_host;
  if (is_on_torus) torus_.emplace(cluster.torus, cluster.intra_host, mesh);
  const int64_t on_one_host = std::min<int64_t>(mesh.num_devices(), cluster.devices_per_host);
  if (cluster.host_network_bytes_per_us > 0) {
    inter_host_.bytes_per_us =
        std::min(inter_host_.bytes_per_us,
                 cluster.host_network_bytes_per_us / static_cast<double>(on_one_host));
  }
  placements_.resize(size_t{1} << mesh.num_axes());
  for (size_t bits = 1; bits < placements_.size(); ++bits) {
    AxisSet axes;
    for (int axis = 0; axis < mesh.num_axes(); ++axis) {
      if (bits >> axis & 1) axes.Insert(axis);
    }
    placements_[bits] = PlacementsOf(axes);
  }
}

std::vector<HostLinks::Placement> HostLinks::PlacementsOf(AxisSet axes) const {
  const bool is_on_one_host = mesh_.num_devices() <= cluster_.devices_per_host;
  if (is_on_one_host && cluster_.pair_bytes_per_us.empty())
    return {{1, mesh_.size(axes), cluster_.intra_host.bytes_per_us}};
  std::vector<int> members;
  for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
    if (axes.contains(axis)) members.push_back(axis);
  }
  // A small mesh may lie anywhere in its host.
  const int64_t step = std::min<int64_t>(mesh_.num_devices(), cluster_.devices_per_host);
  std::set<Placement> distinct;
  for (const std::vector<int64_t>& group : mesh_.Groups(members)) {
    for (int64_t first = 0; first + step <= cluster_.devices_per_host; first += step)
      distinct.insert(PlacementOf(group, first));
  }
  return {distinct.begin(), distinct.end()};
}

// Of a mesh whose first device has that place in its host.
HostLinks::Placement HostLinks::PlacementOf(const std::vector<int64_t>& group,
                                            int64_t first_device) const {
  std::map<int64_t, std::vector<int64_t>> on_host;  // places
  for (const int64_t device : group) {
    const int64_t place = first_device + device;
    on_host[place / cluster_.devices_per_host].push_back(place % cluster_.devices_per_host);
  }
  const size_t first = on_host.begin()->second.size();
  Placement out{.num_hosts = static_cast<int64_t>(on_host.size()),
                .members_per_host = static_cast<int64_t>(first),
                .bytes_per_us = cluster_.intra_host.bytes_per_us};
  for (const auto& [host, places] : on_host) {
    if (places.size() != first) out.members_per_host = 0;
    out.bytes_per_us = std::min(out.bytes_per_us, RateWithin(places));
  }
  return out;
}

// Bytes go around rings, of which each takes one link from every device to another of the group and
// one back, so that there are as many as the device with the fewest links has.
double HostLinks::RateWithin(const std::vector<int64_t>& places) const {
  double least = cluster_.intra_host.bytes_per_us;
  if (cluster_.pair_bytes_per_us.empty() || places.size() < 2) return least;
  for (const int64_t from : places) {
    double all = 0;
    for (const int64_t to : places) all += from == to ? 0 : cluster_.pair_bytes_per_us[from][to];
    least = std::min(least, all);
  }
  return least;
}

double HostLinks::CollectiveUs(ReshardKind kind, double bytes, AxisSet axes) const {
  if (torus_) return torus_->CollectiveUs(kind, bytes, axes);
  double slowest = 0;
  const auto size = static_cast<double>(mesh_.size(axes));
  for (const Placement& placement : placements_[axes.bits()]) {
    slowest = std::max(slowest, OfPlacement(kind, bytes, size, placement));
  }
  return slowest;
}

double HostLinks::OfPlacement(ReshardKind kind, double bytes, double group_size,
                              const Placement& placement) const {
  const Link intra_host{cluster_.intra_host.latency_us, placement.bytes_per_us};
  if (placement.num_hosts == 1) return OnOneLink(kind, bytes, group_size, intra_host);
  const double flat = OnOneLink(kind, bytes, group_size, inter_host_);
  if (placement.members_per_host < 2) return flat;
  return std::min(
      flat, InSteps(kind, bytes, static_cast<double>(placement.num_hosts),
                    static_cast<double>(placement.members_per_host), intra_host, inter_host_));
}

}  // namespace minka
