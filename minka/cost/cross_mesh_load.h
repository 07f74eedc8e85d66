// What it takes to bring arrays from one mesh of a cluster to another.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "minka/cluster/cluster.h"
#include "minka/ir/shape.h"
#include "minka/sharding/cross_mesh.h"
#include "minka/sharding/mesh.h"
#include "minka/sharding/sharding.h"

namespace minka {

// A mesh on devices of a cluster one behind the other.
struct PlacedMesh {
  const Cluster& cluster;
  const Mesh& mesh;
  int64_t first_device = 0;
};

// The bytes that every link between and within hosts carries while arrays go from one mesh to
// another, all at once, tile by tile (PlanCrossMesh). Those of different clusters lie on different
// hosts, each with links as its cluster says. The clusters must outlive it.
class CrossMeshLoad {
 public:
  CrossMeshLoad(const PlacedMesh& from, const PlacedMesh& to);

  // Another array on the way.
  void Add(const Shape& shape, const Sharding& from, const Sharding& to);
  // Until all of them are there: the latency of a message and the time of the busiest link. 0 where
  // nothing is on the way.
  double Us() const;
  // What all tiles on the way have together, each once, however many devices of a host copy it.
  int64_t tile_bytes() const { return tile_bytes_; }

 private:
  // What goes in or out of a device or a host.
  struct Bytes {
    double within_host = 0, between_hosts = 0;
  };

  void Carry(const TileTransfer& transfer, double bytes);
  // From one device of a host to another, by their numbers in the cluster.
  void CarryWithinHost(int64_t from, int64_t to, double bytes);
  bool is_one_cluster() const { return &from_cluster_ == &to_cluster_; }
  const Cluster& ClusterOfHost(int host) const;
  Link LinkBetweenHosts() const;

  const Cluster &from_cluster_, &to_cluster_;
  ArrayOnMesh from_, to_;  // shardings: those of the array that was added last
  CrossMeshOptions options_;
  std::vector<Bytes> sent_;                // by device of the first mesh
  std::vector<Bytes> relayed_, received_;  // by device of the second
  // By host, from and to other hosts; those of another cluster count on behind those of the first.
  std::map<int, double> left_, entered_;
  const int64_t from_first_device_, to_first_device_;
  std::map<std::pair<int64_t, int64_t>, double> between_;  // two devices of a host
  int64_t tile_bytes_ = 0;
  bool is_used_ = false;
};

// Some devices of a cluster.
struct PartOfCluster {
  const Cluster& cluster;
  int64_t num_devices = 1;
};

// At least, for an array of so many bytes: every device of a mesh sends or receives its even part,
// from one mesh to the one behind it.
double LeastSendUs(int64_t bytes, const PartOfCluster& before, const PartOfCluster& behind,
                   bool crosses_hosts);

}  // namespace minka
