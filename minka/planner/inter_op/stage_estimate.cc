#include "minka/planner/inter_op/stage_estimate.h"

#include <algorithm>
#include <utility>

namespace minka {
namespace {

LayerCost Together(const LayerCost& one, const LayerCost& other) {
  return {.forward_us = one.forward_us + other.forward_us,
          .micro_batch_us = one.micro_batch_us + other.micro_batch_us,
          .step_us = one.step_us + other.step_us,
          .static_bytes = one.static_bytes + other.static_bytes,
          .owned_bytes = one.owned_bytes + other.owned_bytes,
          .saved_bytes = one.saved_bytes + other.saved_bytes,
          .put_off_bytes = one.put_off_bytes + other.put_off_bytes,
          .handed_on_bytes = one.handed_on_bytes + other.handed_on_bytes,
          .update_bytes = one.update_bytes + other.update_bytes,
          .transient_bytes = std::max(one.transient_bytes, other.transient_bytes)};
}

}  // namespace

bool SavesMoreByKeepingDots(const StageWay& way) {
  if (way.dots_kept.empty() || way.recomputed.empty()) return false;
  const auto saved = [&](const std::vector<LayerCost>& layers) {
    double bytes = 0, us = 0;
    for (size_t layer = 0; layer < layers.size(); ++layer) {
      bytes += static_cast<double>(way.kept[layer].saved_bytes - layers[layer].saved_bytes);
      us += layers[layer].micro_batch_us - way.kept[layer].micro_batch_us;
    }
    return std::pair(bytes, std::max(us, 0.0));
  };
  const auto [bytes, us] = saved(way.dots_kept);
  const auto [bytes_of_all, us_of_all] = saved(way.recomputed);
  return bytes > 0 && bytes * us_of_all > bytes_of_all * us;
}

RematPolicy RecomputedOf(const StageWay& way, const FoundStage& stage, int layer) {
  const int behind_first = layer - stage.begin_layer;
  if (!way.keeps_dots_first)
    return behind_first < stage.num_recomputed ? RematPolicy::kAll : RematPolicy::kNone;
  const int num_layers = stage.end_layer - stage.begin_layer;
  if (behind_first < stage.num_recomputed - num_layers) return RematPolicy::kAll;
  return behind_first < stage.num_recomputed ? RematPolicy::kDots : RematPolicy::kNone;
}

std::vector<int> FirstEqualLayers(const std::vector<StageWay>& ways) {
  const auto are_equal = [&](size_t one, size_t other) {
    return std::ranges::all_of(ways, [&](const StageWay& way) {
      return way.kept[one] == way.kept[other] &&
             (way.dots_kept.empty() || way.dots_kept[one] == way.dots_kept[other]) &&
             (way.recomputed.empty() || way.recomputed[one] == way.recomputed[other]);
    });
  };
  std::vector<int> first_equal;
  for (size_t layer = 0; !ways.empty() && layer < ways.front().kept.size(); ++layer) {
    size_t first = 0;
    while (!are_equal(first, layer)) ++first;
    first_equal.push_back(static_cast<int>(first));
  }
  return first_equal;
}

StageEstimates::Prefixes::Prefixes(const std::vector<LayerCost>& layers)
    : sums_(1), most_transient_(layers.size()) {
  for (const LayerCost& layer : layers) sums_.push_back(Together(sums_.back(), layer));
  for (size_t begin = 0; begin < layers.size(); ++begin) {
    int64_t most = 0;
    for (size_t i = begin; i < layers.size(); ++i) {
      most = std::max(most, layers[i].transient_bytes);
      most_transient_[begin].push_back(most);
    }
  }
}

LayerCost StageEstimates::Prefixes::Sum(int begin, int end) const {
  const LayerCost &low = sums_[begin], &high = sums_[end];
  return {.forward_us = high.forward_us - low.forward_us,
          .micro_batch_us = high.micro_batch_us - low.micro_batch_us,
          .step_us = high.step_us - low.step_us,
          .static_bytes = high.static_bytes - low.static_bytes,
          .owned_bytes = high.owned_bytes - low.owned_bytes,
          .saved_bytes = high.saved_bytes - low.saved_bytes,
          .put_off_bytes = high.put_off_bytes - low.put_off_bytes,
          .handed_on_bytes = high.handed_on_bytes - low.handed_on_bytes,
          .update_bytes = high.update_bytes - low.update_bytes,
          .transient_bytes = begin < end ? most_transient_[begin][end - begin - 1] : 0};
}

StageEstimates::StageEstimates(const std::vector<StageWay>& ways) {
  for (const StageWay& way : ways) {
    kept_.emplace_back(way.kept);
    dots_kept_.emplace_back(way.dots_kept);
    recomputed_.emplace_back(way.recomputed);
    keeps_dots_first_.push_back(way.keeps_dots_first);
  }
}

FoundStage StageEstimates::StageOf(int way, int begin, int end, int num_recomputed,
                                   MicroBatchesHeld held) const {
  int end_of_all = begin + num_recomputed, end_of_others = end_of_all;
  if (keeps_dots_first_[way]) {
    end_of_all = std::max(begin, end_of_all - (end - begin));
    end_of_others = std::min(end, end_of_others);
  }
  LayerCost cost = kept_[way].Sum(end_of_others, end);
  if (end_of_all < end_of_others)
    cost = Together(cost, dots_kept_[way].Sum(end_of_all, end_of_others));
  if (begin < end_of_all) cost = Together(cost, recomputed_[way].Sum(begin, end_of_all));
  int64_t of_micro_batches =
      (held.in_flight - held.put_off) * cost.saved_bytes + held.put_off * cost.put_off_bytes;
  // The backward pass of the next one that is put off ends.
  if (held.put_off > 0) of_micro_batches += cost.handed_on_bytes;
  return {.begin_layer = begin,
          .end_layer = end,
          .way = way,
          .num_recomputed = num_recomputed,
          .cost = cost,
          .bytes = cost.static_bytes + std::max(of_micro_batches, cost.update_bytes) +
                   cost.transient_bytes};
}

}  // namespace minka
