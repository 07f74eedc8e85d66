// The collectives that turn one sharding of a tensor into another.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "minka/base/platform.h"
#include "minka/ir/shape.h"
#include "minka/sharding/mesh.h"
#include "minka/sharding/sharding.h"

namespace minka {

enum class ReshardKind : uint8_t {
  kAllReduce,      // completes partial axes
  kReduceScatter,  // completes partial axes by splitting `dim` over them
  kAllGather,      // takes minor axes of `dim` away
  kAllToAll,       // moves minor axes of `dim` to be the minor axes of `to_dim`, in their order
  kSlice,          // splits `dim` over axes; local, no communication
  kMakePartial,    // replicated -> partial: kept on coordinate 0, zero elsewhere; local
};

bool IsCollective(ReshardKind kind);
// HLO's name: "all-reduce"; "slice" and "make-partial" for the local ones.
std::string_view ToString(ReshardKind kind);

struct ReshardStep {
  ReshardKind kind = ReshardKind::kSlice;
  AxisList axes;  // major to minor, one group; those that `dim` loses or gains lie side by side
  int dim = -1;
  int to_dim = -1;  // kAllToAll
  Sharding result;  // after this step
  bool operator==(const ReshardStep&) const = default;
};

// What the price of a step depends on.
struct StepWork {
  ReshardKind kind = ReshardKind::kSlice;
  // As in HLO: all-gather: the local result; every other kind, the local ones (kSlice,
  // kMakePartial) included: the local operand.
  int64_t local_bytes = 0;
  AxisSet axes;
  // The members' parts are no whole blocks of memory: a dimension that is cut or put together has
  // others in front of it. Never of all-reduces and what is local.
  bool is_inner = false;
  auto operator<=>(const StepWork&) const = default;
};

// Whose all-reduces of several operands sum each by itself: XLA:CPU's devices meet for each.
constexpr bool SumsOperandsApart(Platform platform) { return platform == Platform::kCpu; }

// Of tensors that share an all-reduce those of no more bytes are packed into one array where each
// operand is summed by itself: beyond that packing takes longer than one more meeting of the
// devices. docs/design/0012-prices.md has the measurement.
inline constexpr int64_t kMostPackedBytes = 256 << 10;

// Is a tensor packed into one array with those that it shares a collective instruction with?
constexpr bool IsPacked(ReshardKind kind, int64_t local_bytes, Platform platform) {
  return kind != ReshardKind::kAllReduce ||
         (SumsOperandsApart(platform) && local_bytes <= kMostPackedBytes);
}

// Cost of one step, not negative. Not asked for steps over axes of size 1, which cost nothing. For
// equal arguments it must give equal costs.
using ReshardPrice = std::function<double(const StepWork& work)>;

struct ReshardPath {
  std::vector<ReshardStep> steps;
  double cost = 0;
};

// The cheapest sequence under `price`, by Dijkstra over the shardings that single steps reach; ties
// go to fewer steps, then to the path found first, so the same input gives the same path. Two
// things are left out: making axes partial that `to` wants otherwise (never cheaper, unless prices
// of larger groups are lower, which noise in measurements makes them), and, where
// more than three axes would take part, splitting over axes that neither side uses (to communicate
// less and gather again). Tens of microseconds for three axes. Precondition: both shardings are
// valid.
ReshardPath CheapestReshard(const Shape& shape, const Sharding& from, const Sharding& to,
                            const Mesh& mesh, const ReshardPrice& price);

// What CheapestReshard costs between any two shardings of one shape: one search finds the costs
// from a sharding to all others that are partial over the same axes, tens of microseconds for three
// axes once the steps between them are known. Not thread-safe.
class ReshardDistances {
 public:
  // Preconditions: SearchesEveryAxis(mesh), which must live as long as this, and no sharding splits
  // over axes of size 1.
  ReshardDistances(const Shape& shape, const Mesh& mesh, const ReshardPrice& price);
  ~ReshardDistances();
  // Precondition: both are valid.
  double Between(const Sharding& from, const Sharding& to);

 private:
  struct Graph;
  std::unique_ptr<Graph> graph_;
};

// Whether so few axes take part that CheapestReshard leaves no splits out.
bool SearchesEveryAxis(const Mesh& mesh);

// What the price of the step is asked for.
StepWork WorkOfStep(const Shape& shape, const Sharding& before, const ReshardStep& step,
                    const Mesh& mesh);

}  // namespace minka
