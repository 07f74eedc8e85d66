// Large neighbourhoods, searched as cores of their own: most nodes keep the best answer's choice,
// a connected region of hundreds is reduced and searched with a bound.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "minka/solver/core_graph.h"
#include "minka/solver/probing.h"
#include "minka/solver/random.h"

namespace minka {

class RegionSearch {
 public:
  // `graph` must outlive this.
  RegionSearch(const CoreGraph& graph, uint64_t seed) : graph_(graph), random_(seed) {}

  // Looks for cheaper answers than `best` among `choices` (by node, ascending; those of `best` are
  // among them) for about `work` units, or until `stop` says so. A core without nodes has none.
  void Run(const CoreAnswer& best, std::span<const std::vector<int64_t>> choices,
           const Probing::MakeSearch& make_search, int64_t work, const std::function<bool()>& stop);

  // The cheapest answer met so far.
  const std::optional<CoreAnswer>& found() const { return found_; }
  int64_t work() const { return work_; }

 private:
  std::vector<int32_t> DrawRegion(std::span<const std::vector<int64_t>> choices);
  void SearchRegion(std::span<const std::vector<int64_t>> choices,
                    const Probing::MakeSearch& make_search, const std::function<bool()>& stop);

  const CoreGraph& graph_;
  Random random_;
  double region_size_ = 100;  // nodes; adapts to what is searched to the end in time
  std::optional<CoreAnswer> found_;
  int64_t work_ = 0;
};

}  // namespace minka
