#include "minka/planner/inter_op/stage_search.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "minka/planner/inter_op/schedule_times.h"

namespace minka {
namespace {

constexpr double kUnreached = std::numeric_limits<double>::infinity();
// Places where a mesh may begin: clusters of more devices are parted into so many blocks.
constexpr int kMostBlocks = 64;
// Bounds on the excess of a stage are tried in steps of so much.
constexpr double kBoundStep = 1.01;
// Longer than any step.
constexpr double kLongestUs = 1e30;

class StageSearch {
 public:
  StageSearch(const std::vector<StageWay>& ways, const StageSearchInput& options)
      : ways_(ways),
        options_(options),
        estimates_(ways),
        num_layers_(static_cast<int>(ways.front().kept.size())),
        block_(DevicesPerBlock(options.num_devices)),
        num_blocks_(options.num_devices / block_),
        most_stages_(options.num_stages > 0 ? options.num_stages
                                            : std::min(num_layers_, num_blocks_)),
        times_(options.num_micro_batches, Held(options, most_stages_), options.splits_backward),
        first_equal_(FirstEqualLayers(ways)) {
    for (int layer = 0; layer < num_layers_; ++layer) may_begin_.push_back(options.MayBegin(layer));
    may_begin_.push_back(true);  // behind the last one
    GroupWays();
    FindRuns();
    FindSendTimes();
    found_.resize(most_stages_ + 1);
  }

  std::vector<FoundPipeline> Run() && {
    if (TryBound(kUnreached) && options_.num_micro_batches > 1) {
      // Stages that exceed more, and passing them, take longer than what is found.
      const double least_us = LeastOfAll();
      double bound = LeastThatAnyKeeps();
      while (bound + least_us < step_time_us_) {
        TryBound(bound);
        bound *= kBoundStep;
      }
    }
    std::vector<FoundPipeline> out;
    for (FoundPipeline& found : found_) {
      if (!found.stages.empty()) out.push_back(std::move(found));
    }
    std::ranges::stable_sort(out, {}, &FoundPipeline::step_time_us);
    return out;
  }

 private:
  struct Entry {
    TailTimes tail = {.passing_us = kUnreached};  // of this stage and those behind it
    double send_us = 0;                           // to the next one and back
    int end_layer = 0, size = 0;

    bool is_reached() const { return tail.passing_us != kUnreached; }
  };

  // The fastest way that fits.
  struct Choice {
    bool is_known = false;
    int16_t way = -1;  // none fits
    int32_t num_recomputed = 0;
    StageTimes times;
  };

  // By number from the end. What is held for gradients of weights alone is no longer in flight: of
  // others there are as many as by 1f1b.
  static std::vector<int> Held(const StageSearchInput& options, int most_stages) {
    std::vector<int> held;
    for (int from_end = 0; from_end <= most_stages; ++from_end)
      held.push_back(options.splits_backward ? from_end : options.InFlight(from_end));
    return held;
  }

  int FewestStages() const { return options_.num_stages > 0 ? options_.num_stages : 2; }

  void GroupWays() {
    for (int way = 0; way < static_cast<int>(ways_.size()); ++way) {
      const int size = ways_[way].num_devices;
      if (size % block_ != 0 || size > options_.num_devices) continue;
      const auto number = static_cast<size_t>(std::ranges::find(sizes_, size) - sizes_.begin());
      if (number == sizes_.size()) {
        sizes_.push_back(size);
        of_size_.emplace_back();
      }
      of_size_[number].push_back(way);
    }
    choices_.resize(sizes_.size());
  }

  void FindRuns() {
    run_length_.assign(num_layers_, 1);
    longest_run_.assign(num_layers_, 0);
    for (int layer = num_layers_ - 1; layer >= 0; --layer) {
      const bool goes_on =
          layer + 1 < num_layers_ && first_equal_[layer + 1] == first_equal_[layer];
      if (goes_on) run_length_[layer] = run_length_[layer + 1] + 1;
    }
    std::vector<int> longest(num_layers_, 0);  // by first equal layer
    for (int layer = 0; layer < num_layers_; ++layer) {
      const int first = first_equal_[layer];
      if (run_length_[layer] <= longest[first]) continue;
      longest[first] = run_length_[layer];
      longest_run_[first] = layer;
    }
  }

  // Where layers equal to these begin, the same place for as many of them as may be: many layers of
  // a model are equal, so that of L^2 runs of layers some L are different.
  int EqualBegin(int begin, int end) const {
    if (end - begin > run_length_[begin]) return begin;
    return longest_run_[first_equal_[begin]];
  }

  // May a mesh of so many devices begin at the device?
  bool MayBegin(int device, int size) const {
    const int host = options_.devices_per_host;
    if (size <= host) return device % host + size <= host;
    return device % host == 0 && size % host == 0;
  }

  void FindSendTimes() {
    if (!options_.send_us) return;
    for (int layer = 1; layer < num_layers_; ++layer) {
      for (const int before : sizes_) {
        for (const int behind : sizes_) {
          for (const bool crosses : {false, true})
            send_us_.push_back(options_.send_us({layer, before, behind, crosses}));
        }
      }
    }
  }

  // Between a stage that ends there and the one behind it.
  double SendUs(int end_layer, int end_block, int size, int size_behind) const {
    if (send_us_.empty() || end_layer == num_layers_) return 0;
    const bool crosses = end_block * block_ % options_.devices_per_host == 0;
    const size_t num_sizes = sizes_.size();
    const size_t row = ((end_layer - 1) * num_sizes + size) * num_sizes + size_behind;
    return send_us_[2 * row + (crosses ? 1 : 0)];
  }

  bool Fits(const FoundStage& stage) const {
    return !options_.limit_bytes || stage.bytes <= *options_.limit_bytes;
  }

  // As estimated, corrected by what was planned.
  FoundStage StageOf(int way, int begin, int end, int num_recomputed, int in_flight) const {
    const StageCorrections& corrections = options_.corrections;
    FoundStage stage = estimates_.StageOf(way, begin, end, num_recomputed, in_flight);
    if (!corrections.more_bytes.empty()) stage.bytes += corrections.more_bytes[way];
    if (corrections.times.empty()) return stage;
    const auto planned = corrections.times.find(
        {way, {first_equal_.begin() + begin, first_equal_.begin() + end}, num_recomputed});
    if (planned == corrections.times.end()) return stage;
    stage.cost.micro_batch_us = planned->second.micro_batch_us;
    stage.cost.step_us = planned->second.step_us;
    return stage;
  }

  // With as little recomputed as fits; nothing where that is too much.
  std::optional<FoundStage> LeastRecomputed(int way, int begin, int end, int in_flight) const {
    const FoundStage plain = StageOf(way, begin, end, 0, in_flight);
    if (Fits(plain)) return plain;
    int too_few = 0, enough = end - begin;
    if (!estimates_.MayRecompute(way) || !Fits(StageOf(way, begin, end, enough, in_flight))) {
      return std::nullopt;
    }
    while (enough - too_few > 1) {
      const int middle = (too_few + enough) / 2;
      (Fits(StageOf(way, begin, end, middle, in_flight)) ? enough : too_few) = middle;
    }
    return StageOf(way, begin, end, enough, in_flight);
  }

  const Choice& Fastest(int size, int begin, int end, int from_end) {
    const int in_flight = options_.InFlight(from_end);
    // Without a limit it does not matter how many are in flight.
    const int row = options_.limit_bytes ? in_flight : 0;
    std::vector<std::vector<Choice>>& rows = choices_[size];
    if (static_cast<int>(rows.size()) <= row) rows.resize(row + 1);
    if (rows[row].empty()) rows[row].resize(num_layers_ * (num_layers_ + 1));
    const int shift = begin - EqualBegin(begin, end);
    begin -= shift;
    end -= shift;
    Choice& choice = rows[row][begin * (num_layers_ + 1) + end];
    if (choice.is_known) return choice;
    choice.is_known = true;
    double least = kUnreached;
    for (const int way : of_size_[size]) {
      const std::optional<FoundStage> stage = LeastRecomputed(way, begin, end, in_flight);
      if (!stage || options_.BusyUs(*stage) >= least) continue;
      least = options_.BusyUs(*stage);
      choice = {.is_known = true,
                .way = static_cast<int16_t>(way),
                .num_recomputed = stage->num_recomputed,
                .times = {.forward_us = stage->cost.forward_us,
                          .micro_batch_us = stage->cost.micro_batch_us,
                          .step_us = stage->cost.step_us}};
    }
    return choice;
  }

  // No pipeline has less in its largest stage: not its dearest layer, nor the mean over devices.
  double LeastBound() const {
    const int most_held = std::min(options_.InFlight(most_stages_), options_.num_micro_batches);
    double dearest = 0, all = 0;
    for (int layer = 0; layer < num_layers_; ++layer) {
      double least = kUnreached, least_share = kUnreached;
      for (int way = 0; way < static_cast<int>(ways_.size()); ++way) {
        const LayerCost& cost = ways_[way].kept[layer];
        const double work = (options_.num_micro_batches - 1) * cost.micro_batch_us -
                            (most_held - 1) * cost.forward_us;
        least = std::min(least, work);
        least_share = std::min(least_share, work * ways_[way].num_devices);
      }
      dearest = std::max(dearest, least);
      all += least_share;
    }
    return std::max({dearest, all / options_.num_devices, 1e-3});
  }

  Entry& At(int from_end, int begin, int block) {
    return best_[from_end][begin * (num_blocks_ + 1) + block];
  }

  // By number of stages from the end, first layer and first device: the least that passing takes of
  // stages of which none exceeds it by more than the bound.
  void FillUnder(double bound) {
    best_.assign(most_stages_ + 1, std::vector<Entry>((num_layers_ + 1) * (num_blocks_ + 1)));
    At(0, num_layers_, num_blocks_).tail = {};
    for (int from_end = 1; from_end <= most_stages_; ++from_end) {
      bool any = false;
      for (int end = 1; end <= num_layers_; ++end) {
        if (!may_begin_[end]) continue;
        for (int block = 1; block <= num_blocks_; ++block) {
          if (!At(from_end - 1, end, block).is_reached()) continue;
          any = true;
          Extend(from_end, end, block, bound);
        }
      }
      if (!any) break;
    }
  }

  void Extend(int from_end, int end, int end_block, double bound) {
    const Entry behind = At(from_end - 1, end, end_block);
    const double round_us =
        std::min(bound, kLongestUs) / std::max(1, options_.num_micro_batches - 1);
    for (int size = 0; size < static_cast<int>(sizes_.size()); ++size) {
      const int block = end_block - sizes_[size] / block_;
      if (block < 0 || !MayBegin(block * block_, sizes_[size])) continue;
      const double send_us = SendUs(end, end_block, size, behind.size);
      for (int begin = end - 1; begin >= 0; --begin) {
        if (!may_begin_[begin]) continue;
        const Choice& stage = Fastest(size, begin, end, from_end);
        if (stage.way < 0) break;
        const TailTimes tail = times_.Before(stage.times, from_end, send_us, behind.tail, round_us);
        // More layers neither take less nor fit better.
        if (times_.ExcessUs(stage.times, from_end, tail, tail.chain_us) > bound) break;
        Entry& entry = At(from_end, begin, block);
        if (tail.all_us() < entry.tail.all_us()) entry = {tail, send_us, end, size};
      }
    }
  }

  // False: no pipeline keeps it.
  bool TryBound(double bound) {
    FillUnder(bound);
    bool is_kept = false;
    for (int stages = FewestStages(); stages <= most_stages_; ++stages) {
      if (!At(stages, 0, 0).is_reached()) continue;
      is_kept = true;
      Keep(stages);
    }
    return is_kept;
  }

  // Under the last bound: what a step takes beside what its stages exceed, at least.
  double LeastOfAll() {
    double least = kUnreached;
    for (int stages = FewestStages(); stages <= most_stages_; ++stages)
      least = std::min(least, At(stages, 0, 0).tail.all_us());
    return least;
  }

  // Within a step. Precondition: some pipeline was found.
  double LeastThatAnyKeeps() {
    double not_kept = LeastBound(), kept = std::max(step_time_us_, not_kept);
    while (kept > kBoundStep * not_kept) {
      const double middle = std::sqrt(not_kept * kept);
      (TryBound(middle) ? kept : not_kept) = middle;
    }
    return kept;
  }

  void Keep(int num_stages) {
    FoundPipeline pipeline = Read(num_stages);
    step_time_us_ = std::min(step_time_us_, pipeline.step_time_us);
    FoundPipeline& best = found_[num_stages];
    if (best.stages.empty() || pipeline.step_time_us < best.step_time_us) {
      best = std::move(pipeline);
    }
  }

  FoundPipeline Read(int num_stages) {
    FoundPipeline out;
    std::vector<ScheduleTimes::StageOfStep> of_step;
    int begin = 0, block = 0;
    for (int from_end = num_stages; from_end > 0; --from_end) {
      const Entry entry = At(from_end, begin, block);
      const Choice& stage = Fastest(entry.size, begin, entry.end_layer, from_end);
      out.stages.push_back(StageOf(stage.way, begin, entry.end_layer, stage.num_recomputed,
                                   options_.InFlight(from_end)));
      of_step.push_back({stage.times, entry.send_us});
      begin = entry.end_layer;
      block += sizes_[entry.size] / block_;
    }
    out.step_time_us = times_.StepUs(of_step);
    return out;
  }

  const std::vector<StageWay>& ways_;
  const StageSearchInput& options_;
  const StageEstimates estimates_;
  const int num_layers_, block_, num_blocks_, most_stages_;
  const ScheduleTimes times_;
  const std::vector<int> first_equal_;     // by layer
  std::vector<int> run_length_;            // by layer: of equal layers from it on
  std::vector<int> longest_run_;           // by first equal layer: where most of them are in a row
  std::vector<char> may_begin_;            // by layer
  std::vector<int> sizes_;                 // of meshes, in devices
  std::vector<std::vector<int>> of_size_;  // ways
  std::vector<std::vector<std::vector<Choice>>> choices_;  // by size, in flight, layers
  std::vector<double> send_us_;  // by layer behind, sizes before and behind, whether hosts differ
  std::vector<std::vector<Entry>> best_;  // by number from the end; see At
  std::vector<FoundPipeline> found_;      // by number of stages
  double step_time_us_ = kUnreached;      // of the fastest
};

}  // namespace

int64_t FoundPipeline::peak_bytes() const {
  int64_t peak = 0;
  for (const FoundStage& stage : stages) peak = std::max(peak, stage.bytes);
  return peak;
}

int DevicesPerBlock(int num_devices) { return std::max(1, num_devices / kMostBlocks); }

std::vector<FoundPipeline> FindStages(const std::vector<StageWay>& ways,
                                      const StageSearchInput& options) {
  return StageSearch(ways, options).Run();
}

}  // namespace minka
