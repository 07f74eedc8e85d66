#include "minka/planner/inter_op/stage_bound.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

namespace minka {
namespace {

// 64 blocks of each of two kinds.
constexpr double kMostColumns = 65 * 65;
constexpr double kImpossible = std::numeric_limits<double>::infinity();

class StageBound {
 public:
  StageBound(const std::vector<StageWay>& ways, const StageSearchInput& input)
      : ways_(ways),
        input_(input),
        num_layers_(static_cast<int>(ways.front().kept.size())),
        block_(DevicesPerBlock(input.hosts)) {
    CountDevices();
    std::set<Submesh> submeshes;
    for (const StageWay& way : ways) {
      if (way.num_devices % block_ == 0) submeshes.insert(way.submesh());
      // Whoever holds more micro-batches than any price counts is relieved of no more.
      most_counted_ = std::max(most_counted_, static_cast<int>(std::ceil(way.charged.in_flight)));
      AddSums(way);
    }
    submeshes_.assign(submeshes.begin(), submeshes.end());
    FindOnOneDevice();
  }

  double Run() {
    at_least_.assign(most_counted_ + 1, Row((num_layers_ + 1) * num_columns_, kImpossible));
    for (int column = 0; column < num_columns_; ++column) At(0, num_layers_, column) = 0;
    for (int from_end = 1; from_end <= most_counted_; ++from_end) {
      for (const Submesh& submesh : submeshes_) FindStageTimes(from_end, submesh);
      for (int begin = num_layers_ - 1; begin >= 0; --begin) {
        if (!input_.MayBegin(begin)) continue;
        for (int end = begin + 1; end <= num_layers_; ++end) Extend(from_end, begin, end);
      }
    }
    const int fewest = input_.num_stages == 1 ? 1 : 2;
    double least = kImpossible;
    for (int from_end = std::min(fewest, most_counted_); from_end <= most_counted_; ++from_end)
      least = std::min(least, At(from_end, 0, num_columns_ - 1));
    return least;
  }

 private:
  using Row = std::vector<double>;

  // Of each kind apart; where that makes too many columns, of all kinds together, which bounds
  // less.
  void CountDevices() {
    double num_columns = 1;
    int all_blocks = 0;
    for (const HostsOfKind& hosts : input_.hosts) {
      const int num_blocks = hosts.num_devices / block_;
      num_columns *= num_blocks + 1;
      all_blocks += num_blocks;
    }
    const bool is_together = num_columns > kMostColumns;
    num_columns_ = is_together ? all_blocks + 1 : static_cast<int>(num_columns);
    int stride = 1;
    for (const HostsOfKind& hosts : input_.hosts) {
      strides_.push_back(stride);
      const int num_counts = is_together ? num_columns_ : hosts.num_devices / block_ + 1;
      std::vector<int>& blocks = blocks_.emplace_back();
      for (int column = 0; column < num_columns_; ++column)
        blocks.push_back(column / stride % num_counts);
      if (!is_together) stride *= num_counts;
    }
  }

  // Nothing is known there of recomputed layers that are a choice at other prices.
  bool Covers(const StageWay& way) const {
    return std::ranges::all_of(ways_, [&](const StageWay& other) {
      return other.mesh != way.mesh || ((other.recomputed.empty() || !way.recomputed.empty()) &&
                                        (other.dots_kept.empty() || !way.dots_kept.empty()));
    });
  }

  void AddSums(const StageWay& way) {
    Row sums = {0};
    for (int layer = 0; layer < num_layers_; ++layer) {
      double least = way.kept[layer].least_us;
      if (!way.dots_kept.empty()) least = std::min(least, way.dots_kept[layer].least_us);
      if (!way.recomputed.empty()) least = std::min(least, way.recomputed[layer].least_us);
      sums.push_back(sums.back() + least);
    }
    sums_.push_back(std::move(sums));
  }

  // On one device there is nothing to choose. Where that is no way, nothing is known.
  void FindOnOneDevice() {
    owned_bytes_ = Row(num_layers_ + 1);
    for (int kind = 0; kind < static_cast<int>(input_.hosts.size()); ++kind) {
      Row& forward_sums = forward_us_.emplace_back(num_layers_ + 1);
      const auto one = std::ranges::find_if(
          ways_, [kind](const StageWay& way) { return way.kind == kind && way.num_devices == 1; });
      if (one == ways_.end()) continue;
      for (int layer = 0; layer < num_layers_; ++layer) {
        double forward_us = one->kept[layer].forward_us;
        for (const std::vector<LayerCost>* layers : {&one->dots_kept, &one->recomputed}) {
          if (!layers->empty()) forward_us = std::min(forward_us, (*layers)[layer].forward_us);
        }
        forward_sums[layer + 1] = forward_sums[layer] + forward_us;
        owned_bytes_[layer + 1] =  // the same on every kind
            owned_bytes_[layer] + static_cast<double>(one->kept[layer].owned_bytes);
      }
    }
  }

  static double Sum(const Row& sums, int begin, int end) { return sums[end] - sums[begin]; }

  // What a stage of the layers takes at least as the one from the end, by each submesh.
  void FindStageTimes(int from_end, const Submesh& submesh) {
    Row& times = stage_us_[submesh];
    times.assign(num_layers_ * (num_layers_ + 1), kImpossible);
    for (int begin = 0; begin < num_layers_; ++begin) {
      for (int end = begin + 1; end <= num_layers_; ++end)
        times[begin * (num_layers_ + 1) + end] = StageUs(from_end, submesh, begin, end);
    }
  }

  double StageUs(int from_end, const Submesh& submesh, int begin, int end) const {
    std::map<int, double> of_mesh;
    for (size_t way = 0; way < ways_.size(); ++way) {
      if (ways_[way].submesh() != submesh || !Covers(ways_[way])) continue;
      const double owned_bytes = Sum(owned_bytes_, begin, end) / submesh.num_devices;
      const double us = Sum(sums_[way], begin, end) - ReliefUs(ways_[way], from_end, owned_bytes);
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
    const std::optional<int64_t> limit_bytes = input_.hosts[way.kind].limit_bytes;
    if (!limit_bytes) return 0;
    const auto limit = static_cast<double>(*limit_bytes);
    const double held = std::min<double>(input_.Held(from_end).in_flight, way.charged.in_flight);
    const double saved_bytes = std::max(limit - least_owned_bytes, 0.0) / std::max(held, 1.0);
    return way.charged.us_per_byte *
           (std::min(least_owned_bytes, limit) + way.charged.in_flight * saved_bytes);
  }

  // What the layers from begin on take at least, from when their first micro-batch is there, on
  // blocks of devices whose numbers by kind the column says (blocks_): their sum, each times its
  // stride.
  double& At(int from_end, int begin, int column) {
    return at_least_[from_end][begin * num_columns_ + column];
  }

  // The last row is of that number of stages and more.
  void Extend(int from_end, int begin, int end) {
    const auto extend = [&](int behind) {
      for (const Submesh& submesh : submeshes_) {
        const double stage_us = stage_us_[submesh][begin * (num_layers_ + 1) + end];
        const double forward_us = Sum(forward_us_[submesh.kind], begin, end) / submesh.num_devices;
        const int blocks = submesh.num_devices / block_;
        const std::vector<int>& there = blocks_[submesh.kind];
        const int columns_behind = blocks * strides_[submesh.kind];
        for (int column = columns_behind; column < num_columns_; ++column) {
          if (there[column] < blocks) continue;
          const double rest = At(behind, end, column - columns_behind);
          double& least = At(from_end, begin, column);
          const double both =
              input_.meshes_share_cores ? stage_us + rest : std::max(stage_us, forward_us + rest);
          least = std::min(least, both);
        }
      }
    };
    extend(from_end - 1);
    if (from_end == most_counted_) extend(from_end);
  }

  const std::vector<StageWay>& ways_;
  const StageSearchInput& input_;
  const int num_layers_, block_;
  std::vector<int> strides_;              // by kind
  std::vector<std::vector<int>> blocks_;  // by kind and column
  int num_columns_ = 1;                   // see At
  int most_counted_ = 1;                  // micro-batches
  std::vector<Submesh> submeshes_;
  std::vector<Row> sums_;            // by way, over its first layers
  std::vector<Row> forward_us_;      // by kind, over the first layers, on one device
  Row owned_bytes_;                  // over the first layers, on one device
  std::map<Submesh, Row> stage_us_;  // then by layers; of one number from the end
  std::vector<Row> at_least_;        // by number from the end; see At
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
