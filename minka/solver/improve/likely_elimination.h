// Searches the likely choices of a core without memory exactly, as many as the work allows, and
// others in every run until one finds something better.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "minka/solver/improve/improver.h"
#include "minka/solver/model/random.h"

namespace minka {

class LikelyElimination : public Improver {
 public:
  // `graph` must outlive this.
  LikelyElimination(const CoreGraph& graph, uint64_t seed) : graph_(graph), random_(seed) {}

  Way way() const override { return Way::kElimination; }
  // Memory would have to be carried along.
  bool CanRun(const Known& known, int64_t) const override {
    return known.may_eliminate && graph_.core().times.empty() && graph_.num_nodes() > 0;
  }
  bool TakesRestOfRound() const override { return true; }
  // What it finds is never dearer than the best known.
  void Run(const Known& known, int64_t work, const std::function<bool()>& stop) override;

 private:
  std::vector<int32_t> DrawOrder();
  std::vector<double> DrawFocus();
  std::vector<std::vector<int32_t>> DecodeFromAnywhere(const MessagePassing& messages);

  const CoreGraph& graph_;
  Random random_;
  KnownExcess excess_;
  // Likely choices that a run could take, plain and with a focus, 0: not tried.
  std::array<double, 2> per_node_ = {};
  int in_vain_ = 0;  // runs since the last that found something better than the best known
};

}  // namespace minka
