// What collectives cost on the links within and between a cluster's hosts.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "minka/cluster/cluster.h"
#include "minka/cost/torus_links.h"
#include "minka/sharding/mesh.h"
#include "minka/sharding/reshard.h"

namespace minka {

// A mesh laid over the cluster's devices in order. Thread-safe.
class HostLinks {
 public:
  HostLinks(const Cluster& cluster, const Mesh& mesh);

  // Microseconds of one collective over groups along `axes`, all groups at once, the slowest of
  // them; bytes as in StepWork. Devices of a host whose groups leave it share its network.
  // On a torus that the mesh fits into as TorusLinks says.
  double CollectiveUs(ReshardKind kind, double bytes, AxisSet axes) const;

 private:
  // How a group lies over hosts.
  struct Placement {
    int64_t num_hosts = 1;
    int64_t members_per_host = 1;  // 0: not everywhere the same number
    double bytes_per_us = 0;       // of one of them to the others of its host
    auto operator<=>(const Placement&) const = default;
  };

  std::vector<Placement> PlacementsOf(AxisSet axes) const;
  Placement PlacementOf(const std::vector<int64_t>& group, int64_t first_device) const;
  double RateWithin(const std::vector<int64_t>& places) const;
  double OfPlacement(ReshardKind kind, double bytes, double group_size,
                     const Placement& placement) const;

  const Cluster cluster_;
  const Mesh mesh_;
  std::optional<TorusLinks> torus_;
  Link inter_host_;                                 // of one device while all of its host use it
  std::vector<std::vector<Placement>> placements_;  // by AxisSet::bits(); distinct ones
};

}  // namespace minka
