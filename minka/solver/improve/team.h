// The improvers of one core, which take turns.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "minka/solver/improve/decoding.h"
#include "minka/solver/improve/improver.h"
#include "minka/solver/improve/turns.h"

namespace minka {

class Team {
 public:
  // `graph` must outlive this. Those of `left_out` are not in it.
  Team(const CoreGraph& graph, uint64_t seed, const WaySet& left_out);

  // One that is not of a core alone. Before the first run.
  void Add(std::unique_ptr<Improver> improver);

  // About `work` units, or until `stop` says so between two turns.
  void Run(Known known, int64_t work, const std::function<bool()>& stop);

  // The cheapest answer met, or known when it last ran.
  const std::optional<CoreAnswer>& best() const { return best_; }
  // Choices that messages last led to, feasible or not; empty ones before.
  std::vector<std::vector<int32_t>> decoded() const;
  // The whole space was searched: the best is optimal, or without one there is none.
  bool complete() const { return complete_; }
  int64_t work() const { return work_; }
  const WayRecords& records() const { return records_; }

 private:
  void TakeTurn(Improver& improver, Known& known, int64_t work, const std::function<bool()>& stop);

  std::vector<std::unique_ptr<Improver>> improvers_;
  const Decoding* decoding_ = nullptr;  // of improvers_, where it is not left out
  Turns turns_;
  std::optional<CoreAnswer> best_;
  bool complete_ = false;
  WayRecords records_;
  int64_t work_ = 0;
};

}  // namespace minka
