#include "minka/solver/improve/depth_first.h"

#include <numeric>
#include <queue>
#include <utility>

#include "minka/solver/reduce/vectorized.h"

namespace minka {
namespace {

constexpr int kNodesPerPoll = 256;

}  // namespace

MINKA_VECTORIZED
void AddTerms(const int64_t* __restrict cells, const int64_t* __restrict messages, int32_t count,
              int shift, int64_t constant, int64_t* __restrict costs) {
  for (int32_t j = 0; j < count; ++j) {
    const bool forbidden = cells[j] == kForbidden;
    const int64_t cell = forbidden ? 0 : cells[j] << shift;
    const int64_t term = forbidden ? kNever : cell - messages[j] - constant;
    const int64_t sum = costs[j] + term;
    costs[j] = sum < kNever ? sum : kNever;
  }
}

void HotTimes::Add(int32_t time) {
  if (std::ranges::find(times_, time) != times_.end()) return;
  times_.push_back(time);
  for (int32_t node = 0; node < graph_.num_nodes(); ++node) {
    std::vector<int64_t> bytes;
    for (const CoreUsage& usage : graph_.core().usages[node]) {
      const auto live = std::ranges::count_if(usage.ranges, [&](const TimeRange& range) {
        return range.begin <= time && time < range.end;
      });
      if (live == 0) continue;
      const std::span<const int64_t> row = graph_.core().algebra.row(usage.row);
      bytes.resize(row.size());
      for (size_t k = 0; k < row.size(); ++k) bytes[k] += live * row[k];
    }
    if (!bytes.empty()) of_node_[node].push_back({times_.size() - 1, std::move(bytes)});
  }
}

DepthFirst::DepthFirst(const BoundTerms& bound_terms, HotTimes& hot_times)
    : bound_terms_(bound_terms),
      hot_times_(hot_times),
      graph_(bound_terms.graph()),
      usage_(graph_.core().limit_bytes),
      costs_(graph_.total_choices()),
      decided_(graph_.num_nodes(), -1) {}

void DepthFirst::Fix(std::span<const int32_t> choice) {
  hot_bytes_.resize(hot_times_.size());
  for (int32_t node = 0; node < graph_.num_nodes(); ++node) {
    if (decided_[node] == choice[node]) continue;
    usage_.Move(graph_.core(), node, decided_[node], choice[node]);
    if (decided_[node] >= 0) UseHotTimes(node, decided_[node], -1);
    UseHotTimes(node, choice[node], 1);
    decided_[node] = choice[node];
  }
  fixed_bound_ = bound_terms_.Bound(choice);
}

ExactOutcome DepthFirst::SearchAll(std::optional<int64_t> cost_to_beat, int64_t max_work,
                                   const std::function<bool()>& stop) {
  std::vector<int32_t> all(graph_.num_nodes());
  std::iota(all.begin(), all.end(), 0);
  fixed_bound_ = bound_terms_.terms().bound;
  hot_bytes_.assign(hot_times_.size(), 0);
  return Search(all, cost_to_beat, max_work, stop);
}

ExactOutcome DepthFirst::SearchRegion(std::span<const int32_t> region, int64_t cost_to_beat,
                                      int64_t max_work, const std::function<bool()>& stop) {
  const __int128 bound_before = fixed_bound_;
  std::vector<int32_t> before;
  for (const int32_t node : region) {
    before.push_back(decided_[node]);
    fixed_bound_ -= bound_terms_.NodeCosts(node)[decided_[node]];
    for (const CoreGraph::Arc& arc : graph_.arcs(node))
      if (decided_[arc.other] >= 0)
        fixed_bound_ -= bound_terms_.EdgeTerm(arc, decided_[node], decided_[arc.other]);
    usage_.Move(graph_.core(), node, decided_[node], -1);
    UseHotTimes(node, decided_[node], -1);
    decided_[node] = -1;
  }
  ExactOutcome outcome = Search(region, cost_to_beat, max_work, stop);
  for (size_t i = 0; i < region.size(); ++i) {
    decided_[region[i]] = before[i];
    usage_.Move(graph_.core(), region[i], -1, before[i]);
    UseHotTimes(region[i], before[i], 1);
    outcome.work += 2 * graph_.move_work(region[i]);
  }
  fixed_bound_ = bound_before;
  return outcome;
}

ExactOutcome DepthFirst::Search(std::span<const int32_t> nodes, std::optional<int64_t> cost_to_beat,
                                int64_t max_work, const std::function<bool()>& stop) {
  outcome_ = {};
  max_work_ = max_work;
  stop_ = &stop;
  limited_ = false;
  if (cost_to_beat) SetCostToBeat(*cost_to_beat);
  bound_ = fixed_bound_;
  for (const int32_t node : nodes) {
    PriceAgainstDecided(node);
    bound_ += Least(node);
  }
  if (limited_ && bound_ > limit_) {
    outcome_.complete = true;
  } else {
    OrderNodes(nodes);
    outcome_.complete = Descend(0);
  }
  return std::move(outcome_);
}

void DepthFirst::SetCostToBeat(int64_t cost) {
  limit_ = (static_cast<__int128>(cost - graph_.core().base_cost) - 1)
           << bound_terms_.terms().shift;
  limited_ = true;
}

void DepthFirst::PriceAgainstDecided(int32_t node) {
  const int32_t count = graph_.num_choices(node);
  int64_t* const costs = costs_.data() + graph_.first_choice(node);
  std::copy_n(bound_terms_.NodeCosts(node), count, costs);
  for (const CoreGraph::Arc& arc : graph_.arcs(node)) {
    if (decided_[arc.other] < 0) continue;
    bound_terms_.AddTermsHere(arc, node, decided_[arc.other], costs);
    outcome_.work += count;
  }
}

int64_t DepthFirst::Least(int32_t node) const {
  const auto first = costs_.begin() + graph_.first_choice(node);
  return *std::min_element(first, first + graph_.num_choices(node));
}

// Next comes the node with the most ties to those before, so that its costs are known best.
void DepthFirst::OrderNodes(std::span<const int32_t> nodes) {
  constexpr int32_t kNoPlace = -1;
  places_.assign(graph_.num_nodes(), kNoPlace);
  ties_.assign(graph_.num_nodes(), 0);
  std::priority_queue<std::pair<int32_t, int32_t>> queue;  // (ties, -place); old entries stay
  for (size_t i = 0; i < nodes.size(); ++i) {
    places_[nodes[i]] = static_cast<int32_t>(i);
    queue.emplace(0, -static_cast<int32_t>(i));
  }
  order_.clear();
  while (!queue.empty()) {
    const int32_t next = nodes[-queue.top().second];
    queue.pop();
    if (places_[next] == kNoPlace) continue;
    places_[next] = kNoPlace;
    order_.push_back(next);
    for (const CoreGraph::Arc& arc : graph_.arcs(next))
      if (places_[arc.other] != kNoPlace) queue.emplace(++ties_[arc.other], -places_[arc.other]);
  }
  outcome_.work += 2 * graph_.num_nodes() + 10 * static_cast<int64_t>(nodes.size());
}

// Whether everything below was covered.
bool DepthFirst::Descend(size_t depth) {
  if (++visited_ % kNodesPerPoll == 0 && (*stop_)()) return false;
  if (outcome_.work > max_work_) return false;
  if (depth == order_.size()) {
    Finish();
    return true;
  }
  const int32_t node = order_[depth];
  std::vector<int32_t> choices(graph_.num_choices(node));
  const int64_t* const costs = costs_.data() + graph_.first_choice(node);
  std::iota(choices.begin(), choices.end(), 0);
  std::ranges::stable_sort(choices, {}, [&](int32_t k) { return costs[k]; });
  const __int128 bound = bound_;
  const int64_t least = costs[choices[0]];
  for (const int32_t k : choices) {
    if (costs[k] >= kNever) break;
    bound_ = bound - least + costs[k];
    if (limited_ && bound_ > limit_) break;
    if (!Take(depth, node, k)) return false;
  }
  bound_ = bound;
  return true;
}

bool DepthFirst::Take(size_t depth, int32_t node, int32_t k) {
  outcome_.work += 10 + static_cast<int64_t>(hot_times_.of_node(node).size());
  if (!FitsHotTimes(node, k)) return true;
  UseHotTimes(node, k, 1);
  const size_t mark = saved_.size();
  decided_[node] = k;
  const bool alive = TellNeighbours(node, k);
  const bool covered = !alive || (limited_ && bound_ > limit_) || Descend(depth + 1);
  Untell(node, mark);
  decided_[node] = -1;
  UseHotTimes(node, k, -1);
  return covered;
}

bool DepthFirst::FitsHotTimes(int32_t node, int32_t k) const {
  return std::ranges::all_of(hot_times_.of_node(node), [&](const HotTimes::Use& use) {
    return hot_bytes_[use.hot] + use.bytes[k] <= hot_times_.limit_bytes(use.hot);
  });
}

void DepthFirst::UseHotTimes(int32_t node, int32_t k, int64_t sign) {
  for (const HotTimes::Use& use : hot_times_.of_node(node))
    hot_bytes_[use.hot] += sign * use.bytes[k];
}

// Adds the edges' terms to undecided neighbours; false if one of them has no choice left.
bool DepthFirst::TellNeighbours(int32_t node, int32_t k) {
  for (const CoreGraph::Arc& arc : graph_.arcs(node)) {
    if (decided_[arc.other] >= 0) continue;
    const int32_t count = graph_.num_choices(arc.other);
    int64_t* const costs = costs_.data() + graph_.first_choice(arc.other);
    saved_.insert(saved_.end(), costs, costs + count);
    bound_ -= *std::min_element(costs, costs + count);
    bound_terms_.AddTermsThere(arc, k, costs);
    const int64_t least = *std::min_element(costs, costs + count);
    outcome_.work += 2 * count;
    bound_ += least;
    if (least >= kNever) return false;
  }
  return true;
}

// Restores what TellNeighbours saved since `mark`.
void DepthFirst::Untell(int32_t node, size_t mark) {
  size_t at = mark;
  for (const CoreGraph::Arc& arc : graph_.arcs(node)) {
    if (decided_[arc.other] >= 0 || at == saved_.size()) continue;
    const int32_t count = graph_.num_choices(arc.other);
    std::copy_n(saved_.begin() + static_cast<int64_t>(at), count,
                costs_.begin() + graph_.first_choice(arc.other));
    at += count;
  }
  saved_.resize(mark);
}

// A whole choice that beats the cost: checked at every time, and recorded or its worst time
// learned.
void DepthFirst::Finish() {
  for (const int32_t node : order_) {
    usage_.Move(graph_.core(), node, -1, decided_[node]);
    outcome_.work += 2 * graph_.move_work(node);
  }
  const bool fits = usage_.Excess() <= 0;
  const int32_t worst = fits ? -1 : usage_.WorstTime();
  for (const int32_t node : order_) usage_.Move(graph_.core(), node, decided_[node], -1);
  if (!fits) {
    const size_t num_before = hot_times_.size();
    hot_times_.Add(worst);
    if (hot_times_.size() == num_before) return;
    hot_bytes_.push_back(0);
    for (int32_t node = 0; node < graph_.num_nodes(); ++node) {
      const std::span<const HotTimes::Use> uses = hot_times_.of_node(node);
      if (decided_[node] >= 0 && !uses.empty() && uses.back().hot == hot_bytes_.size() - 1)
        hot_bytes_.back() += uses.back().bytes[decided_[node]];
    }
    return;
  }
  const std::optional<int64_t> cost = CoreCost(graph_.core(), decided_);
  outcome_.work += static_cast<int64_t>(graph_.core().edges.size());
  if (!cost || (outcome_.answer && outcome_.answer->cost <= *cost)) return;
  outcome_.answer = {decided_, *cost};
  SetCostToBeat(*cost);
}

}  // namespace minka
