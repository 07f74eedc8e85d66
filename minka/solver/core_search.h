// The search on one core. One side raises the bound, the other looks for choices; where the bound
// has stalled, both look for choices. Once a choice is known, the core is pruned to what can still
// beat it and reduced again (prune.h); the smaller core is then searched in the same way, while the
// bound of the larger one goes on rising.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "minka/solver/bound_ascent.h"
#include "minka/solver/branching.h"
#include "minka/solver/core_graph.h"
#include "minka/solver/likely_elimination.h"
#include "minka/solver/primal.h"
#include "minka/solver/probing.h"
#include "minka/solver/prune.h"
#include "minka/solver/reduce.h"
#include "minka/solver/region_search.h"

namespace minka {

// (cost - lower_bound) / cost, 0 if there is none.
double RelativeGap(int64_t cost, int64_t lower_bound);

// Prices at a core's times from prices at others: each goes to the first time not before its own.
std::vector<double> PricesAtTimes(std::span<const int64_t> times, std::span<const int64_t> from,
                                  std::span<const double> prices);

class CoreSearch {
 public:
  // `core` must outlive this.
  CoreSearch(const Core& core, uint64_t seed);

  // A choice to start from, feasible or not. Before the first round.
  void StartFrom(std::span<const int32_t> choice);
  void StartFromPrices(std::span<const double> prices) { ascent_.StartFrom(prices); }
  void StartFromMessages(std::vector<double> messages) {
    ascent_.StartFromMessages(std::move(messages));
  }
  // A feasible choice that somebody else found.
  void Offer(const CoreAnswer& answer);

  // Raises the bound for about `work` units, if there is none yet.
  void FirstBound(int64_t work, const std::function<bool()>& stop);
  // The bound's side alone, for about `work` units or until `stop` says so.
  void RaiseBound(int64_t work, const std::function<bool()>& stop);

  // About `work` units for each side, on two threads if `in_parallel`; the outcome is the same.
  // What the sides find reaches each other between rounds only. Stops early where `stop` says so or
  // the gap is reached.
  struct RoundOptions {
    int64_t work = 0;
    bool in_parallel = false;
    double gap = 0;
    // Whether the side that looks for choices besides may probe them, or search regions where the
    // core is too large for that. The searches that these make do neither.
    bool probe = true;
    // Whether the likely choices may be searched by elimination.
    bool eliminate = true;
  };
  void Round(const RoundOptions& options, const std::function<bool()>& stop);

  // No choice of the core costs less.
  int64_t bound() const;
  const std::optional<CoreAnswer>& best() const { return best_; }
  // The best is optimal, or without one there is no choice within the limit.
  bool complete() const { return complete_; }
  int64_t work() const;

  const CoreGraph& graph() const { return graph_; }
  const BoundAscent& ascent() const { return ascent_; }

 private:
  // Choices that can beat the best answer of the time of pruning or, where too many can, the likely
  // ones among them.
  struct Pruned {
    Pruned();  // defined apart: clang wants the members' initializers only once CoreSearch is whole
    bool has_all = true;  // that can beat the best answer
    Reduction reduction;
    std::unique_ptr<CoreSearch> search;
    std::unique_ptr<CoreSearch> helper;  // the same with another seed, once the bound has stalled
    int64_t cost = 0;                    // of the answer at the time of pruning
    int64_t num_choices = 0;             // before reducing
  };

  bool ExcessIsOld(int64_t bound, double rise) const;
  void SetExcess(const MessagePassing& messages, int64_t bound);
  void RefreshExcess(double rise);
  bool PruneIfWorthwhile();
  bool PruneToAll();
  bool PruneToProbed();
  void PruneToLikely();
  static bool IsSolved(const CoreSearch& search);
  bool LikelyAreExhausted() const;
  void Abandon();
  void Descend(const std::vector<std::vector<int64_t>>& choices, bool has_all,
               const MessagePassing& messages);
  std::unique_ptr<CoreSearch> SearchPruned(const Reduction& reduction, uint64_t seed,
                                           const MessagePassing& messages) const;
  bool MayEliminate(const RoundOptions& options) const;
  bool WorthEliminating(const RoundOptions& options) const;
  bool WorthSearchingRegions(const RoundOptions& options) const;
  void RememberConstructed();
  void EliminateLikely(int64_t work);
  void LookForChoices(const RoundOptions& options, bool eliminate,
                      const std::function<bool()>& stop);
  void HelpLook(const RoundOptions& options, const std::function<bool()>& stop);
  Probing::MakeSearch MakeSearch() const;
  void SearchRegions(int64_t work, const std::function<bool()>& stop);
  bool HasComeToRest() const;
  bool WorthBranching() const;
  void Branch(const RoundOptions& options, const std::function<bool()>& stop);
  bool WorthProbing() const;
  int64_t CaseWork() const;
  int64_t ProbeWork() const;
  void Probe(int64_t work, const std::function<bool()>& stop);
  void Collect();
  void CollectFromPruned(CoreSearch& search);
  void Take(const CoreAnswer& answer);
  int64_t BoundOfPruned() const;

  const Core& core_;
  const uint64_t seed_;
  const CoreGraph graph_;
  BoundAscent ascent_;
  PrimalSearch primal_;
  std::optional<PrimalSearch> helper_;
  std::optional<PrimalInput> input_;
  std::optional<Pruned> pruned_;
  std::optional<RegionSearch> regions_;
  std::optional<Probing> probing_;            // of the choices that can beat the best answer
  std::optional<int64_t> slack_when_pruned_;  // best cost - bound at the last try
  int64_t bound_before_ = 0;                  // when pruning was last considered
  int64_t bound_that_rose_ = 0;               // the bound when it last rose by much
  int rounds_since_rise_ = 0;
  std::optional<Branching> branching_;
  double likely_per_node_ = 0;          // choices; 0: not tried yet
  int rounds_without_gain_ = 0;         // of the pruned search
  std::optional<ChoiceExcess> excess_;  // of messages that may have changed since
  int64_t excess_bound_ = 0;            // at that time
  int64_t excess_work_ = 0;
  LikelyElimination elimination_;
  std::vector<std::vector<int32_t>> constructed_;  // that messages led to before the round
  std::optional<CoreAnswer> best_;
  int64_t proved_ = INT64_MIN;  // by pruned cores that are gone
  bool complete_ = false;
  int round_ = 0;
  int64_t other_work_ = 0;
};

}  // namespace minka
