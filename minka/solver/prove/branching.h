// Bounds by cases: where the relaxation is loose, as between axes of a mesh that are alike, a core
// in which one node's choice is fixed often has a bound far above that of the whole. The least of
// the bounds of all cases is a bound of the core. The case of the least bound is divided next, by
// the choices of another node (branch and bound, best first; Land and Doig 1960).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "minka/solver/bound/choice_excess.h"
#include "minka/solver/bound/core_graph.h"
#include "minka/solver/improve/part_search.h"

namespace minka {

class Branching {
 public:
  // `core` must outlive this. `choices` are those that answers better than one that is known may
  // take, `excess` says by which node to divide. The bound of a case takes about `case_work` units.
  Branching(const Core& core, std::vector<std::vector<int64_t>> choices, const ChoiceExcess& excess,
            int64_t case_work, uint64_t seed);

  // Works for about `work` units where the last call ended, until `bound()` is at least `goal`, or
  // until `stop` says so. `best`: the best answer known.
  void Run(const CoreAnswer& best, int64_t goal, const MakePartSearch& make_search, int64_t work,
           const std::function<bool()>& stop);

  // No answer better than the best one given costs less; INT64_MIN before every case of the
  // first node has been looked at.
  int64_t bound() const { return bound_; }
  // The cheapest answer that a case led to.
  const std::optional<CoreAnswer>& found() const { return found_; }
  int64_t work() const { return work_; }

 private:
  struct Fixed {
    int32_t node = 0;
    int64_t choice = 0;
  };
  struct Case {
    std::vector<Fixed> fixed;
    // Once its bound is known: the node to divide it by, and what that may take.
    int32_t node = 0;
    std::vector<int64_t> choices;
  };

  void Divide(const Case& divided, int64_t bound);
  int64_t Bound(Case& searched, int64_t goal, const MakePartSearch& make_search,
                const std::function<bool()>& stop);
  void Take(const Reduction& reduction, std::span<const int32_t> choice);

  const Core& core_;
  const std::vector<std::vector<int64_t>> choices_;
  const int64_t case_work_;
  uint64_t seed_;
  // That are not divided, by bound; at first that of the case they are part of.
  std::multimap<int64_t, Case> cases_;
  int64_t bound_ = INT64_MIN;
  std::optional<CoreAnswer> found_;
  int64_t work_ = 0;
};

}  // namespace minka
