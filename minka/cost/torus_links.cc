#include "minka/cost/torus_links.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

namespace minka {

TorusLinks::TorusLinks(Torus torus, const Link& link, const Mesh& mesh)
    : torus_(std::move(torus)), link_(link), mesh_(mesh) {
  boxes_.resize(size_t{1} << mesh.num_axes());
  for (size_t bits = 1; bits < boxes_.size(); ++bits) {
    AxisSet axes;
    for (int axis = 0; axis < mesh.num_axes(); ++axis) {
      if (bits >> axis & 1) axes.Insert(axis);
    }
    boxes_[bits] = BoxesOf(axes);
  }
}

std::vector<TorusLinks::Box> TorusLinks::BoxesOf(AxisSet axes) const {
  std::vector<int> members;
  for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
    if (axes.contains(axis)) members.push_back(axis);
  }
  std::set<Box> distinct;
  for (const std::vector<int64_t>& group : mesh_.Groups(members)) distinct.insert(BoxOf(group));
  return {distinct.begin(), distinct.end()};
}

TorusLinks::Box TorusLinks::BoxOf(const std::vector<int64_t>& group) const {
  const auto num_members = static_cast<int64_t>(group.size());
  if (num_members == 1) return {};
  Box box;
  const std::vector<int>& sizes = torus_.sizes;
  int64_t after = std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
  int64_t in_box = 1;
  bool is_box = true;
  for (const int64_t size : sizes) {
    after /= size;
    std::set<int64_t> places;
    for (const int64_t device : group) places.insert(device / after % size);
    const auto num_places = static_cast<int64_t>(places.size());
    if (num_places == 1) continue;
    const int64_t stride = *std::next(places.begin()) - *places.begin();
    // Evenly spread, then.
    is_box = is_box && *places.rbegin() - *places.begin() == (num_places - 1) * stride;
    in_box *= num_places;
    const bool has_ring = size > 2 && size % torus_.wraps_at == 0;
    box.push_back({num_places, stride, /*wraps=*/has_ring && num_places * stride == size});
  }
  if (is_box && in_box == num_members) return box;
  // No part of the torus by its dimensions: as a line in the order of the devices.
  const auto [first, last] = std::ranges::minmax(group);
  return {{num_members, std::max<int64_t>(1, (last - first) / (num_members - 1)), false}};
}

// What goes around a ring goes half one way, half the other; on a line the ends receive from one
// side alone.
double TorusLinks::Rate(const Line& line) const {
  return (line.wraps ? 2 : 1) * link_.bytes_per_us / static_cast<double>(line.stride);
}

double TorusLinks::LatencyUs(const Box& box) const {
  int64_t hops = 0;
  for (const Line& line : box) {
    hops += (line.wraps ? line.size / 2 : line.size - 1) * line.stride;
  }
  return static_cast<double>(hops) * link_.latency_us;
}

// Either all dimensions at once, each with its part of the bytes and in another order, so that the
// slowest says how long it takes; or one after the other, the slowest first, while the pieces are
// small. (Chan, Heimlich, Purkayastha, van de Geijn: Collective communication: theory, practice,
// and experience, 2007; Austin et al.: How to Scale Your Model, 2025, "Sharded Matrices".)
double TorusLinks::GatherUs(double bytes, const Box& box) const {
  double slowest = std::numeric_limits<double>::infinity(), num_members = 1;
  std::vector<Line> by_rate = box;
  std::ranges::stable_sort(by_rate, {}, [&](const Line& line) { return Rate(line); });
  for (const Line& line : box) {
    slowest = std::min(slowest, Rate(line));
    num_members *= static_cast<double>(line.size);
  }
  const double at_once =
      bytes * (num_members - 1) / num_members / (slowest * static_cast<double>(box.size()));
  double in_turns = 0, gathered = bytes / num_members;
  for (const Line& line : by_rate) {
    in_turns += gathered * static_cast<double>(line.size - 1) / Rate(line);
    gathered *= static_cast<double>(line.size);
  }
  return std::min(at_once, in_turns);
}

// Along each dimension every device has all its bytes exchanged, an eighth of them per member over
// every link of a ring, a quarter over the middle one of a line; all dimensions work at once.
double TorusLinks::AllToAllUs(double bytes, const Box& box) const {
  double slowest = 0;
  for (const Line& line : box) {
    const double parts = line.wraps ? 8 : 4;
    const double rate = link_.bytes_per_us / static_cast<double>(line.stride);
    slowest = std::max(slowest, bytes * static_cast<double>(line.size) / parts / rate);
  }
  return slowest;
}

double TorusLinks::CollectiveUs(ReshardKind kind, double bytes, AxisSet axes) const {
  double slowest = 0;
  for (const Box& box : boxes_[axes.bits()]) {
    if (box.empty()) continue;
    const double moved =
        kind == ReshardKind::kAllToAll ? AllToAllUs(bytes, box) : GatherUs(bytes, box);
    const double once = LatencyUs(box) + moved;
    slowest = std::max(slowest, kind == ReshardKind::kAllReduce ? 2 * once : once);
  }
  return slowest;
}

}  // namespace minka
