// The models that have a name on the command line.
//
//   mlp            6 layers of 1024, batch 256, f32, Adam
//   gpt-tiny       1.5 M parameters over bytes (vocabulary 256), sequence 128, batch 16, f32,
//                  dropout 0.1
//   gpt-125m ... gpt-76b   Alpa's sizes (OSDI'22), vocabulary 51200, sequence 1024, no dropout
//   gpt-175b       hidden 12288, 96 layers, 96 heads (Brown et al. 2020), else as above
//   bert-tiny, bert-base, bert-large       masked language models, dropout 0.1
//   moe-tiny       as gpt-tiny, narrower, with 8 experts in every other layer
//   moe-380m ... moe-140b  Alpa's sizes of GShard's model, vocabulary 32000, sequence 1024,
//                  Adafactor
//   wresnet-tiny   0.2 M parameters over 8x8 images of 10 classes, batch 64
//   wresnet-250m ... wresnet-13b   Alpa's Wide-ResNets, images of 224x224, 1024 classes, f32,
//                  Nesterov momentum
//   unet-tiny      over 8x8 images, batch 64, f32
//   unet-470m ... unet-2b  U-Nets of Alpa's widths, images of 32x32, f32, Nesterov momentum; they
//                  have 25 to 32 % more parameters than Alpa's names for these widths say
//
// Unless said otherwise: batch 32, bf16 with f32 master weights, AdamW.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/frontend/nn.h"
#include "minka/frontend/trace.h"

namespace minka {

// How gradients make new parameters; what is not given is the model's default.
struct UpdateOptions {
  std::optional<std::string> optimizer;  // one of OptimizerNames()
  std::optional<double> learning_rate;   // the peak of the schedule
  std::optional<double> weight_decay;    // adamw, lion, lamb
  std::optional<std::string> schedule;   // constant, linear, cosine, inverse-sqrt
  std::optional<int64_t> warmup_updates;
  std::optional<int64_t> decay_updates;   // when linear and cosine reach zero, warm-up included
  std::optional<double> clip_norm;        // largest global norm of the gradients
  std::optional<std::string> loss_scale;  // none, dynamic, or a number
};

// Changes to a named model; what is not given stays as the name says.
struct ModelOptions {
  std::optional<int64_t> global_batch;
  std::optional<int64_t> sequence;
  std::optional<int64_t> num_layers;  // wresnet: blocks of each stage; unet: layers of each block
  std::optional<ElementType> dtype;   // to compute in: f32, bf16 or f16; state stays f32
  std::optional<double> dropout;
  std::optional<LookUp> look_up;  // of tokens: gpt, moe, bert
  UpdateOptions update;
};

// All that Trace and TraceEvaluation need.
struct NamedModel {
  Model model;
  Optimizer optimizer;
  TraceOptions trace;
};

std::vector<std::string> ModelNames();
std::vector<std::string> OptimizerNames();
// InvalidArgument lists the known names, or says which option does not fit.
absl::StatusOr<NamedModel> MakeModel(std::string_view name, const ModelOptions& options = {});
absl::StatusOr<TracedStep> TraceModel(std::string_view name, const ModelOptions& options = {});
absl::StatusOr<TracedStep> TraceModelEvaluation(std::string_view name,
                                                const ModelOptions& options = {});

}  // namespace minka
