// A choice built node by node from messages: each node takes the choice that its decided neighbours
// and the messages of its undecided ones make cheapest, among those that arc consistency and the
// memory limit still allow.
#pragma once

#include <cstdint>
#include <vector>

#include "minka/solver/bound/message_passing.h"
#include "minka/solver/model/random.h"

namespace minka {

struct DecodeOptions {
  // Order in which nodes are decided; empty: by number. Nodes that turned out hard come first in
  // the next attempt.
  std::vector<int32_t> order;
  // Scores are multiplied by 1 + noise * [0, 1), so that restarts differ; 0: none.
  double noise = 0;
  // Respect the limit while building; otherwise prices alone speak for memory.
  bool within_limit = true;
};

struct Decoded {
  std::vector<int32_t> choice;
  // Nodes that had to take a forbidden or too large choice, in order; empty if the choice is
  // feasible (where asked for).
  std::vector<int32_t> failed;
  int64_t work = 0;
};

Decoded Decode(const MessagePassing& messages, const DecodeOptions& options, Random& random);

}  // namespace minka
