#include "minka/models/registry.h"

#include <gtest/gtest.h>

#include "minka/base/status.h"

namespace minka {
namespace {

double BillionParameters(const std::string& name) {
  const absl::StatusOr<NamedModel> named = MakeModel(name);
  EXPECT_TRUE(named.ok()) << Message(named.status());
  const auto parameters = ParametersOf(named->model);
  EXPECT_TRUE(parameters.ok()) << Message(parameters.status());
  return 1e-9 * static_cast<double>(NumElements(*parameters));
}

TEST(RegistryTest, GptSizesAreAlpasUntiedOnesWithPositionsForTheWholeSequence) {
  // Alpa's untied models have 512 position rows, these 1024, and an output bias, these none.
  struct Size {
    std::string name;
    double alpa_billions;
    double hidden;
  };
  for (const Size& size : std::vector<Size>{{"gpt-125m", 0.164, 768},
                                            {"gpt-350m", 0.408, 1024},
                                            {"gpt-760m", 0.838, 1536},
                                            {"gpt-1.3b", 1.419, 2048},
                                            {"gpt-2.6b", 2.781, 2560},
                                            {"gpt-6.7b", 6.866, 4096},
                                            {"gpt-15b", 15.630, 5120},
                                            {"gpt-39b", 39.503, 8192},
                                            {"gpt-76b", 76.559, 10240}}) {
    const double expected = size.alpa_billions + 512e-9 * size.hidden;
    EXPECT_NEAR(BillionParameters(size.name), expected, 0.00056) << size.name;
  }
  EXPECT_NEAR(BillionParameters("gpt-175b"), 175.3, 0.5);
  EXPECT_NEAR(BillionParameters("gpt-tiny"), 0.00146, 0.0001);
  EXPECT_NEAR(BillionParameters("bert-base"), 0.110, 0.001);
  EXPECT_NEAR(BillionParameters("bert-large"), 0.335, 0.002);
}

TEST(RegistryTest, MoeSizesAreAlpasWithAnUntiedHead) {
  struct Size {
    std::string name;
    double alpa_billions;  // with one table of words
    double hidden;
  };
  for (const Size& size : std::vector<Size>{{"moe-380m", 0.384, 768},
                                            {"moe-690m", 0.686, 768},
                                            {"moe-1.3b", 1.347, 768},
                                            {"moe-2.4b", 2.383, 1024},
                                            {"moe-7.1b", 7.070, 1280},
                                            {"moe-10b", 10.170, 1536},
                                            {"moe-27b", 26.648, 2048},
                                            {"moe-70b", 70.415, 2048},
                                            {"moe-140b", 139.154, 2048}}) {
    const double expected = size.alpa_billions + 33024e-9 * size.hidden;
    EXPECT_NEAR(BillionParameters(size.name) / expected, 1, 0.002) << size.name;
  }
}

TEST(RegistryTest, WideResNetAndUnetSizesAreAlpas) {
  struct Size {
    std::string name;
    double billions;
    double tolerance;
  };
  for (const Size& size : std::vector<Size>{{"wresnet-250m", 0.254, 0.002},
                                            {"wresnet-500m", 0.495, 0.002},
                                            {"wresnet-1b", 1.006, 0.002},
                                            {"wresnet-2b", 1.965, 0.002},
                                            {"wresnet-4b", 4.001, 0.002},
                                            {"wresnet-6.8b", 6.728, 0.002},
                                            {"wresnet-13b", 12.633, 0.002},
                                            {"unet-470m", 0.4838, 0.0001},
                                            {"unet-1b", 1.0883, 0.0001},
                                            {"unet-1.2b", 1.2382, 0.0001},
                                            {"unet-1.8b", 1.9346, 0.0001},
                                            {"unet-2b", 2.1329, 0.0001}}) {
    EXPECT_NEAR(BillionParameters(size.name) / size.billions, 1, size.tolerance) << size.name;
  }
}

TEST(RegistryTest, EveryNameTracesToAStepAndAnEvaluation) {
  for (const std::string& name : ModelNames()) {
    const ModelOptions two_layers = {.num_layers = 2};
    const auto step = TraceModel(name, two_layers);
    EXPECT_TRUE(step.ok()) << name << ": " << Message(step.status());
    const auto evaluation = TraceModelEvaluation(name, two_layers);
    EXPECT_TRUE(evaluation.ok()) << name << ": " << Message(evaluation.status());
  }
}

TEST(RegistryTest, AWholeGpt39bKeepsItsInstructionsModest) {
  const auto traced = TraceModel("gpt-39b");
  ASSERT_TRUE(traced.ok()) << Message(traced.status());
  EXPECT_LT(traced->step.module.entry_computation().num_instructions(), 48 * 620);
}

TEST(RegistryTest, UnknownNamesAndOptionsThatDoNotFitAreRefused) {
  EXPECT_EQ(
      Message(MakeModel("gpt").status()),
      "no model is named gpt; there are mlp, gpt-tiny, gpt-125m, gpt-350m, gpt-760m, "
      "gpt-1.3b, gpt-2.6b, gpt-6.7b, gpt-15b, gpt-39b, gpt-76b, gpt-175b, bert-tiny, "
      "bert-base, bert-large, moe-tiny, moe-380m, moe-690m, moe-1.3b, moe-2.4b, moe-7.1b, "
      "moe-10b, moe-27b, moe-70b, moe-140b, wresnet-tiny, wresnet-250m, wresnet-500m, wresnet-1b, "
      "wresnet-2b, wresnet-4b, wresnet-6.8b, wresnet-13b, unet-tiny, unet-470m, unet-1b, "
      "unet-1.2b, "
      "unet-1.8b, unet-2b");
  EXPECT_EQ(Message(MakeModel("mlp", {.sequence = 8}).status()), "mlp has no sequence to set");
  EXPECT_EQ(Message(MakeModel("gpt-tiny", {.global_batch = 0}).status()),
            "the global batch must be at least 1, not 0");
  EXPECT_EQ(Message(MakeModel("gpt-tiny", {.dtype = ElementType::kS32}).status()),
            "models compute in f32, bf16 or f16, not s32");
}

TEST(RegistryTest, EveryOptimizerTracesWithScheduleClippingAndLossScale) {
  for (const std::string& name : OptimizerNames()) {
    const ModelOptions options = {.num_layers = 1,
                                  .dtype = ElementType::kF16,
                                  .update = {.optimizer = name,
                                             .schedule = "cosine",
                                             .warmup_updates = 2,
                                             .decay_updates = 9,
                                             .clip_norm = 1,
                                             .loss_scale = "dynamic"}};
    const auto step = TraceModel("gpt-tiny", options);
    EXPECT_TRUE(step.ok()) << name << ": " << Message(step.status());
  }
}

TEST(RegistryTest, UpdatesThatCannotBeMadeAreRefused) {
  const auto refusal = [](const UpdateOptions& update) {
    return Message(MakeModel("gpt-tiny", {.update = update}).status());
  };
  EXPECT_EQ(refusal({.optimizer = "rmsprop"}),
            "no optimizer is named rmsprop; there are sgd, nesterov, adam, adamw, adafactor, lion, "
            "lamb");
  EXPECT_EQ(refusal({.optimizer = "sgd", .weight_decay = 0.1}), "sgd has no weight decay to set");
  EXPECT_EQ(refusal({.weight_decay = -1}), "the weight decay must be a number from 0 on, not -1");
  EXPECT_EQ(refusal({.learning_rate = -1}), "the learning rate must be a number from 0 on, not -1");
  EXPECT_EQ(refusal({.schedule = "step"}),
            "no schedule is named step; there are constant, linear, cosine and inverse-sqrt");
  EXPECT_EQ(refusal({.schedule = "linear"}),
            "the schedule linear must know after how many updates it ends: give it the number of "
            "updates of its decay (--decay-steps)");
  EXPECT_EQ(refusal({.schedule = "cosine", .warmup_updates = 5, .decay_updates = 5}),
            "the schedule cosine ends after 5 updates, within the warm-up of 5");
  EXPECT_EQ(refusal({.warmup_updates = -1}), "a warm-up of -1 updates is less than none");
  EXPECT_EQ(refusal({.clip_norm = 0}), "the largest norm of gradients must be above 0, not 0");
  EXPECT_EQ(refusal({.loss_scale = "8x"}),
            "loss scale 8x is neither none, dynamic nor a number above 0");
}

}  // namespace
}  // namespace minka
