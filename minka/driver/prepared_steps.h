// A step prepared in several ways, each made once.
#pragma once

#include <map>

#include "absl/status/statusor.h"
#include "minka/ir/step.h"
#include "minka/lowering/micro_batches.h"

namespace minka {

class PreparedSteps {
 public:
  PreparedSteps(Step simplified, const MicroBatchOptions& micro_batches);

  const Step& simplified() const { return simplified_; }

  // Valid as long as this.
  absl::StatusOr<const Step*> With(const RematChoice& remat);

  // What a search may rematerialise, all of it; empty: no layers are known, or nothing is kept of
  // them.
  RematChoice RematCandidates() const;

 private:
  Step simplified_;
  MicroBatchOptions micro_batches_;
  std::map<RematChoice, Step> prepared_;
};

}  // namespace minka
