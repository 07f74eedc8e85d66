// Branch and bound on a whole core with the bound of its messages: proves the optimum, or that
// there is no choice, where the core is small or the bound nearly tight.
#pragma once

#include <cstdint>
#include <functional>

#include "minka/solver/improve/depth_first.h"
#include "minka/solver/improve/improver.h"

namespace minka {

class WholeCore : public Improver {
 public:
  // `graph` must outlive this.
  explicit WholeCore(const CoreGraph& graph) : graph_(graph) {}

  Way way() const override { return Way::kWholeCore; }
  // Begins anew each time: again once there is so much more work that it may come to an end.
  bool CanRun(const Known& known, int64_t work) const override;
  void Run(const Known& known, int64_t work, const std::function<bool()>& stop) override;
  bool complete() const override { return complete_; }

 private:
  const CoreGraph& graph_;
  int64_t most_work_ = 0;  // that was not enough
  bool complete_ = false;
};

}  // namespace minka
