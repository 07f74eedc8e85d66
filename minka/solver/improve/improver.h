// A way to find cheaper choices of a core than the best that is known.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "minka/solver/bound/choice_excess.h"
#include "minka/solver/bound/message_passing.h"
#include "minka/solver/improve/part_search.h"
#include "minka/solver/model/way.h"
#include "minka/solver/reduce/core_answer.h"

namespace minka {

// What is known of a core where an improver begins.
struct Known {
  const MessagePassing& messages;  // of the bound; a snapshot
  std::span<const double> prices;  // of memory, by time
  int64_t lower_bound = 0;
  std::optional<CoreAnswer> best = {};
  // Choices that messages led to, feasible or not.
  std::span<const std::vector<int32_t>> decoded = {};
  const MakePartSearch* make_part_search = nullptr;  // null: parts are not to be searched
  // The bound hardly rises any more.
  bool bound_is_at_rest = false;
  // Likely choices may be searched by elimination.
  bool may_eliminate = false;
  // The core's choices that matter are searched as a core of their own: here, only ways that look
  // at others go on.
  bool is_pruned = false;
};

// The excess of choices by the messages known; made when it is first asked for, and anew once the
// bound has risen.
class KnownExcess {
 public:
  // As `known` says. Adds what it costs to `work`.
  const ChoiceExcess& Of(const Known& known, int64_t& work);

 private:
  std::optional<ChoiceExcess> excess_;
  int64_t bound_ = 0;
};

// Not thread-safe. What it finds is a function of what it was given, its seed and the work.
class Improver {
 public:
  Improver() = default;
  Improver(const Improver&) = delete;
  Improver& operator=(const Improver&) = delete;
  virtual ~Improver() = default;

  virtual Way way() const = 0;
  // Whether there is anything for it to do with so many units of work.
  virtual bool CanRun(const Known& known, int64_t work) const = 0;
  // For about `work` units, or until `stop` says so between two steps.
  virtual void Run(const Known& known, int64_t work, const std::function<bool()>& stop) = 0;
  // Is it worth its work with what is left of a round alone, half of it at least?
  virtual bool TakesRestOfRound() const { return false; }
  // The whole space was searched: the best known or found is optimal, or without one there is none.
  virtual bool complete() const { return false; }

  // The cheapest answer within the limit that it met.
  const std::optional<CoreAnswer>& found() const { return found_; }
  int64_t work() const { return work_; }

 protected:
  void Take(const CoreAnswer& answer) { TakeCheaper(answer, found_); }

  std::optional<CoreAnswer> found_;
  int64_t work_ = 0;
};

}  // namespace minka
