// Trains a multi-layer perceptron on y = W x + b with shard and pipeline parallelism, first with
// stages by hand, then with stages that minka chooses, and compares both with one device.
//
//   build/release/bin/pipeline_mlp build/minka
#include <cmath>
#include <cstdio>
#include <string>

#include "minka/minka.h"

namespace {

using namespace minka;

constexpr int64_t kBatch = 64, kWidth = 64;
constexpr int kSteps = 3;
constexpr uint64_t kSeed = 0;

// Two blocks of two layers. Between blocks a model may be parted: layers lie between their ends.
Model TwoBlocks() {
  return {.name = "two_blocks",
          .inputs = {{"x", {ElementType::kF32, {kBatch, kWidth}}},
                     {"y", {ElementType::kF32, {kBatch, kWidth}}}},
          .forward = [](const Scope& scope, std::span<const Tensor> inputs) {
            Tensor x = inputs[0];
            for (int i = 0; i < 2; ++i) {
              x = (scope / fmt::format("block_{}", i)).Block(x, [](const Scope& block, Tensor in) {
                const Tensor wide = Relu(Dense(block / "up", in, {.features = {4 * kWidth}}));
                return Dense(block / "down", wide, {.features = {kWidth}});
              });
            }
            const Tensor difference = x - inputs[1];
            return ModelOutput{.loss = Mean(difference * difference, {0, 1})};
          }};
}

// x at random, y = W x + b with one W and b for all steps.
absl::StatusOr<Batch> BatchOf(const Step& step, int number) {
  Batch batch;
  for (size_t i = 0; i < step.parameters.size(); ++i) {
    if (step.parameters[i].role != ParameterRole::kBatch) continue;
    ASSIGN_OR_RETURN(Literal value, RandomInput(step, static_cast<int>(i), kSeed + number));
    batch.push_back(std::move(value));
  }
  const auto* const x = reinterpret_cast<const float*>(batch[0].bytes->data());
  std::string y(batch[1].bytes->size(), '\0');
  auto* const out = reinterpret_cast<float*>(y.data());
  for (int64_t row = 0; row < kBatch; ++row) {
    for (int64_t to = 0; to < kWidth; ++to) {
      float sum = 0.1F;  // b
      for (int64_t from = 0; from < kWidth; ++from) {
        const float weight = std::sin(static_cast<float>(from * kWidth + to)) / 8;  // W
        sum += weight * x[row * kWidth + from];
      }
      out[row * kWidth + to] = sum;
    }
  }
  batch[1].bytes = std::make_shared<const std::string>(std::move(y));
  return batch;
}

// Trains and says by how much the result differs from one device's, as a part of what is allowed.
absl::Status TrainAndCompare(const TracedStep& traced, const Pipeline& method,
                             const std::string& minka) {
  ParallelizeOptions options;
  options.workers = {.binary = minka};  // each mesh in a process of its own
  ASSIGN_OR_RETURN(Parallelized run, Parallelize(traced, Cluster::Local(4), method, options));
  ASSIGN_OR_RETURN(const std::string table, DescribePipeline(*run.pipeline()));
  std::printf("%s\n", table.c_str());

  ASSIGN_OR_RETURN(State state, run.Initialize(kSeed));
  for (int step = 0; step < kSteps; ++step) {
    ASSIGN_OR_RETURN(const Batch batch, BatchOf(traced.step, step));
    ASSIGN_OR_RETURN(StepResult result, run(std::move(state), batch));
    state = std::move(result.state);
    ASSIGN_OR_RETURN(const double loss, result.Loss());
    std::printf("step %d: loss %.6f\n", step, loss);
  }
  // Weights stay distributed; what is asked for is fetched.
  std::printf("%s: %s\n", traced.step.parameters[0].name.c_str(),
              state.arrays[0].ToString().c_str());
  ASSIGN_OR_RETURN(const Literal weights, state.arrays[0].ToHost());
  std::printf("its first element: %.6f\n", ElementAsDouble(weights, 0));

  const StepInputs inputs = [&](int step) -> absl::StatusOr<ParameterValues> {
    ParameterValues values = InitialValues(traced.step, traced.initializers, kSeed);
    ASSIGN_OR_RETURN(const Batch batch, BatchOf(traced.step, step));
    ASSIGN_OR_RETURN(const ParameterValues of_batch, run.StepValues(batch, kSeed, step));
    for (size_t i = 0; i < values.size(); ++i) {
      if (of_batch[i].bytes) values[i] = of_batch[i];
    }
    return values;
  };
  ASSIGN_OR_RETURN(const OracleReport report, CheckAgainstOneDevice(run, inputs, kSteps));
  if (!report.ok()) return FailedPrecondition("{}", report.Failures());
  std::printf("as on one device: %zu results compared after %d steps\n\n", report.outputs.size(),
              kSteps);
  return absl::OkStatus();
}

absl::Status RunExample(const std::string& minka) {
  ASSIGN_OR_RETURN(const TracedStep traced, Trace(TwoBlocks(), AdamW({.learning_rate = 1e-3})));

  std::printf("stages by hand: the second block on a mesh of its own\n");
  Pipeline by_hand{.num_micro_batches = 4};
  by_hand.options.stage_of_layer = {0, 1, 1};  // the loss is a layer behind the last block
  by_hand.options.submeshes = {2, 2};
  RETURN_IF_ERROR(TrainAndCompare(traced, by_hand, minka));

  std::printf("stages, meshes and shardings by search\n");
  return TrainAndCompare(traced, {.num_micro_batches = 4}, minka);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: pipeline_mlp MINKA\nMINKA is the command, which is the worker\n");
    return 1;
  }
  const absl::Status status = RunExample(argv[1]);
  if (!status.ok()) std::fprintf(stderr, "%s\n", Message(status).c_str());
  return status.ok() ? 0 : 1;
}
