// Large-neighbourhood search with exact sub-solves.
#pragma once

#include <cstdint>
#include <functional>

#include "minka/solver/improve/depth_first.h"
#include "minka/solver/improve/improver.h"
#include "minka/solver/model/random.h"

namespace minka {

// Frees regions of nodes around those where the best answer pays more than the bound, and searches
// each exactly. Region sizes grow while searches finish within their budget and shrink when they do
// not.
class Neighbourhoods : public Improver {
 public:
  // `graph` must outlive this.
  Neighbourhoods(const CoreGraph& graph, uint64_t seed)
      : graph_(graph), random_(seed), hot_times_(graph) {}

  Way way() const override { return Way::kNeighbourhoods; }
  bool CanRun(const Known& known, int64_t) const override {
    return !known.is_pruned && known.best.has_value() && graph_.num_nodes() > 0;
  }
  void Run(const Known& known, int64_t work, const std::function<bool()>& stop) override;

 private:
  const CoreGraph& graph_;
  Random random_;
  HotTimes hot_times_;
  double region_size_ = 8;
};

}  // namespace minka
