// A step prepared in several ways, each made once.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/ir/step.h"
#include "minka/lowering/micro_batches.h"

namespace minka {

// Another number of micro-batches only makes these anew, of the same step of the whole batch.
// Thread-safe: who asks for one first makes it, others wait.
class PreparedSteps {
 public:
  explicit PreparedSteps(Step simplified) : simplified_(std::move(simplified)) {}

  const Step& simplified() const { return simplified_; }

  // Valid as long as this.
  absl::StatusOr<const Step*> With(const RematChoice& remat,
                                   const MicroBatchOptions& micro_batches);

  // The same step with fewer of its equal layers (fold_layers.h).
  struct Folded {
    std::unique_ptr<PreparedSteps> steps;
    std::vector<int> layer;  // by layer of this step: the one of those that is equal to it
  };
  // As long as this lives; null: no layers repeat.
  const Folded* FoldedLayers();

  // What a search may rematerialise, all of it; empty: no layers are known, or nothing is kept of
  // them.
  RematChoice RematCandidates() const;

 private:
  struct Way {
    RematChoice remat;
    MicroBatchOptions micro_batches;
    auto operator<=>(const Way&) const = default;
  };

  struct Made {
    std::once_flag once;
    absl::StatusOr<Step> step;
  };
  template <typename Key>
  absl::StatusOr<const Step*> Find(std::map<Key, Made>& steps, const Key& key,
                                   const std::function<absl::StatusOr<Step>()>& make);
  absl::StatusOr<const Step*> OfWholeBatch(const RematChoice& remat);

  const Step simplified_;
  std::mutex mutex_;
  std::map<RematChoice, Made> of_whole_batch_;  // guarded by mutex_, not what is in it
  std::map<Way, Made> prepared_;                // likewise
  std::once_flag folded_once_;
  Folded folded_;  // without steps: no layers repeat
};

}  // namespace minka
