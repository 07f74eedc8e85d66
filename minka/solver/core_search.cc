#include "minka/solver/core_search.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <thread>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "minka/base/check.h"

namespace minka {
namespace {

constexpr int64_t kWorkPerRound = 100;  // at least, so that work limits end every search
constexpr int kRoundsPerBoundWhenClose = 2, kRoundsPerBoundAtRest = 4;
constexpr double kLargestGapToPrune = 0.05;
constexpr double kCloseGap = 0.002;
constexpr double kSettled = 1e-3;           // rise of the bound per round, as a share of it
constexpr double kSlackToPruneAgain = 0.6;  // of the slack at the last try
constexpr double kChoicesLeft = 0.85;       // of those before: more are not worth a new core
// Of likely choices per node, when the choices that can beat the answer are too many.
constexpr int32_t kManyChoices = 15;  // per node: below, all of them are searched
constexpr double kFirstLikely = 5;
constexpr double kLikelyGrowth = 1.5;
constexpr double kMostLikely = 0.6;  // of all choices
constexpr int kRoundsWithoutGain = 4;
constexpr int64_t kSweepsPerProbe = 50;
// The bound has come to rest if it rises by less than that share in so many rounds.
constexpr double kRise = 2e-4;
constexpr int kRoundsAtRest = 8;
constexpr int64_t kSweepsPerCase = 25;
constexpr int64_t kMostWorkToBranch = 5'000'000'000;
constexpr int64_t kMostWorkToProbeAll = 10'000'000'000;
constexpr uint64_t kSeedOfHelper = 0x9e3779b9;

// The messages of a core restricted to one pruned from it; zero on edges that reductions made.
std::vector<double> RestrictMessages(const MessagePassing& messages, const Reduction& reduction,
                                     const CoreGraph& graph) {
  std::vector<double> restricted(graph.num_message_entries(), 0);
  absl::flat_hash_map<int32_t, const CoreGraph::Arc*> arc_to;
  for (int32_t n = 0; n < graph.num_nodes(); ++n) {
    const auto choices = reduction.core.algebra.row(reduction.choices[n]);
    arc_to.clear();
    for (const CoreGraph::Arc& arc : messages.graph().arcs(reduction.nodes[n]))
      arc_to.emplace(arc.other, &arc);
    for (const CoreGraph::Arc& arc : graph.arcs(n)) {
      const auto found = arc_to.find(reduction.nodes[arc.other]);
      if (found == arc_to.end()) continue;
      const double* const in = messages.Incoming(*found->second);
      for (size_t k = 0; k < choices.size(); ++k) restricted[arc.in + k] = in[choices[k]];
    }
  }
  return restricted;
}

}  // namespace

double RelativeGap(int64_t cost, int64_t lower_bound) {
  if (cost <= lower_bound) return 0;
  return (static_cast<double>(cost) - static_cast<double>(lower_bound)) / static_cast<double>(cost);
}

std::vector<double> PricesAtTimes(std::span<const int64_t> times, std::span<const int64_t> from,
                                  std::span<const double> prices) {
  std::vector<double> result(times.size(), 0);
  for (size_t i = 0; i < from.size(); ++i) {
    const auto it = std::ranges::lower_bound(times, from[i]);
    if (it != times.end()) result[it - times.begin()] += std::max(0.0, prices[i]);
  }
  return result;
}

// The core pruned from another as one of the ways to improve the answer of that.
class CoreSearch::PrunedImprover : public Improver {
 public:
  // `whole` must outlive this. `helps`: beside another one, with another seed.
  PrunedImprover(CoreSearch& whole, bool helps) : whole_(whole), helps_(helps) {}

  Way way() const override {
    return whole_.pruned_ && !whole_.pruned_->has_all ? Way::kLikely : Way::kPruning;
  }
  // The other thread may be searching the other of both.
  bool CanRun(const Known&, int64_t) const override {
    if (!whole_.pruned_ || whole_.pruned_->was_solved) return false;
    const CoreSearch* const search = Own().get();
    return search == nullptr || !IsSolved(*search);
  }
  bool TakesRestOfRound() const override { return true; }
  void Run(const Known& known, int64_t work, const std::function<bool()>& stop) override {
    Pruned& pruned = *whole_.pruned_;
    std::unique_ptr<CoreSearch>& search = helps_ ? pruned.helper : pruned.search;
    int64_t before = search ? search->work() : 0;
    if (!search) {
      search = whole_.SearchOfPart(pruned.reduction, whole_.seed_ + kSeedOfHelper,
                                   whole_.ascent_.messages(), *whole_.best_);
    }
    search->Round({.work = work / 2 + 1,
                   .gap = whole_.options_.gap,
                   .may_pose_parts = whole_.options_.may_pose_parts && !whole_.WorthProbing(),
                   .may_eliminate = false},
                  stop);
    work_ += search->work() - before;
    if (!search->best() || (known.best && search->best()->cost >= known.best->cost)) return;
    Take(ExpandAnswer(whole_.core_, pruned.reduction, search->best()->choice));
  }

 private:
  const std::unique_ptr<CoreSearch>& Own() const {
    return helps_ ? whole_.pruned_->helper : whole_.pruned_->search;
  }

  CoreSearch& whole_;
  const bool helps_;
};

CoreSearch::CoreSearch(const Core& core, uint64_t seed, const WaySet& left_out)
    : core_(core),
      seed_(seed),
      left_out_(left_out),
      graph_(core),
      ascent_(graph_),
      team_(graph_, seed, left_out) {
  team_.Add(std::make_unique<PrunedImprover>(*this, /*helps=*/false));
}

CoreSearch::~CoreSearch() = default;

CoreSearch::Pruned::Pruned() = default;

void CoreSearch::StartFrom(std::span<const int32_t> choice) {
  const std::optional<int64_t> cost = CoreCost(core_, choice);
  if (cost && FitsLimit(core_, choice)) TakeCheaper({{choice.begin(), choice.end()}, *cost}, best_);
}

void CoreSearch::FirstBound(int64_t work, const std::function<bool()>& stop) {
  if (!ascent_.has_bound()) ascent_.Run(work, stop);
  Collect();
}

void CoreSearch::RaiseBound(int64_t work, const std::function<bool()>& stop) {
  ascent_.Run(work, stop);
  Collect();
}

void CoreSearch::NoteRise() {
  if (RelativeGap(ascent_.estimate(), bound_that_rose_) > kRise) {
    bound_that_rose_ = ascent_.estimate();
    rounds_since_rise_ = 0;
  }
  ++rounds_since_rise_;
}

// Close to the end the second thread looks for choices in every other round, and once the bound has
// come to rest in most.
bool CoreSearch::WorthRaisingBound() const {
  const bool is_close = best_ && RelativeGap(best_->cost, ascent_.bound()) <= kCloseGap;
  const int rounds_per_rise = BoundIsAtRest() ? kRoundsPerBoundAtRest
                              : is_close      ? kRoundsPerBoundWhenClose
                                              : 1;
  return round_ % rounds_per_rise == 0;
}

void CoreSearch::TakeSnapshot() {
  snapshot_.emplace(Snapshot{ascent_.messages(), ascent_.best_prices(), ascent_.bound()});
  snapshot_->bound_is_at_rest = BoundIsAtRest();
  snapshot_->decoded = team_.decoded();
  if (helpers_) std::ranges::move(helpers_->decoded(), std::back_inserter(snapshot_->decoded));
  snapshot_->make_part_search = [this](const Reduction& part, uint64_t seed,
                                       const CoreAnswer& best) {
    return SearchOfPart(part, seed, snapshot_->messages, best);
  };
}

Known CoreSearch::KnownNow() const {
  return {.messages = snapshot_->messages,
          .prices = snapshot_->prices,
          .lower_bound = snapshot_->lower_bound,
          .best = best_,
          .decoded = snapshot_->decoded,
          .make_part_search = options_.may_pose_parts ? &snapshot_->make_part_search : nullptr,
          .bound_is_at_rest = snapshot_->bound_is_at_rest,
          .may_eliminate = options_.may_eliminate,
          .is_pruned = pruned_.has_value()};
}

void CoreSearch::Round(const RoundOptions& options, const std::function<bool()>& stop) {
  options_ = options;
  FirstBound(options.work, stop);
  const bool descends = PruneIfWorthwhile();
  if (complete_) return;
  if (pruned_) pruned_->was_solved = IsSolved(*pruned_->search);
  NoteRise();
  const bool raises_bound = WorthRaisingBound();
  TakeSnapshot();
  // Only what this round began with may decide, so that the answer does not depend on the threads'
  // pace.
  const auto bound_stop = [&, cost = best_ ? std::optional(best_->cost) : std::nullopt] {
    return stop() || (cost && RelativeGap(*cost, ascent_.bound()) <= options.gap);
  };
  // Beside the bound's round rather than before it, where only that goes on.
  if (descends && !raises_bound) PruneToLikely();
  const auto first = [&] {
    if (descends && raises_bound) PruneToLikely();
    team_.Run(KnownNow(), options.work, stop);
  };
  const auto second = [&] {
    if (raises_bound)
      ascent_.Run(options.work, bound_stop);
    else
      Help(stop);
  };
  if (options.in_parallel) {
    std::thread second_thread(second);
    first();
    second_thread.join();
  } else {
    first();
    second();
  }
  ++round_;
  other_work_ += kWorkPerRound;
  const std::optional<int64_t> cost_before = best_ ? std::optional(best_->cost) : std::nullopt;
  Collect();
  const bool gained = best_ && (!cost_before || best_->cost < *cost_before);
  rounds_without_gain_ = gained ? 0 : rounds_without_gain_ + 1;
}

// What the second thread does where the bound does not rise.
void CoreSearch::Help(const std::function<bool()>& stop) {
  if (options_.may_pose_parts && WorthProbing()) {
    Probe(stop);
  } else if (options_.may_pose_parts && WorthBranching()) {
    Branch(stop);
  } else {
    if (!helpers_) {
      helpers_ = std::make_unique<Team>(graph_, seed_ + kSeedOfHelper, left_out_);
      helpers_->Add(std::make_unique<PrunedImprover>(*this, /*helps=*/true));
    }
    helpers_->Run(KnownNow(), options_.work, stop);
  }
}

// With prices of memory to find, the ascent says itself when it has stalled.
bool CoreSearch::HasComeToRest() const {
  return core_.times.empty() && rounds_since_rise_ > kRoundsAtRest;
}

// Once probing can rule choices out, it does more.
bool CoreSearch::WorthBranching() const {
  if (!MayUse(Way::kBranching) || !best_ || !HasComeToRest() || (pruned_ && pruned_->has_all))
    return false;
  int32_t most_choices = 0;
  for (int32_t n = 0; n < graph_.num_nodes(); ++n)
    most_choices = std::max(most_choices, graph_.num_choices(n));
  return static_cast<double>(most_choices) * static_cast<double>(CaseWork()) <=
         static_cast<double>(kMostWorkToBranch);
}

void CoreSearch::Branch(const std::function<bool()>& stop) {
  if (!branching_) {
    const ChoiceExcess excess(ascent_.messages());
    other_work_ += graph_.num_cells();
    branching_.emplace(core_, excess.Within(best_->cost), excess, CaseWork(),
                       seed_ + kSeedOfHelper);
  }
  const double share = std::max(0.0, 1 - options_.gap);
  const auto goal = static_cast<int64_t>(std::ceil(share * static_cast<double>(best_->cost)));
  const int64_t before = branching_->work();
  branching_->Run(*best_, std::min(goal, best_->cost), snapshot_->make_part_search, options_.work,
                  stop);
  records_[Way::kBranching] += {.num_runs = 1, .work = branching_->work() - before};
}

bool CoreSearch::WorthProbing() const {
  if (!MayUse(Way::kProbing) || !pruned_ || !pruned_->has_all) return false;
  return static_cast<double>(pruned_->num_choices) * static_cast<double>(ProbeWork()) <=
         static_cast<double>(kMostWorkToProbeAll);
}

int64_t CoreSearch::CaseWork() const { return kSweepsPerCase * ascent_.messages().sweep_work(); }

int64_t CoreSearch::ProbeWork() const { return kSweepsPerProbe * ascent_.messages().sweep_work(); }

void CoreSearch::Probe(const std::function<bool()>& stop) {
  if (!probing_) {
    const ChoiceExcess excess(ascent_.messages());
    other_work_ += graph_.num_cells();
    probing_.emplace(core_, excess.Within(best_->cost), excess, ProbeWork(), seed_ + kSeedOfHelper);
  }
  const int64_t before = probing_->work();
  probing_->Run(*best_, snapshot_->make_part_search, options_.work, stop);
  records_[Way::kProbing] += {.num_runs = 1, .work = probing_->work() - before};
}

// Older ones are as valid, but say less.
bool CoreSearch::ExcessIsOld(int64_t bound) const { return !excess_ || bound > excess_bound_; }

void CoreSearch::SetExcess(const MessagePassing& messages, int64_t bound) {
  excess_.emplace(messages);
  excess_bound_ = bound;
  other_work_ += graph_.num_cells();
}

// Whether to go on with likely choices, others than before.
bool CoreSearch::PruneIfWorthwhile() {
  if (!best_ || complete_ || graph_.num_nodes() == 0) return false;
  if (PruneToProbed()) return false;
  const int64_t slack = best_->cost - ascent_.bound();
  const bool near = RelativeGap(best_->cost, ascent_.bound()) <= kLargestGapToPrune;
  const bool settled =
      RelativeGap(ascent_.bound(), std::exchange(bound_before_, ascent_.bound())) <= kSettled;
  if (slack <= 0 || !(near || settled)) return false;
  const bool closer =
      !slack_when_pruned_ ||
      static_cast<double>(slack) <= kSlackToPruneAgain * static_cast<double>(*slack_when_pruned_) ||
      (slack < *slack_when_pruned_ && rounds_without_gain_ >= kRoundsWithoutGain);
  if (!closer && !LikelyAreExhausted()) return false;
  if (closer) {
    slack_when_pruned_ = slack;
    if (near && PruneToAll()) return false;
  }
  return MayUse(Way::kLikely) && graph_.total_choices() >= kManyChoices * graph_.num_nodes() &&
         (!pruned_ || !pruned_->has_all);
}

bool CoreSearch::PruneToAll() {
  if (!MayUse(Way::kPruning)) return false;
  if (probing_) return false;  // what it ruled out would come back: see PruneToProbed
  if (ExcessIsOld(ascent_.bound())) SetExcess(ascent_.messages(), ascent_.bound());
  const std::vector<std::vector<int64_t>> choices = excess_->Within(best_->cost);
  const bool pruned_before = pruned_ && pruned_->has_all;
  const int64_t before = pruned_before ? pruned_->num_choices : graph_.total_choices();
  if (static_cast<double>(CountChoices(choices)) > kChoicesLeft * static_cast<double>(before))
    return false;
  Descend(choices, /*has_all=*/true, ascent_.messages());
  return true;
}

bool CoreSearch::PruneToProbed() {
  if (!probing_ || !pruned_ || !pruned_->has_all) return false;
  if (static_cast<double>(CountChoices(probing_->choices())) >
      kChoicesLeft * static_cast<double>(pruned_->num_choices))
    return false;
  Descend(probing_->choices(), /*has_all=*/true, ascent_.messages());
  return true;
}

// Nodes of many choices make every step of the search dear, and most of their choices are hopeless.
void CoreSearch::PruneToLikely() {
  likely_per_node_ = likely_per_node_ == 0 ? kFirstLikely : likely_per_node_ * kLikelyGrowth;
  const double count = likely_per_node_ * graph_.num_nodes();
  if (count > kMostLikely * graph_.total_choices()) {
    if (pruned_) Abandon();
    return;
  }
  if (ExcessIsOld(snapshot_->lower_bound)) SetExcess(snapshot_->messages, snapshot_->lower_bound);
  Descend(excess_->Likely(static_cast<int64_t>(count), best_->choice), /*has_all=*/false,
          snapshot_->messages);
}

bool CoreSearch::IsSolved(const CoreSearch& search) {
  return search.complete() || (search.best() && search.best()->cost <= search.bound());
}

bool CoreSearch::LikelyAreExhausted() const {
  if (!pruned_ || pruned_->has_all) return false;
  return rounds_without_gain_ >= kRoundsWithoutGain || IsSolved(*pruned_->search);
}

void CoreSearch::Abandon() {
  proved_ = std::max(proved_, BoundOfPruned());
  for (const CoreSearch* search : {pruned_->search.get(), pruned_->helper.get()}) {
    if (search != nullptr) records_ += search->records();
  }
  pruned_.reset();
  rounds_without_gain_ = 0;
}

void CoreSearch::Descend(const std::vector<std::vector<int64_t>>& choices, bool has_all,
                         const MessagePassing& messages) {
  if (pruned_) Abandon();
  pruned_.emplace();
  pruned_->has_all = has_all;
  pruned_->reduction = ReduceFurther(core_, choices);
  pruned_->cost = best_->cost;
  pruned_->num_choices = CountChoices(choices);
  other_work_ += pruned_->reduction.core.algebra.work();
  MINKA_CHECK(!pruned_->reduction.core.infeasible, "pruning lost the best answer");
  pruned_->search = SearchOfPart(pruned_->reduction, seed_ + 1 + round_, messages, *best_);
  other_work_ += pruned_->search->work();
}

std::unique_ptr<CoreSearch> CoreSearch::SearchOfPart(const Reduction& part, uint64_t seed,
                                                     const MessagePassing& messages,
                                                     const CoreAnswer& best) const {
  auto search = std::make_unique<CoreSearch>(part.core, seed, left_out_);
  if (!part.core.times.empty())
    search->StartFromPrices(PricesAtTimes(part.core.times, core_.times, messages.prices()));
  search->StartFromMessages(RestrictMessages(messages, part, search->graph()));
  search->StartFrom(Restrict(part, best.choice));
  return search;
}

void CoreSearch::CollectFrom(Way way, const std::optional<CoreAnswer>& found) {
  if (!found || (best_ && best_->cost <= found->cost)) return;
  records_[way] += {.num_gains = 1, .gained = best_ ? best_->cost - found->cost : 0};
  best_ = found;
}

void CoreSearch::Collect() {
  // First: of two answers that cost the same, the one whose choices probing has kept.
  if (probing_) CollectFrom(Way::kProbing, probing_->found());
  if (MayUse(Way::kSweeps)) CollectFrom(Way::kSweeps, ascent_.decoded());
  if (branching_) CollectFrom(Way::kBranching, branching_->found());
  for (const Team* team : {&team_, helpers_.get()}) {
    if (team == nullptr) continue;
    complete_ |= team->complete();
    // They keep records of their own.
    if (team->best()) TakeCheaper(*team->best(), best_);
  }
  if (!pruned_ || !pruned_->has_all) return;
  for (const CoreSearch* search : {pruned_->search.get(), pruned_->helper.get()})
    complete_ |= search != nullptr && search->complete();
}

int64_t CoreSearch::BoundOfPruned() const {
  if (!pruned_ || !pruned_->has_all) return INT64_MIN;
  return std::min(pruned_->cost, pruned_->search->bound());
}

int64_t CoreSearch::bound() const {
  if (complete_ && best_) return best_->cost;
  return std::max(
      {ascent_.bound(), proved_, BoundOfPruned(), branching_ ? branching_->bound() : INT64_MIN});
}

int64_t CoreSearch::work() const {
  int64_t work = ascent_.work() + team_.work() + other_work_;
  if (helpers_) work += helpers_->work();
  if (probing_) work += probing_->work();
  if (branching_) work += branching_->work();
  return work;
}

WayRecords CoreSearch::records() const {
  WayRecords records = records_;
  records += team_.records();
  if (helpers_) records += helpers_->records();
  for (const CoreSearch* search :
       {pruned_ ? pruned_->search.get() : nullptr, pruned_ ? pruned_->helper.get() : nullptr}) {
    if (search != nullptr) records += search->records();
  }
  return records;
}

}  // namespace minka
