// What collectives cost on a torus, in which every device has links to its neighbours alone.
#pragma once

#include <cstdint>
#include <vector>

#include "minka/cluster/cluster.h"
#include "minka/sharding/mesh.h"
#include "minka/sharding/reshard.h"

namespace minka {

// A mesh laid over the devices of a torus in their order. `link` is that of one device to one
// neighbour, per direction; latency per hop. Thread-safe.
class TorusLinks {
 public:
  // The torus has as many devices as the mesh, or more.
  TorusLinks(Torus torus, const Link& link, const Mesh& mesh);

  // Microseconds of one collective over groups along `axes`, all groups at once, the slowest of
  // them; bytes as in StepWork.
  double CollectiveUs(ReshardKind kind, double bytes, AxisSet axes) const;

 private:
  // The members of a group along one dimension of the torus.
  struct Line {
    int64_t size = 1;
    int64_t stride = 1;  // hops from one to the next; so many groups share the links
    bool wraps = false;  // the last one is as near to the first
    auto operator<=>(const Line&) const = default;
  };
  using Box = std::vector<Line>;  // a group, by dimension in which it has several members

  std::vector<Box> BoxesOf(AxisSet axes) const;
  Box BoxOf(const std::vector<int64_t>& group) const;
  double Rate(const Line& line) const;  // bytes per us, both directions where both lead there
  double LatencyUs(const Box& box) const;
  double GatherUs(double bytes, const Box& box) const;
  double AllToAllUs(double bytes, const Box& box) const;

  const Torus torus_;
  const Link link_;
  const Mesh mesh_;
  std::vector<std::vector<Box>> boxes_;  // by AxisSet::bits(); distinct ones
};

}  // namespace minka
