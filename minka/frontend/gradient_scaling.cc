#include "minka/frontend/gradient_scaling.h"

namespace minka {
namespace {

constexpr double kMinScale = 1;

Tensor SumOfSquares(Graph& graph, std::span<const Tensor> gradients) {
  const ScopeName name(graph, "apply/gradient_norm");
  Tensor sum = graph.Scalar(ElementType::kF32, 0);
  for (const Tensor gradient : gradients) {
    if (!gradient.valid()) return Tensor();
    const Tensor g = Convert(gradient, ElementType::kF32);
    sum = sum + Sum(g * g);
  }
  return sum;
}

}  // namespace

ReadyGradients ScaleGradients(Graph& graph, std::span<const Tensor> gradients, Tensor scale,
                              const GradientScaling& options) {
  ReadyGradients ready{.gradients = {gradients.begin(), gradients.end()}, .norm = {}, .finite = {}};
  if (!options.loss_scale && !options.clip_norm) return ready;
  const Tensor squares = SumOfSquares(graph, gradients);
  const ScopeName name(graph, "apply/gradient_norm");
  ready.norm = Sqrt(squares);
  Tensor factor = graph.Scalar(ElementType::kF32, 1);
  if (scale.valid()) {
    factor = 1.0 / scale;
    ready.norm = ready.norm * factor;
    ready.finite = IsFinite(squares);
  }
  if (options.clip_norm) factor = factor * Min(*options.clip_norm / ready.norm, 1.0);
  for (Tensor& gradient : ready.gradients) {
    gradient = gradient * Broadcast(Convert(factor, gradient.type()), gradient.dims(), {});
  }
  return ready;
}

LossScaleState NextLossScale(const LossScale& options, const LossScaleState& state, Tensor finite) {
  const Tensor good = state.good_updates + 1.0;
  const Tensor grows = Compare(Comparison::kGe, good, static_cast<double>(options.growth_interval));
  const Tensor raised = Where(grows, state.scale * options.growth, state.scale);
  const Tensor lowered = Max(state.scale * options.backoff, kMinScale);
  const Tensor zero = state.good_updates.graph().Scalar(good.type(), 0);
  return {.scale = Where(finite, raised, lowered),
          .good_updates = Where(And(finite, Not(grows)), good, zero)};
}

}  // namespace minka
