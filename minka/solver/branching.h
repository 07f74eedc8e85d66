// Bounds by cases: where the relaxation is loose, as between axes of a mesh that are alike, a core
// in which one node's choice is fixed often has a bound far above that of the whole. The least of
// the bounds of all cases is a bound of the core (branch and bound; Land and Doig 1960).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "minka/solver/core_graph.h"
#include "minka/solver/probing.h"

namespace minka {

// The node that has the most choices of those given.
int32_t NodeToBranchOn(const std::vector<std::vector<int64_t>>& choices);

class Branching {
 public:
  // `core` must outlive this. `choices` are those that answers better than one that is known may
  // take; the cases are those of `node`. A case is searched for about `case_work` units at first.
  Branching(const Core& core, std::vector<std::vector<int64_t>> choices, int32_t node,
            int64_t case_work, uint64_t seed);

  // Works for about `work` units where the last call ended, until `bound()` is at least `goal`, or
  // until `stop` says so. `best`: the best answer known.
  void Run(const CoreAnswer& best, int64_t goal, const Probing::MakeSearch& make_search,
           int64_t work, const std::function<bool()>& stop);

  // No answer better than the best one given costs less; INT64_MIN before every case has been
  // looked at.
  int64_t bound() const { return bound_; }
  // The cheapest answer that a case led to.
  const std::optional<CoreAnswer>& found() const { return found_; }
  int64_t work() const { return work_; }

 private:
  struct Case {
    int64_t choice = 0;
    int64_t bound = INT64_MIN;
  };

  void Search(Case& searched, int64_t goal, const Probing::MakeSearch& make_search,
              const std::function<bool()>& stop);

  const Core& core_;
  std::vector<std::vector<int64_t>> choices_;
  const int32_t node_;
  int64_t case_work_;
  uint64_t seed_;
  std::vector<Case> cases_;
  size_t next_ = 0;
  int64_t bound_ = INT64_MIN;
  std::optional<CoreAnswer> found_;
  int64_t work_ = 0;
};

}  // namespace minka
