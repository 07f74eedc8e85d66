// Plans one mesh: how every operation of a step is split, so that the predicted step time is
// smallest under a limit on each device's memory, with a lower bound on what any plan over the
// enumerated choices could reach (design 3.3, 3.6).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/cost/cost_model.h"
#include "minka/ir/step.h"
#include "minka/plan/plan.h"
#include "minka/planner/intra_op/search_result.h"

namespace minka {

enum class Method {
  kShard,  // everything is chosen by the search
  kData,   // the batch is split over all axes, state is whole on every device
  kZero2,  // as kData, but what the optimizer alone reads is split over all axes
  kZero3,  // all state is split over all axes, weights are gathered for each group of uses
};

// "shard", "data", "zero2", "zero3".
std::string_view MethodName(Method method);
absl::StatusOr<Method> ParseMethod(std::string_view name);

// What the search may not do, besides what the method says.
struct SearchLimits {
  // No tensor is put together again by an all-gather, none is moved by an all-to-all.
  bool no_all_gather = false;
  bool no_all_to_all = false;
  // Examples are split over this axis of the mesh and no other, in batch inputs and in everything
  // made of them; activations are neither gathered nor moved along it. Empty: the search decides.
  std::string batch_axis;
  // Examples are not split along dimensions of their own, such as positions of a sequence or
  // pixels: neither those of batch inputs nor those of what forward and backward pass make of them
  // (FindExampleDims). One that the program joins with the batch is split as a batch is.
  bool no_sequence_split = false;
  // Every state tensor is split over at least one axis that divides it.
  bool no_replicated_parameters = false;
  // Gradients are reduced by reduce-scatters, the optimizer's state is split and new weights are
  // gathered wherever that moves no more bytes than an all-reduce.
  bool prefer_reduce_scatter = false;
  // Weights that one phase reads are gathered together up to so many bytes of results; 0: small
  // ones (kMostPackedSavingMemory), others each by itself, which needs the least memory.
  int64_t combine_gathers_bytes = 0;
  bool operator==(const SearchLimits&) const = default;
};

// What is asked of the search, by whatever method.
struct SearchOptions {
  std::optional<int64_t> memory_limit_bytes;  // per device; estimated tier
  std::vector<std::string> pins;              // "GLOB=SHARDING" on names of parameters, results and
                                              // operations
  SearchLimits limits;
  double gap = 0.002;  // stop the solver there, penalties included
  // Of all searches of a call together, in units of the solver's work (about a nanosecond), see
  // WorkBudget; plans by rules that are tried beside a search under a memory limit, and layers by
  // themselves, may take half as much again.
  int64_t work_limit = 12'000'000'000;
  // A clock is an outer guard: what it stops may differ from run to run. Searches end by work.
  double time_limit_seconds = 600;
  int num_threads = 2;
  bool operator==(const SearchOptions&) const = default;
};

// What searches may still spend together, in units of the solver's work (about a nanosecond). Not
// thread-safe.
class WorkBudget {
 public:
  explicit WorkBudget(int64_t work) : work_(work) {}
  int64_t left() const { return std::max<int64_t>(0, work_ - spent_); }
  // More than there was, where a search that was begun needed it.
  int64_t spent() const { return spent_; }
  void Take(int64_t work) { spent_ += work; }

 private:
  int64_t work_ = 0, spent_ = 0;
};

// What it costs to hold a byte on every device: where plans take about as long, the search prefers
// those that hold less. Without a limit that it would have to keep, it ends sooner and its bound is
// near.
struct MemoryPrice {
  double us_per_byte = 0;  // of what is there throughout the loop over micro-batches
  double in_flight = 1;    // so many times of what a micro-batch keeps for its backward pass
  bool operator==(const MemoryPrice&) const = default;
};

class ReshardCostTables;  // reshard_prices.h
class MeshProblem;

struct IntraOpOptions {
  Method method = Method::kShard;
  SearchOptions search;
  WorkBudget* budget = nullptr;  // outlives the call; null: no limit
  // Of the mesh and the cost model, shared by several searches there; outlive the call. Null: the
  // search has its own. The answer is the same.
  ReshardCostTables* reshard_costs = nullptr;
  // Of an equal step, the mesh and the cost model, and of equal options but for prices of memory,
  // limits on work and time, gap, cutoff and threads; outlives the call. Null: made anew. For
  // kShard without tries_rules.
  const MeshProblem* problem = nullptr;
  // The search ends once nothing can have a smaller objective. For methods without penalties.
  std::optional<double> cutoff;
  // Are the plans of data, zero2 and zero3 among the answers of kShard? Without them planning takes
  // half the time, and the plan may be a little slower.
  bool tries_rules = true;
  // Where no plan is found that fits, the result is the one found that needs least, without a lower
  // bound, instead of an error.
  bool takes_least = false;
  MemoryPrice memory_price;
  // Sums over micro-batches are split over as many devices as divide them.
  bool scatters_accumulators = false;
  // What a device holds when the plan's program is compiled, where the compiler's work can be
  // foreseen. Empty: what memory_estimate.h says.
  std::function<absl::StatusOr<int64_t>(const StagePlan& stage)> peak_memory_bytes;
  // Per operation and per dot or convolution; what is cut is counted.
  int max_choices = 128, max_contraction_choices = 160;
  std::vector<int32_t> initial_choice;  // of an earlier result on the same problem
  std::function<void(double seconds, double gap)> on_progress;
  const std::atomic<bool>* cancelled = nullptr;  // see SolveParameters
};

struct IntraOpResult {
  StagePlan stage;
  double objective = 0;  // us, or unitless for alpa; without penalties and what memory costs
  // No plan over the enumerated choices costs less, nor, where the search has penalties or a price
  // of memory, less with no more of them and holding no more of it.
  double lower_bound = 0;
  // No plan over them that keeps the limit has a smaller objective with penalties and what memory
  // costs; of the search alone (tries_rules).
  double priced_lower_bound = 0;
  double gap = 0;
  double memory_price = 0;  // objective per byte
  std::string stop_reason;
  double seconds = 0;
  int num_nodes = 0, num_edges = 0;
  std::vector<int32_t> choice;  // for a later warm start
  std::vector<std::string> notes;
};

// A step on a mesh with all choices and what they cost: what searches have in common that differ in
// the price of memory. Thread-safe.
class MeshProblem {
 public:
  // Step, cost model and options.reshard_costs must outlive it.
  static absl::StatusOr<MeshProblem> Create(const Step& step, const Mesh& mesh,
                                            const CostModel& cost, const IntraOpOptions& options);
  MeshProblem(MeshProblem&&) noexcept;
  MeshProblem& operator=(MeshProblem&&) noexcept;
  ~MeshProblem();

  // See IntraOpOptions::problem.
  SearchResult<IntraOpResult> Search(const IntraOpOptions& options) const;

 private:
  struct Parts;
  explicit MeshProblem(std::unique_ptr<Parts> parts);

  std::unique_ptr<Parts> parts_;
};

// Precondition: the step is prepared (driver/prepare.h), with its structure
// (analysis/structure.h). Errors name a pin that matches nothing or does not fit, or the smallest
// memory limit known to work.
SearchResult<IntraOpResult> PlanMesh(const Step& step, const Mesh& mesh, const CostModel& cost,
                                     const IntraOpOptions& options);

// "the plan is that of method zero2, which is predicted to be faster": of a plan by method shard.
std::string NoteOnPlanByRules(Method method);

// "no plan fits into LIMIT bytes per device; WHAT SMALLEST bytes (... MiB)", or, where that is not
// proved, "no plan was found that fits into ...", which names that limit.
Refusal NoPlanFits(int64_t limit, std::string_view what, int64_t smallest, bool is_proved = true);

}  // namespace minka
