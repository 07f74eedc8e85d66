// What the search charges for the steps of reshards, by rule, and what reshards cost under equal
// rules, found once for all searches on a mesh.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <vector>

#include "minka/cost/cost_model.h"
#include "minka/sharding/mesh.h"
#include "minka/sharding/reshard.h"

namespace minka {

// Beyond every price: a path that costs as much uses what the rules forbid.
inline constexpr double kForbiddenReshard = 1e30;

// Which collectives run in one instruction with those of other tensors, see PriceInGroup.
struct CombiningRules {
  bool saves_memory = false;
  int num_combinable = 1;  // tensors, each of which pays so small a part of a latency
  auto operator<=>(const CombiningRules&) const = default;
};

// Reduce-scatters and gathers are combined by packing, which needs memory and keeps what is packed
// until the last of it is there. Where that matters, only tensors of no more bytes are, and no more
// than kMostPackedBytes in one instruction. All-reduces are combined even so.
inline constexpr int64_t kMostPackedSavingMemory = kMostPackedBytes / 4;

// Of the reshards of one kind of tensor.
struct ReshardRules {
  bool no_all_gather = false, no_all_to_all = false;
  AxisSet fixed_axes;                // nothing is gathered or moved along them
  bool discourages_gathers = false;  // and moves
  bool prefers_scattering = false;   // gathers cost two latencies more
  // Paths with one combined collective: what forbids it is forbidden.
  std::optional<CombiningRules> combining;
  auto operator<=>(const ReshardRules&) const = default;
};

// Valid as long as mesh and cost model. Under rules that combine, the prices of collectives are
// such that PriceOfCombined finds that of a path with one.
ReshardPrice PriceUnder(const ReshardRules& rules, const CostModel& cost, const Mesh& mesh,
                        ElementType type);
// The price of one combined collective, from a path's under rules that combine, rounded down so
// that the search charges no more than the plan does; nullopt: the path has none or several, or
// uses what is forbidden.
std::optional<double> PriceOfCombined(double price);
// What one of so many tensors pays for a collective that they share.
double SharedPrice(const StepWork& work, int num_combinable, const CostModel& cost,
                   const Mesh& mesh, ElementType type);

// What reshards cost on one mesh under one cost model, whoever asks first: searches of steps that
// have shapes in common need most costs again. Thread-safe; what they are does not depend on who
// asks. Holds some MB for each mesh of three axes.
class ReshardCostTables {
 public:
  // The cost model must outlive it.
  ReshardCostTables(const Mesh& mesh, const CostModel& cost) : mesh_(mesh), cost_(cost) {}

  class Table {
   public:
    double Between(const Sharding& from, const Sharding& to) {
      const std::lock_guard lock(mutex_);
      return distances_.Between(from, to);
    }

   private:
    friend class ReshardCostTables;
    Table(const Shape& shape, const Mesh& mesh, const ReshardPrice& price)
        : distances_(shape, mesh, price) {}
    std::mutex mutex_;
    ReshardDistances distances_;  // guarded by mutex_
  };
  // Valid as long as this. Precondition: SearchesEveryAxis(mesh).
  Table& Of(const Shape& shape, const ReshardRules& rules);

 private:
  using Key = std::tuple<ElementType, std::vector<int64_t>, ReshardRules>;
  const Mesh mesh_;
  const CostModel& cost_;
  std::mutex mutex_;
  std::map<Key, std::unique_ptr<Table>> tables_;  // guarded by mutex_
};

}  // namespace minka
