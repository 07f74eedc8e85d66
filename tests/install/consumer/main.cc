// What a user's program looks like from outside: installed headers and targets only. A two-layer
// network, written for one device, learns y = x on eight.
#include <cstdio>
#include <cstdlib>

#include "minka/minka.h"

namespace {

using namespace minka;

absl::StatusOr<double> LossAfter(int num_steps) {
  const Shape shape{ElementType::kF32, {64, 32}};
  const Model model{.name = "two_layers",
                    .inputs = {{"x", shape}, {"y", shape}},
                    .forward = [](const Scope& scope, std::span<const Tensor> inputs) {
                      Tensor h = Relu(Dense(scope / "hidden", inputs[0], {.features = {128}}));
                      Tensor y = Dense(scope / "out", h, {.features = {32}});
                      return ModelOutput{.loss = MeanSquaredError(y, inputs[1])};
                    }};
  ASSIGN_OR_RETURN(TracedStep step, Trace(model, AdamW()));
  ASSIGN_OR_RETURN(Parallelized run, Parallelize(step, Cluster::Local(8), Shard{}));
  ASSIGN_OR_RETURN(State state, run.Initialize(/*seed=*/0));
  const int y = static_cast<int>(step.step.parameters.size()) - 1;
  double loss = 0;
  for (int i = 0; i < num_steps; ++i) {
    ASSIGN_OR_RETURN(Literal x, RandomInput(step.step, y, i));
    ASSIGN_OR_RETURN(StepResult result, run(std::move(state), {x, x}));
    state = std::move(result.state);
    ASSIGN_OR_RETURN(loss, result.Loss());
  }
  RETURN_IF_ERROR(run.SavePlan("plan.json"));
  return loss;
}

}  // namespace

int main() {
  const absl::StatusOr<double> first = LossAfter(1);
  const absl::StatusOr<double> last = LossAfter(100);
  for (const absl::StatusOr<double>* loss : {&first, &last}) {
    if (!loss->ok()) {
      std::fprintf(stderr, "%s\n", Message(loss->status()).c_str());
      return EXIT_FAILURE;
    }
  }
  std::printf("loss after 1 step: %.3f, after 100 steps: %.3f\n", *first, *last);
  return *last < *first ? EXIT_SUCCESS : EXIT_FAILURE;
}
