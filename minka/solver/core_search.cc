#include "minka/solver/core_search.h"

#include <algorithm>
#include <cmath>
#include <thread>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "minka/base/check.h"
#include "minka/solver/repeated_change.h"

namespace minka {
namespace {

constexpr int64_t kWorkPerRound = 100;   // at least, so that work limits end every search
constexpr int kRoundsPerBoundRound = 4;  // once the bound has stalled
constexpr double kLargestGapToPrune = 0.05;
// Below, the second thread looks for choices in every other round.
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

CoreSearch::CoreSearch(const Core& core, uint64_t seed)
    : core_(core),
      seed_(seed),
      graph_(core),
      ascent_(graph_),
      primal_(graph_, seed),
      elimination_(graph_, seed) {}

void CoreSearch::StartFrom(std::span<const int32_t> choice) {
  primal_.StartFrom(choice);
  Collect();
}

void CoreSearch::Offer(const CoreAnswer& answer) {
  primal_.Offer(answer);
  Collect();
}

void CoreSearch::FirstBound(int64_t work, const std::function<bool()>& stop) {
  if (!ascent_.has_bound()) ascent_.Run(work, stop);
  Collect();
}

void CoreSearch::RaiseBound(int64_t work, const std::function<bool()>& stop) {
  ascent_.Run(work, stop);
  Collect();
}

void CoreSearch::Round(const RoundOptions& options, const std::function<bool()>& stop) {
  FirstBound(options.work, stop);
  const bool descend = PruneIfWorthwhile();
  if (complete_) return;
  const bool eliminate = WorthEliminating(options);
  const bool close = best_ && RelativeGap(best_->cost, ascent_.bound()) <= kCloseGap;
  if (RelativeGap(ascent_.estimate(), bound_that_rose_) > kRise) {
    bound_that_rose_ = ascent_.estimate();
    rounds_since_rise_ = 0;
  }
  ++rounds_since_rise_;
  const bool at_rest = ascent_.stalled() || HasComeToRest();
  const bool raise_bound =
      (!at_rest && (!close || round_ % 2 == 0)) || round_ % kRoundsPerBoundRound == 0;
  const bool search_regions = !raise_bound && WorthSearchingRegions(options);
  if (pruned_ && !descend && !search_regions && !MayEliminate(options))
    input_.reset();
  else
    input_.emplace(PrimalInput{ascent_.messages(), ascent_.best_prices(), ascent_.bound()});
  // Only what this round began with may decide, so that the answer does not depend on the threads'
  // pace.
  const auto bound_stop = [&, cost = best_ ? std::optional(best_->cost) : std::nullopt] {
    return stop() || (cost && RelativeGap(*cost, ascent_.bound()) <= options.gap);
  };
  // Beside the bound's round rather than before it, where only that goes on.
  const auto prepare = [&] {
    if (descend) {
      RefreshExcess(0);
      PruneToLikely();
    } else if (eliminate || search_regions) {
      RefreshExcess(kRise);
    }
  };
  if (!raise_bound) prepare();
  if (MayEliminate(options)) RememberConstructed();
  const auto first = [&] {
    if (raise_bound) prepare();
    LookForChoices(options, eliminate, stop);
  };
  const auto second = [&] {
    if (raise_bound)
      ascent_.Run(options.work, bound_stop);
    else
      HelpLook(options, stop);
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
  const std::optional<CoreAnswer> before = best_;
  Collect();
  const bool gained = best_ && (!before || best_->cost < before->cost);
  if (gained && before) Take(RepeatChange(graph_, before->choice, *best_, other_work_));
  rounds_without_gain_ = gained ? 0 : rounds_without_gain_ + 1;
}

// Memory would have to be carried along.
bool CoreSearch::MayEliminate(const RoundOptions& options) const {
  return options.eliminate && core_.times.empty() && core_.num_nodes() > 0;
}

bool CoreSearch::WorthEliminating(const RoundOptions& options) const {
  return MayEliminate(options) && round_ % 2 == 1;
}

// Before the second thread begins, which may search with the helper.
void CoreSearch::RememberConstructed() {
  constructed_.clear();
  const auto add = [&](std::span<const int32_t> choice) {
    constructed_.emplace_back(choice.begin(), choice.end());
  };
  add(primal_.constructed());
  if (helper_) add(helper_->constructed());
}

// The likely choices, those that messages led to among them.
void CoreSearch::EliminateLikely(int64_t work) {
  elimination_.Run({.messages = input_->messages,
                    .excess = *excess_,
                    .best = best_,
                    .others = {constructed_.begin(), constructed_.end()}},
                   work);
}

void CoreSearch::LookForChoices(const RoundOptions& options, bool eliminate,
                                const std::function<bool()>& stop) {
  if (eliminate) {
    EliminateLikely(options.work);
    return;
  }
  if (!pruned_) {
    primal_.Run(*input_, options.work, stop);
    return;
  }
  const bool may_eliminate = MayEliminate(options) && !pruned_->has_all;
  pruned_->search->Round({.work = options.work / 2 + 1,
                          .gap = options.gap,
                          .probe = options.probe && !WorthProbing(),
                          .eliminate = false},
                         stop);
  // Few likely choices are searched in no time.
  if (may_eliminate && IsSolved(*pruned_->search)) EliminateLikely(options.work);
}

void CoreSearch::HelpLook(const RoundOptions& options, const std::function<bool()>& stop) {
  if (options.probe && WorthProbing()) {
    Probe(options.work, stop);
    return;
  }
  if (options.probe && WorthBranching()) {
    Branch(options, stop);
    return;
  }
  if (WorthSearchingRegions(options)) {
    SearchRegions(options.work, stop);
    return;
  }
  if (pruned_) {
    if (!pruned_->helper)
      pruned_->helper = SearchPruned(pruned_->reduction, seed_ + kSeedOfHelper, ascent_.messages());
    pruned_->helper->Round({.work = options.work / 2 + 1,
                            .gap = options.gap,
                            .probe = options.probe,
                            .eliminate = false},
                           stop);
    return;
  }
  if (!helper_) helper_.emplace(graph_, seed_ + kSeedOfHelper);
  if (best_) helper_->Offer(*best_);
  helper_->Run(*input_, options.work, stop);
}

Probing::MakeSearch CoreSearch::MakeSearch() const {
  return [this](const Reduction& reduction, uint64_t seed) {
    return SearchPruned(reduction, seed, ascent_.messages());
  };
}

bool CoreSearch::WorthSearchingRegions(const RoundOptions& options) const {
  return options.probe && best_ && round_ / 2 % 2 == 0;
}

void CoreSearch::SearchRegions(int64_t work, const std::function<bool()>& stop) {
  if (!regions_) regions_.emplace(graph_, seed_ + kSeedOfHelper);
  regions_->Run(*best_, excess_->Within(best_->cost), MakeSearch(), work, stop);
}

// With prices of memory to find, the ascent says itself when it has stalled.
bool CoreSearch::HasComeToRest() const {
  return core_.times.empty() && rounds_since_rise_ > kRoundsAtRest;
}

// Once probing can rule choices out, it does more.
bool CoreSearch::WorthBranching() const {
  if (!best_ || !HasComeToRest() || (pruned_ && pruned_->has_all)) return false;
  int32_t most_choices = 0;
  for (int32_t n = 0; n < graph_.num_nodes(); ++n)
    most_choices = std::max(most_choices, graph_.num_choices(n));
  return static_cast<double>(most_choices) * static_cast<double>(CaseWork()) <=
         static_cast<double>(kMostWorkToBranch);
}

void CoreSearch::Branch(const RoundOptions& options, const std::function<bool()>& stop) {
  if (!branching_) {
    const ChoiceExcess excess(ascent_.messages());
    other_work_ += graph_.num_cells();
    branching_.emplace(core_, excess.Within(best_->cost), excess, CaseWork(),
                       seed_ + kSeedOfHelper);
  }
  const double share = std::max(0.0, 1 - options.gap);
  const auto goal = static_cast<int64_t>(std::ceil(share * static_cast<double>(best_->cost)));
  branching_->Run(*best_, std::min(goal, best_->cost), MakeSearch(), options.work, stop);
}

bool CoreSearch::WorthProbing() const {
  if (!pruned_ || !pruned_->has_all) return false;
  return static_cast<double>(pruned_->num_choices) * static_cast<double>(ProbeWork()) <=
         static_cast<double>(kMostWorkToProbeAll);
}

int64_t CoreSearch::CaseWork() const { return kSweepsPerCase * ascent_.messages().sweep_work(); }

int64_t CoreSearch::ProbeWork() const { return kSweepsPerProbe * ascent_.messages().sweep_work(); }

void CoreSearch::Probe(int64_t work, const std::function<bool()>& stop) {
  if (!probing_) {
    const ChoiceExcess excess(ascent_.messages());
    other_work_ += graph_.num_cells();
    probing_.emplace(core_, excess.Within(best_->cost), excess, ProbeWork(), seed_ + kSeedOfHelper);
  }
  probing_->Run(*best_, MakeSearch(), work, stop);
}

// Whether the bound has risen by more than a share of it since. Older ones are as valid.
bool CoreSearch::ExcessIsOld(int64_t bound, double rise) const {
  return !excess_ || RelativeGap(bound, excess_bound_) > rise;
}

void CoreSearch::SetExcess(const MessagePassing& messages, int64_t bound) {
  excess_.emplace(messages);
  excess_bound_ = bound;
  excess_work_ += graph_.num_cells();
}

// Of what the round began with, if that is newer.
void CoreSearch::RefreshExcess(double rise) {
  if (input_ && ExcessIsOld(input_->lower_bound, rise))
    SetExcess(input_->messages, input_->lower_bound);
}

// Whether to go on with likely choices, others than before.
bool CoreSearch::PruneIfWorthwhile() {
  if (!best_ || complete_) return false;
  if (PruneToProbed()) return false;
  const int64_t slack = best_->cost - ascent_.bound();
  const bool near = RelativeGap(best_->cost, ascent_.bound()) <= kLargestGapToPrune;
  const bool settled =
      RelativeGap(ascent_.bound(), std::exchange(bound_before_, ascent_.bound())) <= kSettled;
  if (slack <= 0 || !(near || settled)) return false;
  const bool closer =
      !slack_when_pruned_ ||
      static_cast<double>(slack) <= kSlackToPruneAgain * static_cast<double>(*slack_when_pruned_);
  if (!closer && !LikelyAreExhausted()) return false;
  if (closer) {
    slack_when_pruned_ = slack;
    if (near && PruneToAll()) return false;
  }
  return graph_.total_choices() >= kManyChoices * graph_.num_nodes() &&
         (!pruned_ || !pruned_->has_all);
}

bool CoreSearch::PruneToAll() {
  if (probing_) return false;  // what it ruled out would come back: see PruneToProbed
  if (ExcessIsOld(ascent_.bound(), 0)) SetExcess(ascent_.messages(), ascent_.bound());
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
  Descend(excess_->Likely(static_cast<int64_t>(count), best_->choice), /*has_all=*/false,
          input_->messages);
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
  other_work_ += pruned_->search->work() + (pruned_->helper ? pruned_->helper->work() : 0);
  pruned_.reset();
  rounds_without_gain_ = 0;
}

CoreSearch::Pruned::Pruned() = default;

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
  pruned_->search = SearchPruned(pruned_->reduction, seed_ + 1 + round_, messages);
}

std::unique_ptr<CoreSearch> CoreSearch::SearchPruned(const Reduction& reduction, uint64_t seed,
                                                     const MessagePassing& messages) const {
  auto search = std::make_unique<CoreSearch>(reduction.core, seed);
  if (!reduction.core.times.empty())
    search->StartFromPrices(PricesAtTimes(reduction.core.times, core_.times, messages.prices()));
  search->StartFromMessages(RestrictMessages(messages, reduction, search->graph()));
  search->StartFrom(Restrict(reduction, best_->choice));
  return search;
}

void CoreSearch::Take(const CoreAnswer& answer) {
  if (best_ && best_->cost <= answer.cost) return;
  best_ = answer;
}

void CoreSearch::CollectFromPruned(CoreSearch& search) {
  if (search.complete() && pruned_->has_all) complete_ = true;
  if (!search.best() || (best_ && best_->cost <= search.best()->cost)) return;
  CoreAnswer answer = {Expand(pruned_->reduction, search.best()->choice), 0};
  // Elimination may leave several cheapest choices, so the cost is counted again.
  answer.cost = *CoreCost(core_, answer.choice);
  Take(answer);
}

void CoreSearch::Collect() {
  // First: of two answers that cost the same, the one whose choices probing has kept.
  if (probing_ && probing_->found()) Take(*probing_->found());
  if (ascent_.decoded()) Take(*ascent_.decoded());
  if (primal_.best()) Take(*primal_.best());
  if (elimination_.found()) Take(*elimination_.found());
  if (helper_ && helper_->best()) Take(*helper_->best());
  if (regions_ && regions_->found()) Take(*regions_->found());
  if (branching_ && branching_->found()) Take(*branching_->found());
  complete_ |= primal_.complete() || (helper_ && helper_->complete());
  if (pruned_) CollectFromPruned(*pruned_->search);
  if (pruned_ && pruned_->helper) CollectFromPruned(*pruned_->helper);
  if (best_) primal_.Offer(*best_);
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
  int64_t work = ascent_.work() + primal_.work() + elimination_.work() + excess_work_ + other_work_;
  if (helper_) work += helper_->work();
  if (pruned_) work += pruned_->search->work();
  if (pruned_ && pruned_->helper) work += pruned_->helper->work();
  if (probing_) work += probing_->work();
  if (regions_) work += regions_->work();
  if (branching_) work += branching_->work();
  return work;
}

}  // namespace minka
