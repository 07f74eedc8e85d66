// A step prepared in several ways, each made once.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <utility>

#include "absl/status/statusor.h"
#include "minka/ir/step.h"
#include "minka/lowering/micro_batches.h"

namespace minka {

// Another number of micro-batches only makes these anew, of the same step of the whole batch.
class PreparedSteps {
 public:
  explicit PreparedSteps(Step simplified) : simplified_(std::move(simplified)) {}

  const Step& simplified() const { return simplified_; }

  // Valid as long as this.
  absl::StatusOr<const Step*> With(const RematChoice& remat,
                                   const MicroBatchOptions& micro_batches);

  // What a search may rematerialise, all of it; empty: no layers are known, or nothing is kept of
  // them.
  RematChoice RematCandidates() const;

 private:
  struct Way {
    RematChoice remat;
    MicroBatchOptions micro_batches;
    auto operator<=>(const Way&) const = default;
  };

  absl::StatusOr<const Step*> OfWholeBatch(const RematChoice& remat);

  Step simplified_;
  std::map<RematChoice, Step> of_whole_batch_;
  std::map<Way, Step> prepared_;
};

}  // namespace minka
