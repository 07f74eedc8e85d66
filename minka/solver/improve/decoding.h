// Choices that messages lead to: decoded node by node and, where they break the limit, repaired.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "minka/solver/improve/decode.h"
#include "minka/solver/improve/improver.h"
#include "minka/solver/improve/local_search.h"
#include "minka/solver/model/random.h"

namespace minka {

// What was hard to decide comes first the next time.
class Decoding : public Improver {
 public:
  // `graph` must outlive this.
  Decoding(const CoreGraph& graph, uint64_t seed);

  Way way() const override { return Way::kDecoding; }
  bool CanRun(const Known& known, int64_t) const override { return !known.is_pruned; }
  void Run(const Known& known, int64_t work, const std::function<bool()>& stop) override;

  // The last choice, feasible or not; empty before the first.
  std::span<const int32_t> decoded() const { return decoded_; }

 private:
  const CoreGraph& graph_;
  Random random_;
  LocalSearch search_;
  std::vector<int32_t> order_;
  std::vector<int32_t> decoded_;
  int num_runs_ = 0;
};

// Where prices do not lead to a choice within the limit, memory alone may. Once.
class LeastMemory : public Improver {
 public:
  // `graph` must outlive this.
  LeastMemory(const CoreGraph& graph, uint64_t seed) : graph_(graph), seed_(seed) {}

  Way way() const override { return Way::kLeastMemory; }
  bool CanRun(const Known& known, int64_t) const override {
    return !known.is_pruned && !known.best && !has_run_ && !graph_.core().times.empty();
  }
  void Run(const Known& known, int64_t work, const std::function<bool()>& stop) override;

 private:
  const CoreGraph& graph_;
  const uint64_t seed_;
  bool has_run_ = false;
};

// A choice without forbidden entries whose largest excess over the limit is small, for problems
// that no choice fits; nothing if none was found with `work` units.
std::optional<std::vector<int32_t>> SmallestExcess(const CoreGraph& graph, uint64_t seed,
                                                   int64_t work);

}  // namespace minka
