#include "minka/driver/prepared_steps.h"

#include <utility>

#include "minka/base/status.h"
#include "minka/driver/prepare.h"
#include "minka/lowering/rematerialize.h"

namespace minka {

PreparedSteps::PreparedSteps(Step simplified, const MicroBatchOptions& micro_batches)
    : simplified_(std::move(simplified)), micro_batches_(micro_batches) {}

absl::StatusOr<const Step*> PreparedSteps::With(const RematChoice& remat) {
  const auto found = prepared_.find(remat);
  if (found != prepared_.end()) return &found->second;
  ASSIGN_OR_RETURN(Step prepared, PrepareSimplified(simplified_, {micro_batches_, remat}));
  return &prepared_.emplace(remat, std::move(prepared)).first->second;
}

RematChoice PreparedSteps::RematCandidates() const {
  if (simplified_.num_layers == 0) return {};
  absl::StatusOr<RematChoice> all = EffectiveRemat(simplified_, {RematPolicy::kAll});
  return all.ok() ? *std::move(all) : RematChoice();
}

}  // namespace minka
