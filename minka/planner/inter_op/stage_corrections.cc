#include "minka/planner/inter_op/stage_corrections.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace minka {
namespace {

// Estimates that miss by no more stay, for stages of other layers are estimated alike.
constexpr double kNear = 0.02;

}  // namespace

StageCorrector::StageCorrector(const std::vector<StageWay>& ways, std::vector<double> memory_prices)
    : memory_prices_(std::move(memory_prices)),
      first_equal_(FirstEqualLayers(ways)),
      needed_more_(ways.size()) {
  for (const StageWay& way : ways) num_devices_.push_back(way.num_devices);
}

void StageCorrector::Correct(std::span<const FoundStage> found,
                             std::span<const StageFigures> planned) {
  for (size_t i = 0; i < found.size(); ++i) {
    const FoundStage& stage = found[i];
    const PlannedTimes& times = planned[i].times;
    if (std::abs(times.micro_batch_us / stage.cost.micro_batch_us - 1) > kNear) {
      StageKey key{.way = stage.way, .num_recomputed = stage.num_recomputed};
      key.layers.assign(first_equal_.begin() + stage.begin_layer,
                        first_equal_.begin() + stage.end_layer);
      corrections_.times[std::move(key)] = times;
    }
    const int64_t corrected =
        corrections_.more_bytes.empty() ? 0 : corrections_.more_bytes[stage.way];
    const int64_t more = planned[i].bytes - (stage.bytes - corrected);
    needed_more_[stage.way] = std::max(needed_more_[stage.way].value_or(0), more);
  }
  CorrectBytes();
}

void StageCorrector::CorrectBytes() {
  corrections_.more_bytes.assign(needed_more_.size(), 0);
  for (size_t way = 0; way < needed_more_.size(); ++way) {
    int most_alike = 0;
    for (size_t other = 0; other < needed_more_.size(); ++other) {
      if (!needed_more_[other]) continue;
      const int alike = Likeness(way, other);
      int64_t& more = corrections_.more_bytes[way];
      if (alike > most_alike) more = 0;
      if (alike >= most_alike) more = std::max(more, *needed_more_[other]);
      most_alike = std::max(most_alike, alike);
    }
  }
}

int StageCorrector::Likeness(size_t way, size_t other) const {
  if (way == other) return 3;
  if (!memory_prices_.empty() && memory_prices_[way] != memory_prices_[other]) return 0;
  return num_devices_[way] == num_devices_[other] ? 2 : 1;
}

}  // namespace minka
