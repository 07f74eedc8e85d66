// Searches the likely choices of a core without memory exactly, as many as the work allows, and
// others in every run until one finds something better.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "minka/solver/core_graph.h"
#include "minka/solver/local_search.h"
#include "minka/solver/message_passing.h"
#include "minka/solver/prune.h"
#include "minka/solver/random.h"

namespace minka {

class LikelyElimination {
 public:
  // `graph` must outlive this; its core has no times.
  LikelyElimination(const CoreGraph& graph, uint64_t seed) : graph_(graph), random_(seed) {}

  struct Known {
    const MessagePassing& messages;
    const ChoiceExcess& excess;
    const std::optional<CoreAnswer>& best;
    std::vector<std::span<const int32_t>> others;  // choices whose parts may be good
  };
  // With about `work` units; what it finds is never dearer than the best known.
  void Run(const Known& known, int64_t work);

  const std::optional<CoreAnswer>& found() const { return found_; }
  int64_t work() const { return work_; }

 private:
  std::vector<int32_t> DrawOrder();
  std::vector<double> DrawFocus();
  std::vector<std::vector<int32_t>> DecodeFromAnywhere(const MessagePassing& messages);

  const CoreGraph& graph_;
  Random random_;
  // Likely choices that a run could take, plain and with a focus, 0: not tried.
  std::array<double, 2> per_node_ = {};
  int in_vain_ = 0;  // runs since the last that found something better than the best known
  std::optional<CoreAnswer> found_;
  int64_t work_ = 0;
};

}  // namespace minka
