#include "minka/solver/improve/repetition.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace minka {
namespace {

// Larger ones are other answers rather than changes of one.
constexpr int32_t kLargestShare = 8;  // an eighth of all nodes

// Nodes that changed together, each but the first joined to one before it.
struct Change {
  struct Step {
    int32_t node = 0;
    size_t from = 0;                      // position of the node it is joined to
    const CoreGraph::Arc* arc = nullptr;  // from there
  };
  std::vector<Step> steps;
};

std::vector<Change> Changes(const CoreGraph& graph, std::span<const int32_t> before,
                            std::span<const int32_t> after) {
  std::vector<Change> changes;
  std::vector<char> is_taken(graph.num_nodes(), 0);
  for (int32_t first = 0; first < graph.num_nodes(); ++first) {
    if (before[first] == after[first] || is_taken[first] != 0) continue;
    Change change = {{{.node = first}}};
    is_taken[first] = 1;
    for (size_t i = 0; i < change.steps.size(); ++i) {
      for (const CoreGraph::Arc& arc : graph.arcs(change.steps[i].node)) {
        if (before[arc.other] == after[arc.other]) continue;
        if (std::exchange(is_taken[arc.other], 1) == 0)
          change.steps.push_back({.node = arc.other, .from = i, .arc = &arc});
      }
    }
    changes.push_back(std::move(change));
  }
  return changes;
}

class Repeater {
 public:
  Repeater(const CoreGraph& graph, std::span<const int32_t> before, CoreAnswer answer)
      : graph_(graph), before_(before), after_(answer.choice), answer_(std::move(answer)) {}

  CoreAnswer Run() {
    for (const Change& change : Changes(graph_, before_, after_)) {
      for (int32_t node = 0; node < graph_.num_nodes(); ++node) {
        ++work_;
        if (LayUpon(change, node)) Apply(change);
      }
    }
    return std::move(answer_);
  }

  int64_t work() const { return work_; }

 private:
  // Costs the same and chooses as the other did.
  bool IsAlike(int32_t node, int32_t other) const {
    return answer_.choice[node] == before_[other] &&
           graph_.core().cost_rows[node] == graph_.core().cost_rows[other];
  }

  // Fills places_ with the nodes that stand for those of the change; false where there are none.
  bool LayUpon(const Change& change, int32_t first) {
    places_.clear();
    if (!IsAlike(first, change.steps[0].node)) return false;
    places_.push_back(first);
    for (size_t i = 1; i < change.steps.size(); ++i) {
      const Change::Step& step = change.steps[i];
      const std::span<const CoreGraph::Arc> arcs = graph_.arcs(places_[step.from]);
      work_ += static_cast<int64_t>(arcs.size());
      const auto found = std::ranges::find_if(arcs, [&](const CoreGraph::Arc& arc) {
        return arc.from_here == step.arc->from_here && IsAlike(arc.other, step.node) &&
               std::ranges::find(places_, arc.other) == places_.end();
      });
      if (found == arcs.end()) return false;
      places_.push_back(found->other);
    }
    return true;
  }

  void Apply(const Change& change) {
    const std::optional<int64_t> cost_before = CostAround();
    for (size_t i = 0; i < places_.size(); ++i)
      answer_.choice[places_[i]] = after_[change.steps[i].node];
    const std::optional<int64_t> cost = CostAround();
    const Core& core = graph_.core();
    if (cost && *cost < *cost_before && (core.times.empty() || FitsLimit(core, answer_.choice))) {
      answer_.cost += *cost - *cost_before;
      return;
    }
    for (size_t i = 0; i < places_.size(); ++i)
      answer_.choice[places_[i]] = before_[change.steps[i].node];
  }

  // Of places_ and their edges; nothing if a forbidden entry is used.
  std::optional<int64_t> CostAround() {
    int64_t cost = 0;
    for (const int32_t node : places_) {
      const int32_t choice = answer_.choice[node];
      const int64_t own = graph_.core().costs(node)[choice];
      if (own == kForbidden) return std::nullopt;
      cost += own;
      work_ += static_cast<int64_t>(graph_.arcs(node).size());
      for (const CoreGraph::Arc& arc : graph_.arcs(node)) {
        const bool counts_twice = std::ranges::find(places_, arc.other) != places_.end();
        if (counts_twice && arc.other < node) continue;
        const int64_t cell =
            arc.exact_from_here[static_cast<size_t>(choice) * graph_.num_choices(arc.other) +
                                answer_.choice[arc.other]];
        if (cell == kForbidden) return std::nullopt;
        cost += cell;
      }
    }
    return cost;
  }

  const CoreGraph& graph_;
  const std::span<const int32_t> before_;
  const std::vector<int32_t> after_;
  CoreAnswer answer_;
  std::vector<int32_t> places_;
  int64_t work_ = 0;
};

}  // namespace

CoreAnswer RepeatChange(const CoreGraph& graph, std::span<const int32_t> before, CoreAnswer answer,
                        int64_t& work) {
  int64_t num_changed = 0;
  for (int32_t node = 0; node < graph.num_nodes(); ++node)
    num_changed += before[node] != answer.choice[node] ? 1 : 0;
  work += graph.num_nodes();
  if (num_changed > graph.num_nodes() / kLargestShare) return answer;
  Repeater repeater(graph, before, std::move(answer));
  CoreAnswer repeated = repeater.Run();
  work += repeater.work();
  return repeated;
}

void Repetition::Run(const Known& known, int64_t, const std::function<bool()>&) {
  Take(RepeatChange(graph_, known.replaced->choice, *known.best, work_));
  cost_repeated_ = found_->cost;
}

}  // namespace minka
