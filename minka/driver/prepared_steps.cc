#include "minka/driver/prepared_steps.h"

#include <optional>

#include "minka/base/status.h"
#include "minka/driver/fold_layers.h"
#include "minka/driver/prepare.h"
#include "minka/lowering/rematerialize.h"

namespace minka {

absl::StatusOr<const Step*> PreparedSteps::With(const RematChoice& remat,
                                                const MicroBatchOptions& micro_batches) {
  return Find(prepared_, {remat, micro_batches}, [&]() -> absl::StatusOr<Step> {
    ASSIGN_OR_RETURN(const Step* of_whole_batch, OfWholeBatch(remat));
    return PrepareMicroBatches(*of_whole_batch, micro_batches);
  });
}

absl::StatusOr<const Step*> PreparedSteps::OfWholeBatch(const RematChoice& remat) {
  return Find(of_whole_batch_, remat, [&] { return PrepareWholeBatch(simplified_, remat); });
}

template <typename Key>
absl::StatusOr<const Step*> PreparedSteps::Find(std::map<Key, Made>& steps, const Key& key,
                                                const std::function<absl::StatusOr<Step>()>& make) {
  Made* made = nullptr;
  {
    const std::lock_guard lock(mutex_);
    made = &steps[key];
  }
  std::call_once(made->once, [&] { made->step = make(); });
  RETURN_IF_ERROR(made->step.status());
  return &*made->step;
}

const PreparedSteps::Folded* PreparedSteps::FoldedLayers() {
  std::call_once(folded_once_, [&] {
    std::optional<FoldedStep> folded = FoldLayers(simplified_);
    if (!folded) return;
    folded_ = {.steps = std::make_unique<PreparedSteps>(std::move(folded->step)),
               .layer = std::move(folded->layer)};
  });
  return folded_.steps != nullptr ? &folded_ : nullptr;
}

RematChoice PreparedSteps::RematCandidates() const {
  if (simplified_.num_layers == 0) return {};
  absl::StatusOr<RematChoice> all = EffectiveRemat(simplified_, {RematPolicy::kAll});
  return all.ok() ? *std::move(all) : RematChoice();
}

}  // namespace minka
