#include "minka/planner/inter_op/stage_bound.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

namespace minka {
namespace {

constexpr double kImpossible = std::numeric_limits<double>::infinity();

class StageBound {
 public:
  StageBound(const std::vector<StageWay>& ways, const StageSearchInput& input)
      : ways_(ways),
        input_(input),
        num_layers_(static_cast<int>(ways.front().kept.size())),
        block_(DevicesPerBlock(input.num_devices)),
        num_blocks_(input.num_devices / block_) {
    std::set<int> sizes;
    for (const StageWay& way : ways) {
      if (way.num_devices % block_ == 0) sizes.insert(way.num_devices);
      // Whoever holds more micro-batches than any price counts is relieved of no more.
      most_counted_ = std::max(most_counted_, static_cast<int>(std::ceil(way.charged.in_flight)));
      AddSums(way);
    }
    sizes_.assign(sizes.begin(), sizes.end());
    FindOnOneDevice();
  }

  double Run() {
    at_least_.assign(most_counted_ + 1, Row((num_layers_ + 1) * (num_blocks_ + 1), kImpossible));
    for (int blocks = 0; blocks <= num_blocks_; ++blocks) At(0, num_layers_, blocks) = 0;
    for (int from_end = 1; from_end <= most_counted_; ++from_end) {
      for (int size : sizes_) FindStageTimes(from_end, size);
      for (int begin = num_layers_ - 1; begin >= 0; --begin) {
        if (!input_.MayBegin(begin)) continue;
        for (int end = begin + 1; end <= num_layers_; ++end) Extend(from_end, begin, end);
      }
    }
    const int fewest = input_.num_stages == 1 ? 1 : 2;
    double least = kImpossible;
    for (int from_end = std::min(fewest, most_counted_); from_end <= most_counted_; ++from_end)
      least = std::min(least, At(from_end, 0, num_blocks_));
    return least;
  }

 private:
  using Row = std::vector<double>;

  // Nothing is known there of recomputed layers that are a choice at other prices.
  bool Covers(const StageWay& way) const {
    return !way.recomputed.empty() || std::ranges::all_of(ways_, [&](const StageWay& other) {
      return other.mesh != way.mesh || other.recomputed.empty();
    });
  }

  void AddSums(const StageWay& way) {
    Row sums = {0};
    for (int layer = 0; layer < num_layers_; ++layer) {
      double least = way.kept[layer].least_us;
      if (!way.recomputed.empty()) least = std::min(least, way.recomputed[layer].least_us);
      sums.push_back(sums.back() + least);
    }
    sums_.push_back(std::move(sums));
  }

  // On one device there is nothing to choose. Where that is no way, nothing is known.
  void FindOnOneDevice() {
    forward_us_ = owned_bytes_ = Row(num_layers_ + 1);
    const auto one = std::ranges::find(ways_, 1, &StageWay::num_devices);
    if (one == ways_.end()) return;
    for (int layer = 0; layer < num_layers_; ++layer) {
      double forward_us = one->kept[layer].forward_us;
      if (!one->recomputed.empty())
        forward_us = std::min(forward_us, one->recomputed[layer].forward_us);
      forward_us_[layer + 1] = forward_us_[layer] + forward_us;
      owned_bytes_[layer + 1] =
          owned_bytes_[layer] + static_cast<double>(one->kept[layer].owned_bytes);
    }
  }

  static double Sum(const Row& sums, int begin, int end) { return sums[end] - sums[begin]; }

  // What a stage of the layers takes at least as the one from the end, by each size of mesh.
  void FindStageTimes(int from_end, int size) {
    Row& times = stage_us_[size];
    times.assign(num_layers_ * (num_layers_ + 1), kImpossible);
    for (int begin = 0; begin < num_layers_; ++begin) {
      for (int end = begin + 1; end <= num_layers_; ++end)
        times[begin * (num_layers_ + 1) + end] = StageUs(from_end, size, begin, end);
    }
  }

  double StageUs(int from_end, int size, int begin, int end) const {
    std::map<int, double> of_mesh;
    for (size_t way = 0; way < ways_.size(); ++way) {
      if (ways_[way].num_devices != size || !Covers(ways_[way])) continue;
      const double us = Sum(sums_[way], begin, end) -
                        ReliefUs(ways_[way], from_end, Sum(owned_bytes_, begin, end) / size);
      double& most = of_mesh.try_emplace(ways_[way].mesh, 0.0).first->second;
      most = std::max(most, us);
    }
    double least = kImpossible;
    for (const auto& [mesh, us] : of_mesh) least = std::min(least, us);
    return least;
  }

  // What memory costs a stage at most that keeps the limit: so much it holds all the time, at
  // least, and all else of micro-batches, of which it may hold fewer than are counted.
  double ReliefUs(const StageWay& way, int from_end, double least_owned_bytes) const {
    if (!input_.limit_bytes) return 0;
    const auto limit = static_cast<double>(*input_.limit_bytes);
    const double held = std::min<double>(input_.Held(from_end).in_flight, way.charged.in_flight);
    const double saved_bytes = std::max(limit - least_owned_bytes, 0.0) / std::max(held, 1.0);
    return way.charged.us_per_byte *
           (std::min(least_owned_bytes, limit) + way.charged.in_flight * saved_bytes);
  }

  // What the layers from begin on take at least on so many blocks of devices, from when their first
  // micro-batch is there.
  double& At(int from_end, int begin, int blocks) {
    return at_least_[from_end][begin * (num_blocks_ + 1) + blocks];
  }

  // The last row is of that number of stages and more.
  void Extend(int from_end, int begin, int end) {
    const double forward_us = Sum(forward_us_, begin, end);
    const auto extend = [&](int behind) {
      for (const int size : sizes_) {
        const double stage_us = stage_us_[size][begin * (num_layers_ + 1) + end];
        for (int blocks = size / block_; blocks <= num_blocks_; ++blocks) {
          const double rest = At(behind, end, blocks - size / block_);
          double& least = At(from_end, begin, blocks);
          const double both = input_.meshes_share_cores
                                  ? stage_us + rest
                                  : std::max(stage_us, forward_us / size + rest);
          least = std::min(least, both);
        }
      }
    };
    extend(from_end - 1);
    if (from_end == most_counted_) extend(from_end);
  }

  const std::vector<StageWay>& ways_;
  const StageSearchInput& input_;
  const int num_layers_, block_, num_blocks_;
  int most_counted_ = 1;          // micro-batches
  std::vector<int> sizes_;        // of meshes, in devices
  std::vector<Row> sums_;         // by way, over its first layers
  Row forward_us_, owned_bytes_;  // over the first layers, on one device
  std::map<int, Row> stage_us_;   // by size, then layers; of one number from the end
  std::vector<Row> at_least_;     // by number from the end; see At
};

bool IsKnown(const std::vector<StageWay>& ways) {
  return std::ranges::all_of(ways, [](const StageWay& way) {
    return std::ranges::any_of(way.kept, [](const LayerCost& layer) { return layer.least_us > 0; });
  });
}

}  // namespace

std::optional<double> LeastStepUs(const std::vector<StageWay>& ways,
                                  const StageSearchInput& input) {
  if (!IsKnown(ways)) return std::nullopt;
  const double least = StageBound(ways, input).Run();
  if (least == kImpossible) return std::nullopt;
  return least;
}

}  // namespace minka
