// Small training steps in all types, and the plans that the oracle's tests run them by.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "minka/driver/parallelize.h"
#include "minka/frontend/trace.h"
#include "minka/oracle/oracle.h"

namespace minka {

inline constexpr std::array<std::string_view, 4> kSubjectModels = {"mlp", "gpt", "moe", "wresnet"};
// "f32"; "bf16" and "f16": computed in, with f32 state; "bf16-state": bf16 throughout.
inline constexpr std::array<std::string_view, 4> kSubjectTypes = {"f32", "bf16", "f16",
                                                                  "bf16-state"};

// Training steps that JAX made (tests/testdata/jax), in f32: the subjects "jax/NAME".
inline constexpr std::array<std::string_view, 11> kJaxModules = {"small_bert_mlm",
                                                                 "small_embedding",
                                                                 "small_gpt_adamw",
                                                                 "small_gpt_clipped",
                                                                 "small_lstm",
                                                                 "small_mlp_adam_remat",
                                                                 "small_mlp_sgd",
                                                                 "small_moe",
                                                                 "small_random_bit_generator",
                                                                 "small_resnet",
                                                                 "mlp_hidden16_initial_values"};

struct Subject {
  std::string model = "mlp", type = "f32", optimizer = "adamw";
};
bool IsJax(const Subject& subject);

TracedStep TraceSubject(const Subject& subject);

// How it is run: method by name, mesh, micro-batches. Statistics of batches are then taken over
// each micro-batch, and each gets the same slice of the batch, so that they are those of the whole.
struct SubjectPlan {
  std::string method = "shard", mesh = "2x2";
  int num_micro_batches = 1;
  // What a search seldom chooses: a table of embeddings split by rows, images by their height.
  bool has_pins = false;
};

ParallelMethod MethodOf(const Subject& subject, const SubjectPlan& plan);

// State by the initialisers (JAX's: random), random batches, other ones for each step and seed.
StepInputs InputsOf(const TracedStep& traced, uint64_t seed, int num_equal_slices);
int NumEqualSlices(const Subject& subject, const SubjectPlan& plan);

}  // namespace minka
