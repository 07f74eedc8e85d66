// Large-neighbourhood search with exact sub-solves.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "minka/solver/depth_first.h"
#include "minka/solver/random.h"

namespace minka {

// Frees regions of nodes around those where `answer` pays more than the bound, and searches each
// exactly. Region sizes grow while searches finish within their budget and shrink when they do not.
class NeighbourhoodSearch {
 public:
  explicit NeighbourhoodSearch(const CoreGraph& graph) : graph_(graph), hot_times_(graph) {}

  // Returns a cheaper answer than the given feasible one, if one turned up within `work` units.
  std::optional<CoreAnswer> Improve(const MessagePassing& messages, const CoreAnswer& answer,
                                    int64_t work, Random& random,
                                    const std::function<bool()>& stop);
  int64_t work() const { return work_; }

 private:
  const CoreGraph& graph_;
  HotTimes hot_times_;
  double region_size_ = 8;
  int64_t work_ = 0;
};

}  // namespace minka
