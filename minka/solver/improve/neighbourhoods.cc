#include "minka/solver/improve/neighbourhoods.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace minka {
namespace {

constexpr int64_t kWorkPerNeighbourhood = 60'000;
constexpr double kSmallestNeighbourhood = 4;

// Where an answer pays more than the bound, as cumulative weights for drawing nodes.
std::vector<double> CumulativeSlack(const BoundTerms& terms, std::span<const int32_t> choice) {
  std::vector<double> sums;
  double sum = 0;
  for (int32_t node = 0; node < terms.graph().num_nodes(); ++node)
    sums.push_back(sum += static_cast<double>(std::min(terms.Slack(choice, node), kNever / 2)));
  return sums;
}

int32_t DrawNode(const std::vector<double>& sums, Random& random) {
  const auto num_nodes = static_cast<int32_t>(sums.size());
  // One draw in four ignores the slack: what hurts may lie elsewhere.
  if (sums.back() <= 0 || random.Below(4) == 0) return random.Below(num_nodes);
  const auto it = std::ranges::upper_bound(sums, random.Unit() * sums.back());
  return std::min(num_nodes - 1, static_cast<int32_t>(it - sums.begin()));
}

// Nodes of a region under construction.
class Region {
 public:
  Region(const CoreGraph& graph, int32_t size)
      : graph_(graph), size_(size), inside_(graph.num_nodes(), 0) {}

  bool full() const { return static_cast<int32_t>(nodes_.size()) >= size_; }
  const std::vector<int32_t>& nodes() const { return nodes_; }

  void Add(int32_t node) {
    if (!inside_[node]) nodes_.push_back(node);
    inside_[node] = 1;
  }

  // Adds nodes along random edges from those added since `first`, up to `count` in all.
  void Grow(size_t first, int32_t count, Random& random) {
    for (int32_t tries = 4 * count; tries > 0 && static_cast<int32_t>(nodes_.size()) < count;
         --tries) {
      const auto here = static_cast<int32_t>(nodes_.size() - first);
      if (here <= 0) return;
      const std::span<const CoreGraph::Arc> arcs = graph_.arcs(nodes_[first + random.Below(here)]);
      if (!arcs.empty()) Add(arcs[random.Below(static_cast<int32_t>(arcs.size()))].other);
    }
  }

 private:
  const CoreGraph& graph_;
  const int32_t size_;
  std::vector<char> inside_;
  std::vector<int32_t> nodes_;
};

// Up to three clusters, each grown along random edges.
std::vector<int32_t> DrawClusters(const CoreGraph& graph, const std::vector<double>& sums,
                                  int32_t size, Random& random) {
  Region region(graph, size);
  const int32_t clusters = 1 + random.Below(3);
  for (int32_t c = 0; c < clusters; ++c) {
    const size_t first = region.nodes().size();
    region.Add(DrawNode(sums, random));
    region.Grow(first, size * (c + 1) / clusters, random);
  }
  return region.nodes();
}

// Nodes that compete for memory at one time, some of them with a neighbour.
std::vector<int32_t> DrawRivals(const CoreGraph& graph, const HotTimes& hot_times, int32_t size,
                                Random& random) {
  const size_t hot = random.Below(static_cast<int32_t>(hot_times.size()));
  std::vector<double> sums;
  double sum = 0;
  for (int32_t node = 0; node < graph.num_nodes(); ++node) {
    const std::span<const HotTimes::Use> uses = hot_times.of_node(node);
    const auto use = std::ranges::lower_bound(uses, hot, {}, &HotTimes::Use::hot);
    if (use != uses.end() && use->hot == hot) {
      const auto [least, most] = std::ranges::minmax(use->bytes);
      // The root lets small tensors in too.
      sum += std::sqrt(static_cast<double>(most - least));
    }
    sums.push_back(sum);
  }
  Region region(graph, size);
  for (int32_t tries = 4 * size; tries > 0 && !region.full(); --tries) {
    const size_t first = region.nodes().size();
    region.Add(DrawNode(sums, random));
    if (random.Below(2) == 0) region.Grow(first, static_cast<int32_t>(first) + 2, random);
  }
  return region.nodes();
}

}  // namespace

void Neighbourhoods::Run(const Known& known, int64_t work, const std::function<bool()>& stop) {
  const int64_t end = work_ + work;
  const BoundTerms terms(known.messages);
  for (int32_t t = 0; t < static_cast<int32_t>(known.prices.size()); ++t)
    if (known.messages.prices()[t] > 0) hot_times_.Add(t);
  DepthFirst search(terms, hot_times_);
  CoreAnswer best = *known.best;
  search.Fix(best.choice);
  std::vector<double> slack = CumulativeSlack(terms, best.choice);
  work_ += graph_.num_cells() + 4 * graph_.total_choices();
  while (work_ < end && !stop()) {
    const int32_t size =
        std::min(graph_.num_nodes(), static_cast<int32_t>(region_size_ * (0.5 + random_.Unit())));
    const bool rivals = hot_times_.size() > 0 && random_.Below(2) == 0;
    const std::vector<int32_t> region =
        rivals ? DrawRivals(graph_, hot_times_, std::max(2, size), random_)
               : DrawClusters(graph_, slack, std::max(1, size), random_);
    const ExactOutcome outcome =
        search.SearchRegion(region, best.cost, kWorkPerNeighbourhood, stop);
    work_ += outcome.work + 200 + graph_.num_nodes() / 4;
    region_size_ = std::clamp(region_size_ * (outcome.complete ? 1.01 : 0.96),
                              kSmallestNeighbourhood, static_cast<double>(graph_.num_nodes()));
    if (!outcome.answer) continue;
    best = *outcome.answer;
    search.Fix(best.choice);
    slack = CumulativeSlack(terms, best.choice);
    work_ += 20 * graph_.num_nodes();
  }
  Take(best);
}

}  // namespace minka
