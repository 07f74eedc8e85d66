#include "benchmarks/runtime/pipeline_model.h"

#include <utility>

#include "minka/base/status.h"
#include "minka/driver/inputs.h"
#include "minka/driver/parallelize.h"

namespace minka {

absl::StatusOr<ParameterValues> PipelineModel::Values() const {
  ParameterValues values = InitialValues(traced.step, traced.initializers, /*seed=*/1);
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i].bytes) continue;
    ASSIGN_OR_RETURN(values[i], RandomInput(traced.step, static_cast<int>(i), /*seed=*/1));
  }
  return values;
}

absl::StatusOr<PipelineModel> PlanPipelineModel(const Model& model,
                                                const PipelineModelOptions& options) {
  PipelineModel out;
  ASSIGN_OR_RETURN(out.traced, Trace(model, AdamW()));
  Pipeline method{.num_micro_batches = options.num_micro_batches};
  method.options.num_stages = options.num_meshes;
  method.options.schedule = options.schedule;
  method.options.meshes.assign(options.num_meshes, Mesh({{"x", 1}}));
  CostModelChoice costs;
  if (options.calibration) {
    costs = {.kind = CostModelKind::kMeasured, .calibration = options.calibration};
  }
  Cluster cluster = Cluster::Local(options.num_meshes);
  // Every worker has a core to itself.
  cluster.shared_compute_pool = false;
  ASSIGN_OR_RETURN(const PlanRequest request, RequestFor(cluster, method, costs));
  ASSIGN_OR_RETURN(out.planned, PlanPipeline(out.traced.step, request));
  return out;
}

}  // namespace minka
