// The search on one core. One side raises the bound, the other looks for choices; where the bound
// has stalled, both look for choices. Once a choice is known, the core is pruned to what can still
// beat it and reduced again (choice_excess.h); the smaller core is then searched in the same way,
// while the bound of the larger one goes on rising.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "minka/solver/bound/bound_ascent.h"
#include "minka/solver/bound/choice_excess.h"
#include "minka/solver/bound/core_graph.h"
#include "minka/solver/improve/part_search.h"
#include "minka/solver/improve/team.h"
#include "minka/solver/model/way.h"
#include "minka/solver/prove/branching.h"
#include "minka/solver/prove/probing.h"
#include "minka/solver/reduce/reduce.h"

namespace minka {

// (cost - lower_bound) / cost, 0 if there is none.
double RelativeGap(int64_t cost, int64_t lower_bound);

// Prices at a core's times from prices at others: each goes to the first time not before its own.
std::vector<double> PricesAtTimes(std::span<const int64_t> times, std::span<const int64_t> from,
                                  std::span<const double> prices);

class CoreSearch final : public PartSearch {
 public:
  // `core` must outlive this.
  CoreSearch(const Core& core, uint64_t seed, const WaySet& left_out = {});
  ~CoreSearch() override;

  // A choice to start from; one that does not fit is of no use. Before the first round.
  void StartFrom(std::span<const int32_t> choice);
  void StartFromPrices(std::span<const double> prices) { ascent_.StartFrom(prices); }
  void StartFromMessages(std::vector<double> messages) {
    ascent_.StartFromMessages(std::move(messages));
  }

  // Raises the bound for about `work` units, if there is none yet.
  void FirstBound(int64_t work, const std::function<bool()>& stop);
  // The bound's side alone, for about `work` units or until `stop` says so.
  void RaiseBound(int64_t work, const std::function<bool()>& stop) override;

  // About `work` units for each side, on two threads if `in_parallel`; the outcome is the same.
  // What the sides find reaches each other between rounds only. Stops early where `stop` says so or
  // the gap is reached.
  struct RoundOptions {
    int64_t work = 0;
    bool in_parallel = false;
    double gap = 0;
    // Whether parts of the core may be posed as cores of their own: choices probed, cases bounded,
    // regions searched. The searches that these make do not.
    bool may_pose_parts = true;
    // Whether the likely choices may be searched by elimination.
    bool may_eliminate = true;
  };
  void Round(const RoundOptions& options, const std::function<bool()>& stop);
  void Search(int64_t work, const std::function<bool()>& stop) override {
    Round({.work = work, .may_pose_parts = false}, stop);
  }

  int64_t bound() const override;
  const std::optional<CoreAnswer>& best() const override { return best_; }
  bool complete() const override { return complete_; }
  const MessagePassing& messages() const override { return ascent_.messages(); }
  int64_t work() const override;
  // What ways did, in cores pruned from this, too.
  WayRecords records() const;

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
    bool was_solved = false;             // when the round began
  };
  class PrunedImprover;
  // What the bound's side knew when a round began.
  struct Snapshot {
    MessagePassing messages;
    std::vector<double> prices;
    int64_t lower_bound = 0;
    bool bound_is_at_rest = false;
    std::vector<std::vector<int32_t>> decoded;
    MakePartSearch make_part_search;
  };

  bool MayUse(Way way) const { return !left_out_.test(static_cast<size_t>(way)); }
  void NoteRise();  // of the bound, before it is asked whether that is at rest
  bool WorthRaisingBound() const;
  void TakeSnapshot();
  Known KnownNow() const;
  bool ExcessIsOld(int64_t bound) const;
  void SetExcess(const MessagePassing& messages, int64_t bound);
  bool PruneIfWorthwhile();
  bool PruneToAll();
  bool PruneToProbed();
  void PruneToLikely();
  static bool IsSolved(const CoreSearch& search);
  bool LikelyAreExhausted() const;
  void Abandon();
  void Descend(const std::vector<std::vector<int64_t>>& choices, bool has_all,
               const MessagePassing& messages);
  std::unique_ptr<CoreSearch> SearchOfPart(const Reduction& part, uint64_t seed,
                                           const MessagePassing& messages,
                                           const CoreAnswer& best) const;
  void Help(const std::function<bool()>& stop);
  bool HasComeToRest() const;
  bool BoundIsAtRest() const { return ascent_.stalled() || HasComeToRest(); }
  bool WorthBranching() const;
  void Branch(const std::function<bool()>& stop);
  bool WorthProbing() const;
  int64_t CaseWork() const;
  int64_t ProbeWork() const;
  void Probe(const std::function<bool()>& stop);
  void Collect();
  void CollectFrom(Way way, const std::optional<CoreAnswer>& found);
  int64_t BoundOfPruned() const;

  const Core& core_;
  const uint64_t seed_;
  const WaySet left_out_;
  const CoreGraph graph_;
  BoundAscent ascent_;
  std::optional<Pruned> pruned_;
  Team team_;
  std::unique_ptr<Team> helpers_;
  std::optional<Snapshot> snapshot_;
  RoundOptions options_;                      // of the round
  std::optional<Probing> probing_;            // of the choices that can beat the best answer
  std::optional<int64_t> slack_when_pruned_;  // best cost - bound at the last try
  int64_t bound_before_ = 0;                  // when pruning was last considered
  int64_t bound_that_rose_ = 0;               // the bound when it last rose by much
  int rounds_since_rise_ = 0;
  std::optional<Branching> branching_;
  double likely_per_node_ = 0;          // choices; 0: not tried yet
  int rounds_without_gain_ = 0;         // the last ones
  std::optional<ChoiceExcess> excess_;  // of messages that may have changed since
  int64_t excess_bound_ = 0;            // at that time
  std::optional<CoreAnswer> best_;
  int64_t proved_ = INT64_MIN;  // by pruned cores that are gone
  bool complete_ = false;
  int round_ = 0;
  WayRecords records_;  // of what is no team's, and of pruned cores that are gone
  int64_t other_work_ = 0;
};

}  // namespace minka
