// Choices that no better answer can use: with one of them the bound alone exceeds the cost of an
// answer that is known (reduced-cost fixing).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "minka/solver/bound/message_passing.h"

namespace minka {

// Of all nodes together; by node.
int64_t CountChoices(std::span<const std::vector<int64_t>> choices);

// How far the bound rises if a node takes a choice, at least.
class ChoiceExcess {
 public:
  // Reads every cell once. Integer arithmetic, as in MessagePassing::Certify.
  explicit ChoiceExcess(const MessagePassing& messages);

  // In units that are the same for all choices.
  int64_t Of(int32_t node, int64_t choice) const {
    return excess_[graph_.first_choice(node) + choice];
  }

  // By core node, ascending: the choices that an answer of at most `cost` within the limit may
  // take. The choices of a feasible answer of that cost are among them.
  std::vector<std::vector<int64_t>> Within(int64_t cost) const;

  // The `count` choices of all nodes together that raise the bound least, and those of `answer`.
  // No proof: better answers may use others. `factors`: by node, of how far it raises the bound;
  // none where empty.
  std::vector<std::vector<int64_t>> Likely(int64_t count, std::span<const int32_t> answer,
                                           std::span<const double> factors = {}) const;

 private:
  std::vector<std::vector<int64_t>> UpTo(std::span<const int64_t> excess, int64_t most,
                                         std::span<const int32_t> answer) const;

  const CoreGraph& graph_;
  int shift_ = 0;
  __int128 bound_ = 0;
  std::vector<int64_t> excess_;  // in 2^-shift
};

}  // namespace minka
