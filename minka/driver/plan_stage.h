// Plans single stages of pipelines, each on the fastest of the meshes that it may have.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/driver/plan_step.h"
#include "minka/planner/intra_op/reshard_prices.h"

namespace minka {

// What the search found of a stage: its fastest mesh and how it runs there.
struct SearchedStage {
  Mesh mesh;
  IntraOpResult result;
};

// Prices of memory do not depend on where in its pipeline a stage is, so that equal stages have
// equal plans: as if so many micro-batches were held at once.
inline constexpr double kUsualInFlight = 4;

// Where searches are to know how long copies are held, a limit that nothing reaches.
inline constexpr int64_t kUnreachedLimit = int64_t{1} << 60;

struct StageRequest {
  std::vector<Mesh> meshes;  // that it may have
  int kind = 0;              // of the hosts that it lies on, see PlanRequest
  // work_limit of this stage alone; where nothing fits into the memory limit, the answer is what
  // needs least of what was found.
  SearchOptions search;
  // What its search takes for holding a byte on every device (MemoryPrice), in parts of what it
  // takes to read it once per micro-batch. 0: memory costs nothing below the limit.
  double memory_price = 0;
  double in_flight = kUsualInFlight;  // at most so many micro-batches count then
  // Choices that split an operation in unusual ways, too: they are most of those on meshes of three
  // axes, and hardly ever taken.
  bool tries_unusual = true;
  // Of an equal step on its one mesh with equal options but for memory_price, which is never 0:
  // made by the first search and used by others, one at a time. Null: each makes its own.
  std::optional<MeshProblem>* problem = nullptr;
};

// What a search takes for memory at that price (StageRequest::memory_price).
MemoryPrice MemoryPriceOf(double price, double in_flight, int64_t num_micro_batches,
                          const Cluster& cluster);

// See StageRequest::tries_unusual.
void LeaveOutUnusual(IntraOpOptions& options);

// How many searches run at a time, for each number of micro-batches that is looked at: one where
// searches shall have one thread.
int NumSearchThreads(const SearchOptions& search);

// Remembers what it found: stages of equal layers are searched once, in however many pipelines of
// one step they stand. Thread-safe.
class StagePlanner {
 public:
  // Reads hosts, cost model, first method and `cancelled`.
  explicit StagePlanner(PlanRequest request) : request_(std::move(request)) {}

  // As long as this lives; the same for equal stages. Errors say why the first mesh has no plan.
  absl::StatusOr<const SearchedStage*> Find(const Step& step, const StageRequest& request);
  // Described, for its step.
  absl::StatusOr<Plan> PlanOn(const Step& step, const StageRequest& request);

 private:
  // What searches on a mesh have in common.
  struct MeshCosts {
    MeshCosts(const Mesh& mesh, std::unique_ptr<CostModel> priced_by)
        : model(std::move(priced_by)), reshards(mesh, *model) {}
    const std::unique_ptr<CostModel> model;
    ReshardCostTables reshards;
  };
  absl::StatusOr<MeshCosts*> CostsOn(int kind, const Mesh& mesh);
  absl::StatusOr<SearchedStage> SearchAnew(const Step& step, const StageRequest& request);

  const PlanRequest request_;
  // Who asks first searches, others wait for it.
  struct Search {
    std::once_flag once;
    absl::StatusOr<SearchedStage> found;
  };
  Search& SearchOf(const Step& step, const StageRequest& request);
  std::mutex mutex_;
  std::map<uint64_t, Search> searches_;  // by what they look at; guarded by mutex_
  // By kind of hosts and mesh; guarded by mutex_.
  std::map<std::pair<int, std::string>, std::unique_ptr<MeshCosts>> costs_;
};

}  // namespace minka
