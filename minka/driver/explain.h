// What the choices of a plan on one mesh are worth: the best plans with every other one.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/driver/plan_step.h"
#include "minka/ir/shape.h"
#include "minka/ir/step.h"
#include "minka/plan/plan.h"
#include "minka/sharding/mesh.h"
#include "minka/sharding/sharding.h"

namespace minka {

// What is asked about. Nothing: the plan as a whole.
struct ExplainQuestion {
  std::optional<int> stage;  // of a pipeline
  std::string tensor;        // glob on names of parameters
  std::string operation;     // glob on names of operations and their names in the model
};

// Told what is planned next.
using OnExplained = std::function<void(const std::string& what)>;

// A plan on one mesh with the step that it is of, as it is and prepared.
struct ExplainedPlan {
  const Step& step;
  const Step& prepared;
  const Plan& plan;
  std::string name;  // of it, for messages
};

// Plans the step again as `request` says, whose meshes and micro-batches are the plan's. Of a
// tensor or an operation, with each sharding that it could have, other pins kept; of the whole plan
// on every mesh of the same devices. A table of what comes out, with '*' beside what the plan has.
// NotFound: nothing has the name. Cancelled where the request is.
absl::StatusOr<std::string> Explain(const ExplainedPlan& explained, const PlanRequest& request,
                                    const ExplainQuestion& question,
                                    const OnExplained& on_explained);

// What is pinned in one way after the other. A glob's first match stands for those of equal layers.
struct PinnedTensor {
  std::string name;
  Shape shape;
  Sharding sharding;
};

absl::StatusOr<PinnedTensor> FindParameter(const Plan& plan, std::string_view whose,
                                           const std::string& glob);
absl::StatusOr<PinnedTensor> FindOperation(const Step& prepared, const Plan& plan,
                                           std::string_view whose, const std::string& glob);

// The pins on everything but the tensor: one that names others, too, is written out.
std::vector<std::string> PinsOnOthers(const Step& step, const std::string& tensor,
                                      const std::vector<std::string>& pins);

// What a plan with a pin takes, per device.
struct PinnedFigures {
  double step_time_us = 0;
  std::optional<double> stage_time_us;  // of a pipeline's stage, its tasks of a step
  int64_t peak_memory_bytes = 0, state_bytes = 0;
};

// "+1.20 ms": by how much it is longer.
std::string ChangeText(double us, double planned_us);

// By every sharding that the tensor could have, as a pin in each axis of the mesh.
absl::StatusOr<std::string> TableOfShardings(
    const PinnedTensor& tensor, const Mesh& mesh,
    const std::function<absl::StatusOr<PinnedFigures>(const std::string& pin)>& plan_with);

}  // namespace minka
