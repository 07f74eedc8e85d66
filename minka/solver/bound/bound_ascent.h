// Raises the lower bound of a core: sweeps of message passing between steps of the memory prices.
//
// Only a few times carry a price at the optimum and neighbouring times are nearly the same
// constraint, so prices live on a working set that grows by the worst time, and each has its own
// step size (Rprop; Riedmiller and Braun 1993). The gradient is the expected memory when nodes
// follow a Boltzmann distribution of their min-marginals, whose temperature falls: a smooth
// function first, the true bound at last.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "minka/solver/bound/message_passing.h"
#include "minka/solver/model/random.h"
#include "minka/solver/reduce/core_answer.h"

namespace minka {

class BoundAscent {
 public:
  // `graph` must outlive this.
  explicit BoundAscent(const CoreGraph& graph);

  // Prices of an earlier solve, one per core time.
  void StartFrom(std::span<const double> prices);

  // Messages of another solve, num_message_entries() of them; their bound is certified at once.
  void StartFromMessages(std::vector<double> messages);

  // Sweeps and steps for about `work` units, or until `stop` says so after a sweep.
  void Run(int64_t work, const std::function<bool()>& stop);

  // Proved by integer arithmetic; at least the sum of what the reductions paid and each term's
  // minimum.
  int64_t bound() const { return certified_; }
  // The bound of the last sweep, not certified.
  int64_t estimate() const { return std::max(certified_, static_cast<int64_t>(last_)); }
  bool has_bound() const { return certified_ != INT64_MIN; }
  // Prices of the certified bound.
  const std::vector<double>& best_prices() const { return best_prices_; }
  const MessagePassing& messages() const { return messages_; }
  int64_t work() const { return work_; }
  // The cheapest feasible choice that the sweeps' messages led to by themselves.
  const std::optional<CoreAnswer>& decoded() const { return decoded_; }
  // Whether the last annealing ended without raising the bound noticeably.
  bool stalled() const { return stalled_; }

 private:
  void BeginAnnealing(double temperature);
  bool ReturnFromCollapse();
  void StepPrices();
  void GrowWorkingSet(std::span<const double> excess);
  void CertifyIfBetter(double bound);
  void DecodeGreedily();

  MessagePassing messages_;
  std::vector<double> prices_;
  std::vector<int32_t> working_set_;
  std::vector<double> step_;       // per time
  std::vector<double> direction_;  // last excess of each time in the working set
  double limit_ = 1;               // largest limit over time
  double first_temperature_ = 1;
  double temperature_ = 1;
  double first_step_ = 0;
  int iteration_ = 0;
  int iterations_here_ = 0;
  double last_ = 0;  // of the last sweep
  int num_collapsed_ = 0;
  int64_t certified_ = INT64_MIN;
  double best_ = 0;  // floating-point bound at the last certification
  int64_t certified_before_annealing_ = INT64_MIN;
  bool stalled_ = false;
  std::vector<double> best_prices_;
  std::optional<CoreAnswer> decoded_;
  int64_t work_ = 0;
};

}  // namespace minka
