#include "minka/planner/inter_op/balance_stages.h"

#include <algorithm>
#include <limits>

namespace minka {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// The dynamic program takes a second where all of these are reached.
constexpr int kMostDevices = 64, kMostLayers = 128, kMostStages = 16;

std::vector<double> SumsBefore(const std::vector<double>& load) {
  std::vector<double> before = {0};
  for (const double of_layer : load) before.push_back(before.back() + of_layer);
  return before;
}

// The dynamic program over stages, layers in them and devices that they have.
class SubmeshBalancer {
 public:
  SubmeshBalancer(const std::vector<double>& load, const Cluster& cluster)
      : devices_per_host_(cluster.devices_per_host),
        num_devices_(cluster.num_devices()),
        num_layers_(static_cast<int>(load.size())),
        before_(SumsBefore(load)) {}

  std::map<int, std::vector<int>> Run() && {
    const int most_stages = std::min({num_layers_, num_devices_, kMostStages});
    best_.assign(most_stages + 1, std::vector<Entry>((num_layers_ + 1) * (num_devices_ + 1)));
    At(0, 0, 0).worst = 0;
    std::map<int, std::vector<int>> found;
    for (int stage = 1; stage <= most_stages; ++stage) {
      FillStage(stage);
      if (stage < 2 || At(stage, num_layers_, num_devices_).worst == kNever) continue;
      std::vector<int> sizes = SizesOf(stage);
      if (std::ranges::adjacent_find(sizes, std::ranges::not_equal_to()) != sizes.end()) {
        found[stage] = std::move(sizes);
      }
    }
    return found;
  }

 private:
  struct Entry {
    double worst = kNever, sum = 0;  // of loads per device
    int first_layer = 0, size = 0;   // of the last stage
  };

  Entry& At(int stage, int layers, int devices) {
    return best_[stage][layers * (num_devices_ + 1) + devices];
  }

  // May a mesh of so many devices begin at the device?
  bool Fits(int first, int size) const {
    if (size <= devices_per_host_) return first % devices_per_host_ + size <= devices_per_host_;
    return first % devices_per_host_ == 0 && size % devices_per_host_ == 0;
  }

  void FillStage(int stage) {
    for (int first_device = stage - 1; first_device < num_devices_; ++first_device) {
      for (int size = 1; first_device + size <= num_devices_; size *= 2) {
        if (!Fits(first_device, size)) continue;
        for (int end = stage; end <= num_layers_; ++end) {
          for (int first = stage - 1; first < end; ++first)
            Try(stage, first, end, first_device, size);
        }
      }
    }
  }

  void Try(int stage, int first, int end, int first_device, int size) {
    const Entry& in_front = At(stage - 1, first, first_device);
    const double of_stage = (before_[end] - before_[first]) / size;
    const double worst = std::max(in_front.worst, of_stage), sum = in_front.sum + of_stage;
    Entry& best = At(stage, end, first_device + size);
    if (worst > best.worst || (worst == best.worst && sum >= best.sum)) return;
    best = {.worst = worst, .sum = sum, .first_layer = first, .size = size};
  }

  std::vector<int> SizesOf(int num_stages) {
    std::vector<int> sizes(num_stages);
    int layers = num_layers_, devices = num_devices_;
    for (int stage = num_stages; stage > 0; --stage) {
      const Entry& entry = At(stage, layers, devices);
      sizes[stage - 1] = entry.size;
      layers = entry.first_layer;
      devices -= entry.size;
    }
    return sizes;
  }

  const int devices_per_host_, num_devices_, num_layers_;
  const std::vector<double> before_;
  std::vector<std::vector<Entry>> best_;  // by number of stages; see At
};

}  // namespace

// A dynamic program over the end of each stage.
std::vector<int> BalanceLayers(const std::vector<double>& load, const std::vector<int>& sizes) {
  const size_t num_layers = load.size(), num_stages = sizes.size();
  const std::vector<double> before = SumsBefore(load);
  std::vector<std::vector<double>> best(num_stages + 1,
                                        std::vector<double>(num_layers + 1, kNever));
  std::vector<std::vector<size_t>> begin(num_stages + 1, std::vector<size_t>(num_layers + 1));
  best[0][0] = 0;
  for (size_t stage = 1; stage <= num_stages; ++stage) {
    for (size_t end = stage; end <= num_layers; ++end) {
      for (size_t first = stage - 1; first < end; ++first) {
        const double of_stage =
            (before[end] - before[first]) / static_cast<double>(sizes[stage - 1]);
        const double worst = std::max(best[stage - 1][first], of_stage);
        if (worst >= best[stage][end]) continue;
        best[stage][end] = worst;
        begin[stage][end] = first;
      }
    }
  }
  std::vector<int> stage_of_layer(num_layers);
  size_t end = num_layers;
  for (size_t stage = num_stages; stage > 0; --stage) {
    for (size_t layer = begin[stage][end]; layer < end; ++layer) {
      stage_of_layer[layer] = static_cast<int>(stage) - 1;
    }
    end = begin[stage][end];
  }
  return stage_of_layer;
}

std::map<int, std::vector<int>> BalanceSubmeshes(const std::vector<double>& load,
                                                 const Cluster& cluster) {
  if (cluster.num_devices() > kMostDevices || load.size() > kMostLayers) return {};
  return SubmeshBalancer(load, cluster).Run();
}

double EstimateStepTime(const std::vector<double>& load, const std::vector<int>& sizes,
                        int64_t num_micro_batches) {
  const std::vector<int> stage_of_layer = BalanceLayers(load, sizes);
  std::vector<double> times(sizes.size());
  for (size_t layer = 0; layer < load.size(); ++layer) {
    times[stage_of_layer[layer]] += load[layer] / sizes[stage_of_layer[layer]];
  }
  double sum = 0;
  for (const double time : times) sum += time;
  return sum + static_cast<double>(num_micro_batches - 1) * *std::ranges::max_element(times);
}

}  // namespace minka
