// Brings a step into the form that is planned: calls inlined, dead and repeated instructions gone,
// barriers one value each.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "minka/ir/layer_choice.h"
#include "minka/ir/step.h"
#include "minka/lowering/micro_batches.h"
#include "minka/plan/plan.h"

namespace minka {

// What is done to the step besides; a plan says which of it.
struct Preparation {
  MicroBatchOptions micro_batches;
  RematChoice remat;
  LayerChoice layers;
  // Loops over layers are written out (lowering/unroll_loops.h), as stages need it.
  bool unrolls_loops = false;
  bool operator==(const Preparation&) const = default;
};

Preparation PreparationOf(const Plan& plan);
// Of a plan.json, before the prepared module is at hand.
absl::StatusOr<Preparation> PreparationOfJson(std::string_view plan_json);

// A function of the arguments alone, so that the same module always gets the same instruction ids
// and hash. Cheap values that depend on constants only (broadcasts, iotas and what few operations
// make of them) are cloned per user: each copy takes its user's sharding at no cost.
//
// With rematerialisation backward operations read copies of forward ones, see
// lowering/rematerialize.h; with micro-batches the step computes one of them, see
// lowering/micro_batches.h.
absl::StatusOr<Step> Prepare(const Step& step, const Preparation& preparation = {});

// Prepare in three parts, for steps that are prepared in several ways (prepared_steps.h): what all
// have in common, which is what lowering/rematerialize.h works on; the step of the whole batch with
// a choice of what is computed again; and its micro-batches. In fewer layers where it has not so
// many operations.
absl::StatusOr<Step> Simplify(const Step& step, const LayerChoice& layers = {},
                              bool unrolls_loops = false);
// InvalidArgument where it is not so many layers, or none that mean anything.
absl::Status CheckLayers(const Step& simplified, const LayerChoice& layers);
absl::StatusOr<Step> PrepareWholeBatch(const Step& simplified, const RematChoice& remat);
absl::StatusOr<Step> PrepareMicroBatches(const Step& of_whole_batch,
                                         const MicroBatchOptions& micro_batches);

}  // namespace minka
