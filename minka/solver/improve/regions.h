// Large neighbourhoods, searched as cores of their own: most nodes keep the best answer's choice,
// a connected region of hundreds is reduced and searched with a bound.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "minka/solver/improve/improver.h"
#include "minka/solver/model/random.h"

namespace minka {

class Regions : public Improver {
 public:
  // `graph` must outlive this.
  Regions(const CoreGraph& graph, uint64_t seed) : graph_(graph), random_(seed) {}

  Way way() const override { return Way::kRegions; }
  // A core without nodes has no regions; while the bound rises, what is cheaper gains more.
  bool CanRun(const Known& known, int64_t) const override {
    return known.bound_is_at_rest && known.best.has_value() && known.make_part_search != nullptr &&
           graph_.num_nodes() > 0;
  }
  bool TakesRestOfRound() const override { return true; }
  void Run(const Known& known, int64_t work, const std::function<bool()>& stop) override;

 private:
  std::vector<int32_t> DrawRegion(std::span<const std::vector<int64_t>> choices);
  void SearchRegion(std::span<const std::vector<int64_t>> choices,
                    const MakePartSearch& make_search, const std::function<bool()>& stop);

  const CoreGraph& graph_;
  Random random_;
  KnownExcess excess_;
  double region_size_ = 100;  // nodes; adapts to what is searched to the end in time
};

}  // namespace minka
