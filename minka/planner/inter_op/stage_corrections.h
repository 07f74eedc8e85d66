// What plans of stages say against their estimates, for searching again.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "minka/planner/inter_op/stage_estimate.h"

namespace minka {

// A stage as plans are made of it: equal for stages of equal layers.
struct StageKey {
  int way = 0;
  std::vector<int> layers;  // see FirstEqualLayers
  int num_recomputed = 0;   // of its layers, the first ones
  auto operator<=>(const StageKey&) const = default;
};

// What a plan of a stage takes.
struct PlannedTimes {
  double micro_batch_us = 0, step_us = 0;
};

struct StageCorrections {
  std::map<StageKey, PlannedTimes> times;
  std::vector<int64_t> more_bytes;  // by way, that a stage needs; or empty
};

// A stage as it was planned.
struct StageFigures {
  PlannedTimes times;
  int64_t bytes = 0;  // per device, at most
};

// Learns from one plan after the other.
class StageCorrector {
 public:
  // By way, the price of memory that it was searched at; empty: there is none.
  StageCorrector(const std::vector<StageWay>& ways, std::vector<double> memory_prices);

  // Stages as a search found them by the corrections so far, and what planning them gave: where the
  // times are others than estimated, they stand instead; ways of which nothing was planned need as
  // many bytes more as the likest ones.
  void Correct(std::span<const FoundStage> found, std::span<const StageFigures> planned);

  const StageCorrections& corrections() const { return corrections_; }

 private:
  void CorrectBytes();
  int Likeness(size_t way, size_t other) const;

  std::vector<int> num_devices_;  // by way
  std::vector<double> memory_prices_;
  std::vector<int> first_equal_;                     // by layer
  std::vector<std::optional<int64_t>> needed_more_;  // by way, beyond its estimates
  StageCorrections corrections_;
};

}  // namespace minka
