// An improvement found in one of many equal layers is worth as much in the others, where a search
// of regions would have to find it again.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "minka/solver/bound/core_graph.h"
#include "minka/solver/improve/improver.h"
#include "minka/solver/reduce/core_answer.h"

namespace minka {

// Makes in other places the changes that led from choice `before` to `answer`, wherever that is
// cheaper. Each connected set of changed nodes is laid upon nodes of equal costs that are joined by
// equal tables and choose as it did. Keeps the limit. Adds what it costs to `work`.
CoreAnswer RepeatChange(const CoreGraph& graph, std::span<const int32_t> before, CoreAnswer answer,
                        int64_t& work);

class Repetition : public Improver {
 public:
  // `graph` must outlive this.
  explicit Repetition(const CoreGraph& graph) : graph_(graph) {}

  Way way() const override { return Way::kRepetition; }
  // Once for each improvement.
  bool CanRun(const Known& known, int64_t) const override {
    return known.best && known.replaced && known.best->cost != cost_repeated_;
  }
  void Run(const Known& known, int64_t work, const std::function<bool()>& stop) override;

 private:
  const CoreGraph& graph_;
  int64_t cost_repeated_ = INT64_MIN;
};

}  // namespace minka
