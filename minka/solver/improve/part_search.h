// The search of a core that was made of another one by leaving choices out, as ways that pose such
// cores see it: by this alone, since what searches them (core_search.h) uses those ways.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "minka/solver/bound/message_passing.h"
#include "minka/solver/reduce/core_answer.h"
#include "minka/solver/reduce/reduce.h"

namespace minka {

class PartSearch {
 public:
  PartSearch() = default;
  PartSearch(const PartSearch&) = delete;
  PartSearch& operator=(const PartSearch&) = delete;
  virtual ~PartSearch() = default;

  // The bound alone, for about `work` units or until `stop` says so.
  virtual void RaiseBound(int64_t work, const std::function<bool()>& stop) = 0;
  // Bound and choices, for about `work` units each; poses no parts of its own.
  virtual void Search(int64_t work, const std::function<bool()>& stop) = 0;

  // No choice of the part costs less.
  virtual int64_t bound() const = 0;
  virtual const std::optional<CoreAnswer>& best() const = 0;
  // The best is optimal, or without one there is no choice within the limit.
  virtual bool complete() const = 0;
  virtual const MessagePassing& messages() const = 0;
  virtual int64_t work() const = 0;
};

// Begins the search of a part with what is known of the whole and an answer of that. `part` must
// outlive it.
using MakePartSearch = std::function<std::unique_ptr<PartSearch>(
    const Reduction& part, uint64_t seed, const CoreAnswer& best)>;

// The answer of the whole that an answer of the part stands for. Reductions of the part may leave
// several cheapest choices, so its cost is counted again.
CoreAnswer ExpandAnswer(const Core& whole, const Reduction& part, std::span<const int32_t> choice);

}  // namespace minka
