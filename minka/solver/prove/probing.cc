#include "minka/solver/prove/probing.h"

#include <algorithm>
#include <utility>

namespace minka {
namespace {

constexpr int64_t kLargerNextProbe = 4;  // a choice that a probe leaves open is probed for longer
constexpr int64_t kMostWorkPerProbe = int64_t{1} << 40;
constexpr int kRoundsPerProbe = 4;

}  // namespace

Probing::Probing(const Core& core, std::vector<std::vector<int64_t>> choices,
                 const ChoiceExcess& excess, int64_t probe_work, uint64_t seed)
    : core_(core), choices_(std::move(choices)), probe_work_(probe_work), seed_(seed) {
  for (int32_t node = 0; node < core.num_nodes(); ++node)
    for (const int64_t choice : choices_[node]) candidates_.push_back({node, choice});
  std::ranges::stable_sort(candidates_, {}, [&](const Candidate& candidate) {
    return excess.Of(candidate.node, candidate.choice);
  });
}

bool Probing::IsLeft(const Candidate& candidate) const {
  return std::ranges::binary_search(choices_[candidate.node], candidate.choice);
}

void Probing::Run(const CoreAnswer& best, const MakePartSearch& make_search, int64_t work,
                  const std::function<bool()>& stop) {
  if (!found_ || best.cost < found_->cost) found_ = best;
  const int64_t end = work_ + work;
  while (work_ < end && !candidates_.empty() && !stop()) {
    if (next_ == candidates_.size()) {
      // Only the best answer's choices are left.
      if (!std::exchange(has_probed_, false)) return;
      std::erase_if(candidates_, [&](const Candidate& candidate) { return !IsLeft(candidate); });
      next_ = 0;
      probe_work_ = std::min(kMostWorkPerProbe, probe_work_ * kLargerNextProbe);
      continue;
    }
    const Candidate candidate = candidates_[next_++];
    work_ += 1;
    if (choices_[candidate.node].size() < 2 || !IsLeft(candidate)) continue;
    if (found_->choice[candidate.node] == candidate.choice) continue;
    has_probed_ = true;
    Probe(candidate, found_->cost, make_search, stop);
  }
}

void Probing::Probe(const Candidate& candidate, int64_t cost_to_beat,
                    const MakePartSearch& make_search, const std::function<bool()>& stop) {
  std::vector<int64_t>& of_node = choices_[candidate.node];
  std::vector<int64_t> all = std::exchange(of_node, {candidate.choice});
  const Reduction reduction = ReduceFurther(core_, choices_);
  of_node = std::move(all);
  work_ += reduction.core.algebra.work();
  bool hopeless = reduction.core.infeasible || reduction.core.limit_is_below_least_usage();
  if (!hopeless) {
    const std::unique_ptr<PartSearch> search = make_search(reduction, ++seed_, *found_);
    while (search->bound() < cost_to_beat && !search->complete() && search->work() < probe_work_ &&
           !stop())
      search->Search(probe_work_ / kRoundsPerProbe, stop);
    work_ += search->work();
    hopeless = search->bound() >= cost_to_beat || (search->complete() && !search->best());
    if (search->best() && search->best()->cost < cost_to_beat) {
      found_ = ExpandAnswer(core_, reduction, search->best()->choice);
      return;
    }
  }
  if (hopeless) std::erase(of_node, candidate.choice);
}

}  // namespace minka
