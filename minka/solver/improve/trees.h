// Random trees of nodes decided anew, by walks of falling temperature (local_search.h).
#pragma once

#include <cstdint>
#include <functional>

#include "minka/solver/improve/improver.h"
#include "minka/solver/improve/local_search.h"
#include "minka/solver/model/random.h"

namespace minka {

class Trees : public Improver {
 public:
  // `graph` must outlive this.
  Trees(const CoreGraph& graph, uint64_t seed)
      : graph_(graph), random_(seed), search_(graph, seed) {}

  Way way() const override { return Way::kTrees; }
  bool CanRun(const Known& known, int64_t) const override {
    return !known.is_pruned && known.best.has_value() && graph_.num_nodes() > 0;
  }
  void Run(const Known& known, int64_t work, const std::function<bool()>& stop) override;

 private:
  void Start(const Known& known);

  const CoreGraph& graph_;
  Random random_;
  LocalSearch search_;
  int num_runs_ = 0;
};

}  // namespace minka
