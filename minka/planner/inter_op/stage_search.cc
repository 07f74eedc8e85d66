#include "minka/planner/inter_op/stage_search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "minka/planner/inter_op/schedule_times.h"

namespace minka {
namespace {

constexpr double kUnreached = std::numeric_limits<double>::infinity();
// Places where a mesh may begin: clusters of more devices are parted into blocks, so many where
// their hosts allow it.
constexpr int kUsualBlocks = 64;
// What is found is no slower than the best by more than this, as far as bounds tell.
constexpr double kPrecision = 1.003;
// Ranges of bounds are not parted further.
constexpr double kNarrow = 1.005;
// Sums of so many doubles may differ by so much of themselves.
constexpr double kRounding = 1e-9;
// Longer than any step.
constexpr double kLongestUs = 1e30;
// Pipelines that take so much longer than the fastest are not looked for.
constexpr double kHopeless = 1.05;
// The first bounds, of the least that one can be; the last one bounds nothing.
constexpr std::array<double, 4> kFirstBounds = {1.25, 2, 8, kUnreached};

class StageSearch {
 public:
  // `kinds` of hosts in their order along the pipeline.
  StageSearch(const std::vector<StageWay>& ways, const StageSearchInput& options,
              const std::vector<int>& kinds)
      : ways_(ways),
        options_(options),
        estimates_(ways),
        num_layers_(static_cast<int>(ways.front().kept.size())),
        block_(DevicesPerBlock(options.hosts)),
        num_blocks_(options.num_devices() / block_),
        most_stages_(options.num_stages > 0 ? options.num_stages
                                            : std::min(num_layers_, num_blocks_)),
        times_(options.num_micro_batches, BetweenPasses(options, most_stages_),
               options.splits_backward),
        first_equal_(FirstEqualLayers(ways)) {
    for (int layer = 0; layer < num_layers_; ++layer) may_begin_.push_back(options.MayBegin(layer));
    may_begin_.push_back(true);  // behind the last one
    PlaceHosts(kinds);
    NumberHeld();
    GroupWays();
    FindRuns();
    FindSendTimes();
    FindLeastInFront();
    best_.assign(most_stages_ + 1, std::vector<Entry>((num_layers_ + 1) * (num_blocks_ + 1)));
    reached_.resize(most_stages_ + 1);
    found_.resize(most_stages_ + 1);
  }

  std::vector<FoundPipeline> Run() && {
    Search();
    std::vector<FoundPipeline> out;
    for (FoundPipeline& found : found_) {
      if (!found.stages.empty()) out.push_back(std::move(found));
    }
    std::ranges::stable_sort(out, {}, &FoundPipeline::step_time_us);
    return out;
  }

 private:
  // Hosts of a kind, one behind the other.
  struct HostRow {
    int kind = 0;
    int begin_block = 0, end_block = 0;
    std::optional<int> begin_layer;  // the first one there
  };

  struct Entry {
    TailTimes tail = {.passing_us = kUnreached};  // of this stage and those behind it
    double send_us = 0;                           // to the next one and back
    int end_layer = 0;
    int submesh = 0;  // by number

    bool is_reached() const { return tail.passing_us != kUnreached; }
  };

  // Pipelines whose stages exceed passing them by no more than `most_us`, beside those that exceed
  // it by no more than `least_us`.
  struct Range {
    double least_us = 0, most_us = 0;
    double passing_us = 0;  // all_us of any of them, at least

    double step_us() const { return least_us + passing_us; }
  };

  // The fastest way that fits.
  struct Choice {
    bool is_known = false;
    int16_t way = -1;  // none fits
    int32_t num_recomputed = 0;
    StageTimes times;
  };

  // By number from the end. What is held for gradients of weights alone is not between its passes:
  // of others there are as many as by 1f1b.
  static std::vector<int> BetweenPasses(const StageSearchInput& options, int most_stages) {
    std::vector<int> between;
    for (int from_end = 0; from_end <= most_stages; ++from_end)
      between.push_back(options.splits_backward ? from_end : options.Held(from_end).in_flight);
    return between;
  }

  // Stages that hold as many are searched once.
  void NumberHeld() {
    std::vector<MicroBatchesHeld> rows;
    for (int from_end = 0; from_end <= most_stages_; ++from_end) {
      // Without a limit it does not matter what is held.
      const MicroBatchesHeld held =
          options_.has_limit() ? options_.Held(from_end) : MicroBatchesHeld();
      const auto known = std::ranges::find(rows, held);
      row_of_held_.push_back(static_cast<int>(known - rows.begin()));
      if (known == rows.end()) rows.push_back(held);
    }
  }

  int FewestStages() const { return options_.num_stages > 0 ? options_.num_stages : 2; }

  void PlaceHosts(const std::vector<int>& kinds) {
    int block = 0;
    for (const int kind : kinds) {
      const int end = block + options_.hosts[kind].num_devices / block_;
      hosts_.push_back({.kind = kind, .begin_block = block, .end_block = end});
      block = end;
    }
    if (!options_.work.empty()) ShareWork();
  }

  // Every kind has a layer at least.
  void ShareWork() {
    double all_shares = 0, all_work = 0;
    for (const HostRow& row : hosts_) all_shares += options_.hosts[row.kind].share;
    for (const double work : options_.work) all_work += work;
    double wanted = 0, work = 0;
    int layer = 0;
    for (size_t row = 0; row + 1 < hosts_.size(); ++row) {
      wanted += options_.hosts[hosts_[row].kind].share / all_shares * all_work;
      const int last = num_layers_ - static_cast<int>(hosts_.size() - row - 1);
      do {
        work += options_.work[layer++];
      } while (layer < last && (!may_begin_[layer] || work + options_.work[layer] / 2 < wanted));
      hosts_[row + 1].begin_layer = layer;
    }
  }

  void GroupWays() {
    for (int way = 0; way < static_cast<int>(ways_.size()); ++way) {
      const Submesh submesh = ways_[way].submesh();
      if (submesh.num_devices % block_ != 0 ||
          submesh.num_devices > options_.hosts[submesh.kind].num_devices)
        continue;
      const auto number =
          static_cast<size_t>(std::ranges::find(submeshes_, submesh) - submeshes_.begin());
      if (number == submeshes_.size()) {
        submeshes_.push_back(submesh);
        ways_on_.emplace_back();
      }
      ways_on_[number].push_back(way);
    }
    choices_.resize(submeshes_.size());
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

  const HostRow& HostsAt(int block) const {
    return *std::ranges::find_if(hosts_,
                                 [block](const HostRow& row) { return block < row.end_block; });
  }

  // May a mesh begin at the block?
  bool MayBegin(int block, const Submesh& submesh) const {
    if (block < 0) return false;
    const HostRow& row = HostsAt(block);
    const int size = submesh.num_devices;
    if (submesh.kind != row.kind || block + size / block_ > row.end_block) return false;
    const int device = (block - row.begin_block) * block_;
    const int host = options_.hosts[row.kind].devices_per_host;
    if (size <= host) return device % host + size <= host;
    return device % host == 0 && size % host == 0;
  }

  // May the layer be the first one from the block on?
  bool MayBegin(int layer, int block) const {
    if (block == num_blocks_) return true;
    const HostRow& row = HostsAt(block);
    return block != row.begin_block || !row.begin_layer || layer == *row.begin_layer;
  }

  void FindSendTimes() {
    if (!options_.send_us) return;
    for (int layer = 1; layer < num_layers_; ++layer) {
      for (const Submesh& before : submeshes_) {
        for (const Submesh& behind : submeshes_) {
          for (const bool crosses : {false, true})
            send_us_.push_back(options_.send_us({layer, before, behind, crosses}));
        }
      }
    }
  }

  // Between a stage that ends there and the one behind it.
  double SendUs(int end_layer, int end_block, int submesh, int submesh_behind) const {
    if (send_us_.empty() || end_layer == num_layers_) return 0;
    const HostRow& behind = HostsAt(end_block);
    const int device = (end_block - behind.begin_block) * block_;
    const bool crosses = device % options_.hosts[behind.kind].devices_per_host == 0;
    const size_t num_submeshes = submeshes_.size();
    const size_t row = ((end_layer - 1) * num_submeshes + submesh) * num_submeshes + submesh_behind;
    return send_us_[2 * row + (crosses ? 1 : 0)];
  }

  bool Fits(const FoundStage& stage) const {
    return options_.FitsOn(ways_[stage.way].kind, stage.bytes);
  }

  // As estimated, corrected by what was planned.
  FoundStage StageOf(int way, int begin, int end, int num_recomputed, MicroBatchesHeld held) const {
    const StageCorrections& corrections = options_.corrections;
    FoundStage stage = estimates_.StageOf(way, begin, end, num_recomputed, held);
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
  std::optional<FoundStage> LeastRecomputed(int way, int begin, int end,
                                            MicroBatchesHeld held) const {
    const FoundStage plain = StageOf(way, begin, end, 0, held);
    if (Fits(plain)) return plain;
    int too_few = 0, enough = ways_[way].MostRecomputed(end - begin);
    if (enough == 0 || !Fits(StageOf(way, begin, end, enough, held))) return std::nullopt;
    while (enough - too_few > 1) {
      const int middle = (too_few + enough) / 2;
      (Fits(StageOf(way, begin, end, middle, held)) ? enough : too_few) = middle;
    }
    return StageOf(way, begin, end, enough, held);
  }

  const Choice& Fastest(int submesh, int begin, int end, int from_end) {
    const MicroBatchesHeld held = options_.Held(from_end);
    const int row = row_of_held_[from_end];
    std::vector<std::vector<Choice>>& rows = choices_[submesh];
    if (static_cast<int>(rows.size()) <= row) rows.resize(row + 1);
    if (rows[row].empty()) rows[row].resize(num_layers_ * (num_layers_ + 1));
    const int shift = begin - EqualBegin(begin, end);
    begin -= shift;
    end -= shift;
    Choice& choice = rows[row][begin * (num_layers_ + 1) + end];
    if (choice.is_known) return choice;
    choice.is_known = true;
    double least = kUnreached;
    for (const int way : ways_on_[submesh]) {
      const std::optional<FoundStage> stage = LeastRecomputed(way, begin, end, held);
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
    const int most_held =
        std::min(options_.Held(most_stages_).in_flight, options_.num_micro_batches);
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
    return std::max({dearest, all / options_.num_devices(), 1e-3});
  }

  void FindLeastInFront() {
    least_device_us_.assign(num_layers_ + 1, 0);
    least_passing_us_.assign(num_layers_ + 1, 0);
    for (int layer = 0; layer < num_layers_; ++layer) {
      double device_us = kUnreached, passing_us = kUnreached;
      for (const StageWay& way : ways_) {
        const LayerCost& cost = way.kept[layer];
        device_us = std::min(device_us, cost.micro_batch_us * way.num_devices);
        passing_us =
            std::min(passing_us, options_.splits_backward ? cost.forward_us : cost.micro_batch_us);
      }
      least_device_us_[layer + 1] = least_device_us_[layer] + device_us;
      least_passing_us_[layer + 1] = least_passing_us_[layer] + passing_us;
    }
  }

  // How many layers may be on these devices in front, so that a step may not take much longer than
  // what is found.
  int MostInFront(int num_blocks) const {
    const double most_us = kHopeless * step_time_us_ * num_blocks * block_;
    const auto behind = std::ranges::upper_bound(
        least_device_us_, most_us / options_.num_micro_batches * (1 + kRounding));
    return static_cast<int>(behind - least_device_us_.begin()) - 1;
  }

  // Does every pipeline with so many layers in front, and that work behind, take much longer?
  bool IsHopeless(int num_layers, double us_behind) const {
    return us_behind + least_passing_us_[num_layers] > kHopeless * step_time_us_;
  }

  Entry& At(int from_end, int begin, int block) { return best_[from_end][Index(begin, block)]; }
  int Index(int begin, int block) const { return begin * (num_blocks_ + 1) + block; }

  void Clear() {
    for (int from_end = 0; from_end <= most_stages_; ++from_end) {
      for (const int index : reached_[from_end]) best_[from_end][index] = {};
      reached_[from_end].clear();
    }
  }

  // At(...): by number of stages from the end, first layer and first device, the least that passing
  // takes of stages of which none exceeds it by more than the range has.
  void Fill(const Range& range) {
    Clear();
    At(0, num_layers_, num_blocks_).tail = {};
    reached_[0] = {Index(num_layers_, num_blocks_)};
    for (int from_end = 1; from_end <= most_stages_; ++from_end) {
      for (const int index : reached_[from_end - 1]) {
        const int end = index / (num_blocks_ + 1), block = index % (num_blocks_ + 1);
        if (end > 0 && block > 0) Extend(from_end, end, block, range);
      }
      // Of equally good ones the same is taken, whatever the order in which they were reached.
      std::ranges::sort(reached_[from_end]);
    }
  }

  void Extend(int from_end, int end, int end_block, const Range& range) {
    if (!MayBegin(end, end_block)) return;
    const Entry behind = At(from_end - 1, end, end_block);
    const double round_us =
        std::min(range.most_us, kLongestUs) / std::max(1, options_.num_micro_batches - 1);
    for (int submesh = 0; submesh < static_cast<int>(submeshes_.size()); ++submesh) {
      const int block = end_block - submeshes_[submesh].num_devices / block_;
      if (!MayBegin(block, submeshes_[submesh])) continue;
      const double send_us = SendUs(end, end_block, submesh, behind.submesh);
      for (int begin = std::min(end - 1, MostInFront(block)); begin >= 0; --begin) {
        if (!may_begin_[begin]) continue;
        const Choice& stage = Fastest(submesh, begin, end, from_end);
        if (stage.way < 0) break;
        const TailTimes tail = times_.Before(stage.times, from_end, send_us, behind.tail, round_us);
        // More layers neither take less nor fit better.
        if (times_.ExcessUs(stage.times, from_end, tail, tail.chain_us) > range.most_us) break;
        if (IsHopeless(begin, tail.passing_us + range.least_us)) continue;
        Entry& entry = At(from_end, begin, block);
        if (!entry.is_reached()) reached_[from_end].push_back(Index(begin, block));
        if (tail.all_us() < entry.tail.all_us()) entry = {tail, send_us, end, submesh};
      }
    }
  }

  // Branch and bound over the excess.
  void Search() {
    std::vector<Range> ranges = FirstRanges();
    while (!ranges.empty()) {
      const auto next = std::ranges::min_element(ranges, {}, &Range::step_us);
      const Range range = *next;
      ranges.erase(next);
      if (range.step_us() * kPrecision >= step_time_us_) break;
      if (range.most_us < kNarrow * range.least_us) continue;
      const double middle = std::sqrt(range.least_us * range.most_us);
      ranges.push_back({middle, range.most_us, range.passing_us});
      ranges.push_back(TryRange(range.least_us, middle));
    }
  }

  // Those up to a bound that some pipeline keeps, and those beyond; none where nothing fits.
  std::vector<Range> FirstRanges() {
    const double least = LeastBound();
    for (const double most : kFirstBounds) {
      Range range = TryRange(least, most * least);
      if (std::isinf(step_time_us_)) continue;
      range.most_us = std::min(range.most_us, step_time_us_);
      return {range, {range.most_us, step_time_us_, least_passing_us_[num_layers_]}};
    }
    return {};
  }

  Range TryRange(double least_us, double most_us) {
    Range range{least_us, most_us, kUnreached};
    Fill(range);
    for (int stages = FewestStages(); stages <= most_stages_; ++stages) {
      const Entry& entry = At(stages, 0, 0);
      if (!entry.is_reached()) continue;
      range.passing_us = std::min(range.passing_us, entry.tail.all_us());
      Keep(stages);
    }
    return range;
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
      const Choice& stage = Fastest(entry.submesh, begin, entry.end_layer, from_end);
      out.stages.push_back(StageOf(stage.way, begin, entry.end_layer, stage.num_recomputed,
                                   options_.Held(from_end)));
      of_step.push_back({stage.times, entry.send_us});
      begin = entry.end_layer;
      block += submeshes_[entry.submesh].num_devices / block_;
    }
    out.step_time_us = times_.StepUs(of_step);
    return out;
  }

  const std::vector<StageWay>& ways_;
  const StageSearchInput& options_;
  const StageEstimates estimates_;
  const int num_layers_, block_, num_blocks_, most_stages_;
  const ScheduleTimes times_;
  const std::vector<int> first_equal_;  // by layer
  std::vector<int> run_length_;         // by layer: of equal layers from it on
  std::vector<int> longest_run_;        // by first equal layer: where most of them are in a row
  std::vector<char> may_begin_;         // by layer
  std::vector<HostRow> hosts_;          // along the pipeline
  std::vector<Submesh> submeshes_;
  std::vector<std::vector<int>> ways_on_;                  // by submesh
  std::vector<std::vector<std::vector<Choice>>> choices_;  // by submesh, row_of_held_, layers
  std::vector<int> row_of_held_;                           // by number from the end
  // By layer behind, submeshes before and behind, whether hosts differ.
  std::vector<double> send_us_;
  // By number of layers in front: what they take of all devices together at least, and to be passed
  // one after the other.
  std::vector<double> least_device_us_, least_passing_us_;
  std::vector<std::vector<Entry>> best_;   // by number from the end; see At
  std::vector<std::vector<int>> reached_;  // by number from the end: indices, see Index
  std::vector<FoundPipeline> found_;       // by number of stages
  double step_time_us_ = kUnreached;       // of the fastest
};

}  // namespace

double PartOfLimits(const FoundPipeline& found, const std::vector<StageWay>& ways,
                    const StageSearchInput& input) {
  double part = 0;
  for (const FoundStage& stage : found.stages) {
    const std::optional<int64_t> limit_bytes = input.hosts[ways[stage.way].kind].limit_bytes;
    if (limit_bytes)
      part = std::max(part, static_cast<double>(stage.bytes) / static_cast<double>(*limit_bytes));
  }
  return part;
}

int StageSearchInput::num_devices() const {
  int sum = 0;
  for (const HostsOfKind& of_kind : hosts) sum += of_kind.num_devices;
  return sum;
}

bool StageSearchInput::has_limit() const {
  return std::ranges::any_of(
      hosts, [](const HostsOfKind& of_kind) { return of_kind.limit_bytes.has_value(); });
}

int DevicesPerBlock(const std::vector<HostsOfKind>& hosts) {
  int num_devices = 0;
  for (const HostsOfKind& of_kind : hosts) num_devices += of_kind.num_devices;
  // Blocks are parts of a host, or of whole ones.
  const auto is_block_of = [](int size, const HostsOfKind& of_kind) {
    const int host = of_kind.devices_per_host;
    return of_kind.num_devices % size == 0 && (host % size == 0 || size % host == 0);
  };
  for (int size = num_devices / kUsualBlocks; size > 1; --size) {
    if (std::ranges::all_of(hosts, [&](const auto& of_kind) { return is_block_of(size, of_kind); }))
      return size;
  }
  return 1;
}

std::vector<FoundPipeline> FindStages(const std::vector<StageWay>& ways,
                                      const StageSearchInput& options) {
  std::vector<int> kinds;  // that have devices
  for (int kind = 0; kind < static_cast<int>(options.hosts.size()); ++kind) {
    if (options.hosts[kind].num_devices > 0) kinds.push_back(kind);
  }
  std::map<size_t, FoundPipeline> fastest;  // by number of stages
  do {
    for (FoundPipeline& found : StageSearch(ways, options, kinds).Run()) {
      FoundPipeline& of_number = fastest[found.stages.size()];
      if (of_number.stages.empty() || found.step_time_us < of_number.step_time_us)
        of_number = std::move(found);
    }
  } while (std::ranges::next_permutation(kinds).found);
  std::vector<FoundPipeline> out;
  for (auto& [num_stages, found] : fastest) out.push_back(std::move(found));
  std::ranges::stable_sort(out, {}, &FoundPipeline::step_time_us);
  return out;
}

}  // namespace minka
