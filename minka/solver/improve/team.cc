#include "minka/solver/improve/team.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "minka/solver/improve/likely_elimination.h"
#include "minka/solver/improve/neighbourhoods.h"
#include "minka/solver/improve/regions.h"
#include "minka/solver/improve/trees.h"
#include "minka/solver/improve/whole_core.h"

namespace minka {
namespace {

constexpr int64_t kTurnsPerRound = 4;  // of those that do not take a whole one
constexpr int64_t kWorkPerTurn = 50;   // at least, so that rounds end
// Before a first answer, a clock that has run out does not end the first of them.
constexpr int kTurnsWithoutStop = 2;

}  // namespace

Team::Team(const CoreGraph& graph, uint64_t seed, const WaySet& left_out) : turns_(0) {
  const auto add = [&](auto improver) {
    if (left_out.test(static_cast<size_t>(improver->way()))) return;
    if constexpr (std::is_same_v<Decoding, typename decltype(improver)::element_type>)
      decoding_ = improver.get();
    Add(std::move(improver));
  };
  // Those that have not run yet come in this order.
  add(std::make_unique<Decoding>(graph, seed));
  add(std::make_unique<LeastMemory>(graph, seed));
  add(std::make_unique<Trees>(graph, seed + 1));
  add(std::make_unique<Neighbourhoods>(graph, seed + 2));
  add(std::make_unique<WholeCore>(graph));
  add(std::make_unique<LikelyElimination>(graph, seed));
  add(std::make_unique<Regions>(graph, seed + 4));
}

void Team::Add(std::unique_ptr<Improver> improver) {
  improvers_.push_back(std::move(improver));
  turns_ = Turns(improvers_.size());
}

std::vector<std::vector<int32_t>> Team::decoded() const {
  std::vector<std::vector<int32_t>> out;
  if (decoding_ != nullptr)
    out.emplace_back(decoding_->decoded().begin(), decoding_->decoded().end());
  return out;
}

void Team::Run(Known known, int64_t work, const std::function<bool()>& stop) {
  if (known.best) TakeCheaper(*known.best, best_);
  const int64_t end = work_ + work;
  std::vector<char> may_run(improvers_.size());
  int num_turns = 0;
  const int least_turns = best_ || work_ > 0 ? 1 : kTurnsWithoutStop;
  do {
    if (best_ && (!known.best || best_->cost < known.best->cost)) known.best = best_;
    const int64_t left = end - work_;
    const int64_t of_turn = std::min(left, std::max<int64_t>(1, work / kTurnsPerRound));
    const bool is_begin = left > work / 2;
    for (size_t i = 0; i < improvers_.size(); ++i) {
      may_run[i] = improvers_[i]->TakesRestOfRound()
                       ? is_begin && improvers_[i]->CanRun(known, left)
                       : improvers_[i]->CanRun(known, of_turn);
    }
    const std::optional<size_t> next = turns_.Next(may_run);
    if (!next) return;
    Improver& improver = *improvers_[*next];
    const int64_t work_before = work_;
    const std::optional<int64_t> cost_before = best_ ? std::optional(best_->cost) : std::nullopt;
    TakeTurn(improver, known, improver.TakesRestOfRound() ? left : of_turn, stop);
    turns_.Note(*next, work_ - work_before, cost_before && best_ ? *cost_before - best_->cost : 0);
    ++num_turns;
  } while (work_ < end && !complete_ && (num_turns < least_turns || !stop()));
}

void Team::TakeTurn(Improver& improver, Known& known, int64_t work,
                    const std::function<bool()>& stop) {
  const int64_t before = improver.work();
  improver.Run(known, work, stop);
  const int64_t spent = improver.work() - before;
  work_ += spent + kWorkPerTurn;
  complete_ |= improver.complete();
  WayRecord record = {.num_runs = 1, .work = spent};
  if (improver.found() && (!best_ || improver.found()->cost < best_->cost)) {
    record.num_gains = 1;
    if (best_) record.gained = best_->cost - improver.found()->cost;
    best_ = improver.found();
  }
  records_[improver.way()] += record;
}

}  // namespace minka
