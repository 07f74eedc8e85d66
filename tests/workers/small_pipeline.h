// A small training step as a pipeline, for tests of what runs it.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "minka/base/status.h"
#include "minka/driver/parallelize.h"
#include "minka/driver/pipeline.h"
#include "minka/frontend/trace.h"
#include "minka/models/mlp.h"
#include "minka/runtime/worker/worker_pipeline_executor.h"
#include "tests/same_result/step_inputs.h"

namespace minka {

struct SmallPipeline {
  TracedStep traced;
  PlannedPipeline planned;

  // Values of all parameters for the first step.
  ParameterValues Values() const { return InputsOf(traced, /*seed=*/1)(0).value(); }
};

// An MLP on meshes of one device each.
inline SmallPipeline PlanSmallPipeline(int num_meshes, int num_micro_batches = 4) {
  SmallPipeline small;
  small.traced = Trace(Mlp({.batch = 32, .hidden = 32, .num_layers = 4}), AdamW({})).value();
  Pipeline method{.num_micro_batches = num_micro_batches};
  method.options.num_stages = num_meshes;
  for (int i = 0; i < num_meshes; ++i) method.options.meshes.push_back(Mesh({{"x", 1}}));
  const PlanRequest request = RequestFor(Cluster::Local(num_meshes), method, {}).value();
  auto planned = PlanPipeline(small.traced.step, request);
  MINKA_CHECK(planned.ok(), "{}", Message(planned.status()));
  small.planned = *std::move(planned);
  return small;
}

}  // namespace minka
