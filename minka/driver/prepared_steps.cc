#include "minka/driver/prepared_steps.h"

#include "minka/base/status.h"
#include "minka/driver/prepare.h"
#include "minka/lowering/rematerialize.h"

namespace minka {

absl::StatusOr<const Step*> PreparedSteps::With(const RematChoice& remat,
                                                const MicroBatchOptions& micro_batches) {
  const Way way{remat, micro_batches};
  const auto found = prepared_.find(way);
  if (found != prepared_.end()) return &found->second;
  ASSIGN_OR_RETURN(const Step* of_whole_batch, OfWholeBatch(remat));
  ASSIGN_OR_RETURN(Step prepared, PrepareMicroBatches(*of_whole_batch, micro_batches));
  return &prepared_.emplace(way, std::move(prepared)).first->second;
}

absl::StatusOr<const Step*> PreparedSteps::OfWholeBatch(const RematChoice& remat) {
  const auto found = of_whole_batch_.find(remat);
  if (found != of_whole_batch_.end()) return &found->second;
  ASSIGN_OR_RETURN(Step prepared, PrepareWholeBatch(simplified_, remat));
  return &of_whole_batch_.emplace(remat, std::move(prepared)).first->second;
}

RematChoice PreparedSteps::RematCandidates() const {
  if (simplified_.num_layers == 0) return {};
  absl::StatusOr<RematChoice> all = EffectiveRemat(simplified_, {RematPolicy::kAll});
  return all.ok() ? *std::move(all) : RematChoice();
}

}  // namespace minka
