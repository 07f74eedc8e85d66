// Looks for cheap choices of a core: decodes messages, repairs what breaks the limit, and improves
// by local search.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "minka/solver/decode.h"
#include "minka/solver/exact_search.h"
#include "minka/solver/local_search.h"
#include "minka/solver/message_passing.h"
#include "minka/solver/neighbourhood_search.h"
#include "minka/solver/random.h"

namespace minka {

// What the bound's side knows at the start of a round; a snapshot.
struct PrimalInput {
  MessagePassing messages;
  std::vector<double> prices;
  int64_t lower_bound = 0;
};

class PrimalSearch {
 public:
  // `graph` must outlive this.
  PrimalSearch(const CoreGraph& graph, uint64_t seed);

  // A choice of an earlier solve, feasible or not.
  void StartFrom(std::span<const int32_t> choice);

  // A feasible choice that somebody else found.
  void Offer(const CoreAnswer& answer) { search_.Offer(answer); }

  // About `work` units, or until `stop` says so between two steps.
  void Run(const PrimalInput& input, int64_t work, const std::function<bool()>& stop);

  const std::optional<CoreAnswer>& best() const { return search_.best(); }
  // The last choice that messages led to: feasible or not, empty before the first.
  std::span<const int32_t> constructed() const { return constructed_; }
  // The whole space was searched: the best is optimal, or without one the core is infeasible.
  bool complete() const { return complete_; }
  int64_t work() const { return search_.work() + neighbourhoods_.work() + other_work_; }

 private:
  void TryExactly(const PrimalInput& input, int64_t work, const std::function<bool()>& stop);
  void Construct(const PrimalInput& input, int64_t work);
  void ConstructPerturbed(const PrimalInput& input, int64_t work);
  void ConstructForMemory(int64_t work);
  void Anneal(const PrimalInput& input, int64_t work, const std::function<bool()>& stop);

  const CoreGraph& graph_;
  Random random_;
  const uint64_t seed_;
  LocalSearch search_;
  NeighbourhoodSearch neighbourhoods_;
  std::vector<int32_t> constructed_;
  std::vector<int32_t> hard_first_;  // decoding order, learned from failures
  int round_ = 0;
  bool tried_for_memory_ = false;
  // Messages of the core with its costs perturbed, so that ties do not mislead decoding.
  std::optional<MessagePassing> perturbed_;
  int64_t perturbed_sweeps_ = 0;
  int64_t perturbed_credit_ = 0;  // work that may go into it
  int perturbed_in_vain_ = 0;     // perturbations in a row
  bool complete_ = false;
  int64_t other_work_ = 0;  // of decoding and exact search
};

// A choice without forbidden entries whose largest excess over the limit is small, for problems
// that no choice fits; nothing if none was found with `work` units.
std::optional<std::vector<int32_t>> SmallestExcess(const CoreGraph& graph, uint64_t seed,
                                                   int64_t work);

}  // namespace minka
