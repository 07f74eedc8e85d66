// Plans a step on one mesh: of every mesh shape and method asked for, the fastest by predicted step
// time. Shapes on which layers by themselves say that it is slower may be left out.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "minka/cluster/cluster.h"
#include "minka/cost/calibration.h"
#include "minka/cost/cost_model.h"
#include "minka/driver/pipeline_options.h"
#include "minka/driver/tried_micro_batches.h"
#include "minka/ir/step.h"
#include "minka/lowering/micro_batches.h"
#include "minka/plan/plan.h"
#include "minka/planner/intra_op/intra_op.h"

namespace minka {

class PreparedSteps;
class StagePlanner;

enum class CostModelKind { kRoofline, kAlpa, kMeasured };

struct CostModelChoice {
  CostModelKind kind = CostModelKind::kRoofline;
  std::optional<Calibration> calibration;  // kMeasured
  std::vector<double> alpha, beta;         // kAlpa, one per mesh axis
  bool allow_replicated_dots = false;      // kAlpa
};

absl::StatusOr<std::unique_ptr<CostModel>> MakeCostModel(const CostModelChoice& choice,
                                                         const Cluster& cluster, const Mesh& mesh);

// Meshes and clusters of more devices are refused.
inline constexpr int64_t kMaxPlannedDevices = 4096;

// As many micro-batches as are predicted to be fastest.
inline constexpr int64_t kChooseMicroBatches = 0;

struct PlanRequest {
  Cluster cluster;
  // Hosts of other kinds. The stages of a pipeline lie on one kind each, by number: 0 the hosts of
  // the cluster, then these; one mesh has devices of one kind alone.
  std::vector<Cluster> other_hosts;
  MicroBatchOptions micro_batches;
  // nullopt: chosen where the step marks layer boundaries and the memory limit asks for it, see
  // remat_search.h.
  std::optional<RematChoice> remat;
  std::vector<Mesh> meshes;  // empty: every shape of cluster.num_devices() devices
  std::vector<Method> methods = {Method::kShard};
  std::optional<PipelineOptions> pipeline;  // plans several meshes, see pipeline.h
  SearchOptions search;
  // There is a plan that takes so long, or another way to find one (infinite). Aborted where layers
  // by themselves say that none is faster, or, of one mesh, that it is far too large, and where one
  // mesh has none that is faster; of a pipeline slower ones may be found.
  std::optional<double> faster_than_us;
  bool names_culprits = true;  // in refusals; takes a search for each pin and limit
  CostModelChoice cost_model;
  std::map<std::string, std::string> options;  // recorded in the plan
  // Called from several threads, one at a time.
  std::function<void(const std::string& what, double seconds, double gap)> on_progress;
  // Polled; set it from another thread to end the search soon, with Cancelled.
  const std::atomic<bool>* cancelled = nullptr;

  int num_kinds() const { return 1 + static_cast<int>(other_hosts.size()); }
  const Cluster& HostsOf(int kind) const { return kind == 0 ? cluster : other_hosts[kind - 1]; }
  int num_devices() const;  // of all kinds
  // What a device of the kind may hold: where there are several kinds, no more than it has.
  std::optional<int64_t> MemoryLimitOn(int kind) const;
  bool has_memory_limit() const;
  // Is there a plan to beat (faster_than_us)?
  bool has_plan_to_beat() const;
  void LiftMemoryLimit();  // whatever devices have
};

struct PlanCandidate {
  Mesh mesh;
  Method method = Method::kShard;
  absl::Status status;                          // why there is no plan
  std::optional<int64_t> smallest_limit_bytes;  // where nothing fits: as in Refusal
  Plan plan;                                    // where status is OK
  bool fits = false;                            // within the memory limit, or none given
};

struct PlanResult {
  std::vector<PlanCandidate> candidates;  // in the order tried
  int best = -1;                          // fastest that fits
  Step prepared;                          // as the best one takes it
  // Where their number was searched for: all that divide the batch, ascending.
  std::vector<TriedMicroBatches> tried_micro_batches;

  const Plan& plan() const { return candidates[best].plan; }  // the best
};

// Cancelled where the request is.
absl::Status CheckNotCancelled(const PlanRequest& request);

// On one mesh. Prepares the step for each candidate. An error only if no candidate has a plan that
// fits: it names the smallest memory that would do.
SearchResult<PlanResult> PlanStep(const Step& step, const PlanRequest& request);
// In the number of micro-batches that the request gives, for who tries several, which share
// `budget` instead of its work limit; `stages`: as FitByLayers has them.
SearchResult<PlanResult> PlanInGivenMicroBatches(const PlanRequest& request, PreparedSteps& steps,
                                                 StagePlanner& stages, WorkBudget& budget);

// Those asked for, or all shapes of the cluster.
std::vector<Mesh> MeshesOf(const PlanRequest& request);

// Can layers by themselves say what the step takes on these meshes (fit_by_layers.h)? The request
// limits memory, and method shard is among its methods.
bool MayFitByLayers(const Step& simplified, const std::vector<Mesh>& meshes,
                    const PlanRequest& request);

}  // namespace minka
