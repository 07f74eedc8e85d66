#include "tests/pipeline/small_steps.h"

#include "minka/driver/prepare.h"
#include "minka/frontend/trace.h"
#include "minka/models/bert.h"
#include "minka/models/gpt.h"
#include "minka/models/mlp.h"

namespace minka {

Step SmallMlp() {
  return Trace(Mlp({.batch = 24, .hidden = 16, .num_layers = 8}), AdamW({})).value().step;
}

Step SmallGpt() {
  return Trace(Gpt({.batch = 8,
                    .sequence = 8,
                    .vocabulary = 48,
                    .hidden = 16,
                    .num_layers = 4,
                    .num_heads = 2}),
               AdamW({.weight_decay = 0.01}))
      .value()
      .step;
}

Step SmallBert() {
  return Trace(BertMaskedLanguageModel({.batch = 8,
                                        .sequence = 8,
                                        .vocabulary = 48,
                                        .hidden = 16,
                                        .num_layers = 2,
                                        .num_heads = 2,
                                        .dropout = 0.1}),
               AdamW({.weight_decay = 0.01}),
               {.scaling = {.loss_scale = LossScale{}, .clip_norm = 0.1}})
      .value()
      .step;
}

Step SmallEvaluation() {
  return TraceEvaluation(Mlp({.batch = 24, .hidden = 16, .num_layers = 8})).value().step;
}

std::vector<int> EvenStages(int num_layers, int num_stages) {
  std::vector<int> stage_of_layer;
  for (int layer = 0; layer < num_layers; ++layer) {
    stage_of_layer.push_back(layer * num_stages / num_layers);
  }
  return stage_of_layer;
}

PlannedPipeline PlanSmall(const Step& step, const SmallPipeline& pipeline) {
  const Mesh mesh = Mesh::Parse(pipeline.mesh).value();
  const auto num_devices = static_cast<int>(mesh.num_devices()) * pipeline.num_meshes;
  const PlanRequest request{
      .cluster = Cluster::Local(num_devices),
      .micro_batches = {.num_micro_batches = pipeline.num_micro_batches},
      .pipeline = PipelineOptions{
          .stage_of_layer = EvenStages(*Prepare(step)->num_layers,
                                       pipeline.num_meshes * pipeline.stages_per_mesh),
          .meshes = std::vector<Mesh>(pipeline.num_meshes, mesh),
          .schedule = pipeline.schedule}};
  return PlanPipeline(step, request).value();
}

}  // namespace minka
