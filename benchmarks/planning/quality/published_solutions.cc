#include "benchmarks/planning/quality/published_solutions.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "fmt/format.h"

namespace minka {
namespace {

using Stages = std::vector<PublishedStage>;

Stages Equal(int num_stages, const PublishedStage& stage) { return Stages(num_stages, stage); }

PublishedSolution Transformer(std::string model, std::string cluster, int64_t num_micro_batches,
                              Stages stages) {
  return {.model = std::move(model),
          .cluster = std::move(cluster),
          .num_micro_batches = num_micro_batches,
          .stages = std::move(stages)};
}

PublishedSolution WideResNet(PublishedSolution solution) {
  solution.per_micro_batch = true;
  solution.is_f16 = false;
  return solution;
}

PublishedSolution Unet(PublishedSolution solution) {
  solution.is_f16 = false;
  solution.prefers_reduce_scatter = false;
  return solution;
}

}  // namespace

int PublishedSolution::num_layers() const {
  return std::accumulate(stages.begin(), stages.end(), 0, [](int sum, const PublishedStage& stage) {
    return sum + stage.num_layers;
  });
}

std::string NameOf(const PublishedSolution& solution) {
  return fmt::format("{} on {}, batch {} in {}", solution.model, solution.cluster,
                     solution.global_batch, solution.num_micro_batches);
}

std::vector<PublishedSolution> PublishedSolutions() {
  return {
      // One layer there: its backward pass begins with all of the forward pass, as that of several
      // does here. Of one nothing would be kept for its backward pass that need not be.
      Transformer("gpt-350m", "p3.16xlarge:1x1", 512, {{8, 1, 1}}),
      Transformer("gpt-760m", "p3.16xlarge:1x2", 128, Equal(2, {3, 1, 1, true})),
      Transformer("gpt-1.3b", "p3.16xlarge:1x4", 128, Equal(2, {3, 2, 1, true})),
      Transformer("gpt-2.6b", "p3.16xlarge:1", 128, {{2, 2, 1, true}, {2, 2, 1}, {4, 4, 1}}),
      Transformer("gpt-6.7b", "p3.16xlarge:2", 64, Equal(2, {4, 2, 4, true})),
      Transformer("gpt-15b", "p3.16xlarge:4", 128, Equal(4, {4, 2, 4, true})),
      Transformer("gpt-39b", "p3.16xlarge:8", 1024, Equal(16, {1, 1, 4, true})),
      Transformer("moe-380m", "p3.16xlarge:1x1", 512, {{8, 1, 1}}),
      Transformer("moe-690m", "p3.16xlarge:1x2", 32, {{8, 2, 1, true}}),
      Transformer("moe-1.3b", "p3.16xlarge:1x4", 32, Equal(2, {4, 2, 1, true})),
      Transformer("moe-2.4b", "p3.16xlarge:1", 32, Equal(2, {4, 4, 1, true})),
      Transformer("moe-10b", "p3.16xlarge:2", 16, Equal(2, {4, 8, 1})),
      Transformer("moe-27b", "p3.16xlarge:4", 128, Equal(8, {1, 4, 1})),
      Transformer("moe-70b", "p3.16xlarge:8", 64, Equal(8, {1, 8, 1})),
      WideResNet({"wresnet-250m", "p3.16xlarge:1x1", 1536, 24, {{16, 1, 1}}}),
      WideResNet({"wresnet-500m", "p3.16xlarge:1x2", 1536, 24, {{16, 1, 2}}}),
      WideResNet({"wresnet-1b", "p3.16xlarge:1x4", 1536, 24, {{16, 1, 4}}}),
      WideResNet({"wresnet-2b", "p3.16xlarge:1", 1536, 24, {{8, 4, 1}, {8, 1, 4, true}}}),
      WideResNet(
          {"wresnet-4b", "p3.16xlarge:2", 1536, 32, {{5, 4, 1, true}, {4, 4, 1, true}, {7, 8, 1}}}),
      WideResNet({"wresnet-6.8b",
                  "p3.16xlarge:4",
                  1536,
                  32,
                  {{5, 8, 1, true}, {4, 8, 1}, {4, 8, 1}, {3, 8, 1}}}),
      WideResNet({"wresnet-13b",
                  "p3.16xlarge:8",
                  1520,
                  38,
                  {{4, 8, 1},
                   {4, 1, 8, true},
                   {4, 8, 1},
                   {4, 1, 8, true},
                   {4, 8, 1},
                   {4, 8, 1},
                   {5, 1, 8, true},
                   {4, 8, 1}}}),
      Unet({"unet-470m", "p3.16xlarge:1x2", 256, 4, {{7, 1, 1}, {6, 1, 1}}}),
      Unet({"unet-1b", "p3.16xlarge:1x4", 2048, 32, {{8, 2, 1}, {5, 2, 1}}}),
      Unet({"unet-2b", "p3.16xlarge:1", 2048, 32, {{9, 4, 1}, {4, 4, 1}}}),
  };
}

// Step times from published TFLOP/s per GPU (OSDI'22, figure 8a, from the authors' data file), by
// the same formula: 96 B S H^2 L (1 + S / (6 H)) + 6 B S H V operations a step. The last one is in
// the repository's README, with its memory.
std::vector<PublishedSolution> PublishedPoints() {
  const std::pair<const char*, double> seconds[] = {
      {"gpt-350m", 72.89}, {"gpt-760m", 58.94}, {"gpt-1.3b", 49.98}, {"gpt-2.6b", 47.36},
      {"gpt-6.7b", 60.02}, {"gpt-15b", 69.14},  {"gpt-39b", 91.46}};
  std::vector<PublishedSolution> points;
  for (const PublishedSolution& solution : PublishedSolutions()) {
    const auto found = std::ranges::find_if(
        seconds, [&](const auto& point) { return solution.model == point.first; });
    if (found == std::end(seconds)) continue;
    points.push_back(solution);
    points.back().step_seconds = found->second;
  }
  PublishedSolution regression =
      Transformer("gpt-2.6b", "p3.16xlarge:1", 4, Equal(2, {16, 2, 2, true}));
  regression.global_batch = 32;
  regression.step_seconds = 2.464;
  regression.memory_gibibytes = 8.745;
  points.push_back(std::move(regression));
  return points;
}

}  // namespace minka
