#include "minka/solver/improve/regions.h"

#include <algorithm>
#include <utility>

namespace minka {
namespace {

constexpr int64_t kWorkPerRegion = 40'000'000;
constexpr int64_t kRoundsPerRegion = 8;
constexpr double kSmallestRegion = 20;
constexpr double kRegionGrowth = 1.1;

}  // namespace

// A node joins with its neighbours, so that the region is connected.
std::vector<int32_t> Regions::DrawRegion(std::span<const std::vector<int64_t>> choices) {
  const auto size = static_cast<size_t>(region_size_ * (0.5 + random_.Unit()));
  std::vector<char> is_inside(graph_.num_nodes(), 0);
  std::vector<int32_t> region;
  std::vector<int32_t> border = {random_.Below(graph_.num_nodes())};
  is_inside[border[0]] = 1;
  while (!border.empty() && region.size() < size) {
    std::swap(border[random_.Below(static_cast<int32_t>(border.size()))], border.back());
    const int32_t node = border.back();
    border.pop_back();
    if (choices[node].size() > 1) region.push_back(node);
    for (const CoreGraph::Arc& arc : graph_.arcs(node)) {
      if (std::exchange(is_inside[arc.other], 1) == 0) border.push_back(arc.other);
    }
  }
  return region;
}

void Regions::Run(const Known& known, int64_t work, const std::function<bool()>& stop) {
  Take(*known.best);
  const int64_t end = work_ + work;
  const std::vector<std::vector<int64_t>> choices =
      excess_.Of(known, work_).Within(known.best->cost);
  while (work_ < end && !stop()) SearchRegion(choices, *known.make_part_search, stop);
}

void Regions::SearchRegion(std::span<const std::vector<int64_t>> choices,
                           const MakePartSearch& make_search, const std::function<bool()>& stop) {
  std::vector<std::vector<int64_t>> free(graph_.num_nodes());
  for (int32_t node = 0; node < graph_.num_nodes(); ++node) free[node] = {found_->choice[node]};
  for (const int32_t node : DrawRegion(choices)) free[node] = choices[node];
  const Reduction reduction = ReduceFurther(graph_.core(), free);
  work_ += reduction.core.algebra.work() + graph_.num_cells();
  if (reduction.core.infeasible) return;
  const std::unique_ptr<PartSearch> search =
      make_search(reduction, random_.Below(INT32_MAX), *found_);
  const auto is_done = [&] { return search->complete() || search->bound() >= found_->cost; };
  while (!is_done() && search->work() < kWorkPerRegion && !stop()) {
    search->Search(kWorkPerRegion / kRoundsPerRegion, stop);
    if (!search->best() || search->best()->cost >= found_->cost) continue;
    Take(ExpandAnswer(graph_.core(), reduction, search->best()->choice));
  }
  work_ += search->work();
  region_size_ = std::clamp(is_done() ? region_size_ * kRegionGrowth : region_size_ / kRegionGrowth,
                            kSmallestRegion, static_cast<double>(graph_.num_nodes()));
}

}  // namespace minka
