// Probing: a choice is taken for granted, the rest is reduced and searched briefly. Either no
// better answer uses the choice, which prunes it, or an answer turns up that differs from the best
// in more places than the search around it frees at once. (Savelsbergh, "Preprocessing and probing
// techniques for mixed integer programming problems", 1994.)
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "minka/solver/bound/choice_excess.h"
#include "minka/solver/improve/part_search.h"
#include "minka/solver/reduce/core_answer.h"
#include "minka/solver/reduce/reduce.h"

namespace minka {

class Probing {
 public:
  // `core` must outlive this; `choices` are those that answers better than `cost` may take,
  // `excess` says in which order to probe them. A first probe costs about `probe_work` units.
  Probing(const Core& core, std::vector<std::vector<int64_t>> choices, const ChoiceExcess& excess,
          int64_t probe_work, uint64_t seed);

  // Probes for about `work` units, or until `stop` says so, where the last call ended.
  void Run(const CoreAnswer& best, const MakePartSearch& make_search, int64_t work,
           const std::function<bool()>& stop);

  // By core node, ascending: what answers better than the best one given may still take.
  const std::vector<std::vector<int64_t>>& choices() const { return choices_; }
  // The cheapest answer that probes led to.
  const std::optional<CoreAnswer>& found() const { return found_; }
  int64_t work() const { return work_; }

 private:
  struct Candidate {
    int32_t node = 0;
    int64_t choice = 0;
  };

  void Probe(const Candidate& candidate, int64_t cost_to_beat, const MakePartSearch& make_search,
             const std::function<bool()>& stop);
  bool IsLeft(const Candidate& candidate) const;

  const Core& core_;
  std::vector<std::vector<int64_t>> choices_;
  std::vector<Candidate> candidates_;  // cheapest for the bound first
  size_t next_ = 0;
  bool has_probed_ = false;  // since the first candidate
  int64_t probe_work_ = 0;
  uint64_t seed_ = 0;
  std::optional<CoreAnswer> found_;
  int64_t work_ = 0;
};

}  // namespace minka
