// Traced steps as a PJRT plugin runs them: the same results as on the exact host evaluator, the
// same random bits, and loss that falls in every
// type.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>

#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/frontend/convolution.h"
#include "minka/ir/hlo_proto.h"
#include "minka/ir/testing/evaluator.h"
#include "minka/models/bert.h"
#include "minka/models/gpt.h"
#include "minka/models/mlp.h"
#include "minka/runtime/pjrt/client.h"
#include "minka/runtime/pjrt/executable.h"
#include "minka/runtime/pjrt/plugin.h"
#include "tests/support/must.h"

namespace minka {
namespace {

using testing::Array;
using testing::Evaluate;
using testing::FromLiteral;

const pjrt::Client& CpuClient() {
  static const pjrt::Client* client = [] {
    const std::string path = Must(pjrt::FindPlugin({.kind = Platform::kCpu}));
    return new pjrt::Client(
        Must(pjrt::Client::Create(Must(pjrt::Plugin::Load(path)), {.num_devices = 1})));
  }();
  return *client;
}

// One value of the step as bytes, from the seed or a formula.
Literal InitialInput(const TracedStep& traced, size_t i) {
  const Computation& entry = traced.step.module.entry_computation();
  const Shape& shape = entry.instructions[entry.parameters[i]].shape();
  const ParameterInfo& info = traced.step.parameters[i];
  if (traced.initializers[i]) return InitialValue(*traced.initializers[i], shape, info.name, 3);
  if (shape.type == ElementType::kF32) {
    return InitialValue({Initializer::Kind::kNormal, 1}, shape, info.name, 3);
  }
  int64_t num_values = 1000;
  for (const BatchInput& input : traced.inputs) {
    if (input.name == info.name) num_values = input.num_values;
  }
  std::string bytes(shape.num_bytes(), '\0');
  for (int64_t j = 0; j < shape.num_elements(); ++j) {
    const auto value = static_cast<int32_t>((7 * j + j / 5 + 1) % num_values);
    std::memcpy(bytes.data() + 4 * j, &value, 4);
  }
  return {shape, std::make_shared<const std::string>(std::move(bytes))};
}

// A compiled step with its state on the device; the batch stays the same.
class Training {
 public:
  explicit Training(const TracedStep& traced)
      : traced_(traced),
        step_(Must(pjrt::Executable::Compile(CpuClient(), ExportHlo(traced.step.module), {}))) {
    for (size_t i = 0; i < traced.step.parameters.size(); ++i) {
      const Literal value = InitialInput(traced, i);
      buffers_.push_back(Must(CpuClient().CopyFromHost(0, value.shape, *value.bytes)));
    }
  }

  // Runs a step; the results that are not state.
  std::vector<pjrt::Buffer> Step() {
    std::vector<std::vector<pjrt::Buffer*>> arguments(1);
    for (pjrt::Buffer& buffer : buffers_) arguments[0].push_back(&buffer);
    pjrt::Launch launch = Must(step_.Execute(arguments));
    const absl::Status status = launch.Await();
    MINKA_CHECK(status.ok(), "{}", Message(status));
    std::vector<pjrt::Buffer>& results = launch.results[0];
    size_t num_state = 0;
    for (size_t i = 0; i < buffers_.size(); ++i) {
      const int result = traced_.step.parameters[i].state_result;
      if (result < 0) continue;
      buffers_[i] = std::move(results[result]);
      ++num_state;
    }
    results.erase(results.begin(), results.begin() + static_cast<int64_t>(num_state));
    return std::move(results);
  }

  float Loss() { return Elements(Step().front()).front(); }

  static std::vector<float> Elements(const pjrt::Buffer& buffer) {
    const std::string bytes = Must(buffer.ToHost());
    std::vector<float> elements(bytes.size() / sizeof(float));
    std::memcpy(elements.data(), bytes.data(), bytes.size());
    return elements;
  }

  const pjrt::Buffer& state(size_t i) const { return buffers_[i]; }
  int64_t temp_bytes() const { return step_.memory().temp_bytes; }

 private:
  const TracedStep& traced_;
  pjrt::Executable step_;
  std::vector<pjrt::Buffer> buffers_;
};

// Gradient descent, whose new parameters carry the gradients without Adam's division by small
// numbers.
void ExpectSameAsEvaluator(const Model& model) {
  const TracedStep traced = Must(Trace(model, Sgd({.learning_rate = 0.5, .momentum = 0})));
  std::vector<Array> inputs;
  for (size_t i = 0; i < traced.step.parameters.size(); ++i) {
    inputs.push_back(FromLiteral(InitialInput(traced, i)));
  }
  const std::vector<Array> expected = Evaluate(traced.step.module, inputs);
  Training training(traced);
  EXPECT_NEAR(training.Loss(), double(expected.back().elements.front()), 1e-5);
  for (size_t i = 0; i + 1 < expected.size(); ++i) {
    const std::vector<float> elements = Training::Elements(training.state(i));
    ASSERT_EQ(elements.size(), expected[i].elements.size());
    for (size_t j = 0; j < elements.size(); ++j) {
      ASSERT_NEAR(elements[j], double(expected[i].elements[j]), 2e-5)
          << traced.step.parameters[i].name << " element " << j;
    }
  }
}

GptConfig SmallGpt() {
  return {.batch = 4,
          .sequence = 8,
          .vocabulary = 31,
          .hidden = 16,
          .num_layers = 1,
          .num_heads = 4,
          .dropout = 0.1};
}

// Every form of convolution and pooling, with gradients by inputs and kernels.
Model SmallConvolutions() {
  return {.name = "convolutions",
          .inputs = {{.name = "images", .shape = {ElementType::kF32, {4, 9, 8, 4}}}},
          .forward = [](const Scope& scope, std::span<const Tensor> inputs) -> ModelOutput {
            Tensor x = Conv(scope / "strided", inputs[0],
                            {.features = 8, .kernel = {3, 3}, .strides = {2, 1}});
            x = BatchNorm(scope / "norm", x);
            x = MaxPool(Tanh(x), {.window = {3, 2}, .strides = {1, 2}, .padding = Padding::kSame});
            x = Conv(scope / "grouped", x,
                     {.features = 8, .kernel = {3, 3}, .dilations = {1, 2}, .groups = 4});
            x = ConvTranspose(scope / "spread", x,
                              {.features = 4, .kernel = {3, 2}, .strides = {2, 2}});
            x = GroupNorm(scope / "group_norm", x, 2) + CumulativeSum(x, 1);
            x = Upsample(AveragePool(x, {.window = {2, 4}}), 2);
            return {.loss = Mean(x * x)};
          }};
}

TEST(ModelsOnPluginTest, StepsEqualTheExactEvaluatorDropoutIncluded) {
  ExpectSameAsEvaluator(Mlp({.batch = 8, .hidden = 8, .num_layers = 2}));
  ExpectSameAsEvaluator(Gpt(SmallGpt()));
  ExpectSameAsEvaluator(BertMaskedLanguageModel({.batch = 4,
                                                 .sequence = 8,
                                                 .vocabulary = 31,
                                                 .hidden = 16,
                                                 .num_layers = 1,
                                                 .num_heads = 4}));
  ExpectSameAsEvaluator(SmallConvolutions());
}

TEST(ModelsOnPluginTest, NarrowTypesLearn) {
  for (ElementType type : {ElementType::kBF16, ElementType::kF16}) {
    const TracedStep traced =
        Must(Trace(Gpt(SmallGpt()), AdamW({.learning_rate = 0.01}), {.dtype = {.compute = type}}));
    Training training(traced);
    const float first = training.Loss();
    EXPECT_NEAR(first, std::log(31.0), 0.5) << TypeName(type);
    float last = first;
    for (int i = 0; i < 30; ++i) last = training.Loss();
    EXPECT_LT(last, 0.5 * first) << TypeName(type);
  }
}

}  // namespace
}  // namespace minka
