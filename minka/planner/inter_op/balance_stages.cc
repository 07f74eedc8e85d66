#include "minka/planner/inter_op/balance_stages.h"

#include <algorithm>
#include <limits>

namespace minka {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

std::vector<double> SumsBefore(const std::vector<double>& load) {
  std::vector<double> before = {0};
  for (const double of_layer : load) before.push_back(before.back() + of_layer);
  return before;
}

}  // namespace

// A dynamic program over the end of each stage.
std::vector<int> BalanceLayers(const std::vector<double>& load, const std::vector<double>& rates) {
  const size_t num_layers = load.size(), num_stages = rates.size();
  const std::vector<double> before = SumsBefore(load);
  std::vector<std::vector<double>> best(num_stages + 1,
                                        std::vector<double>(num_layers + 1, kNever));
  std::vector<std::vector<size_t>> begin(num_stages + 1, std::vector<size_t>(num_layers + 1));
  best[0][0] = 0;
  for (size_t stage = 1; stage <= num_stages; ++stage) {
    for (size_t end = stage; end <= num_layers; ++end) {
      for (size_t first = stage - 1; first < end; ++first) {
        const double of_stage = (before[end] - before[first]) / rates[stage - 1];
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

}  // namespace minka
