// The C++ API: a single-device step and a cluster become a step that runs on all devices.
//
//   ASSIGN_OR_RETURN(TracedStep step, Trace(model, AdamW()));
//   ASSIGN_OR_RETURN(Parallelized run, Parallelize(step, Cluster::Local(8), Shard{}));
//   ASSIGN_OR_RETURN(State state, run.Initialize(/*seed=*/0));
//   for (const Batch& batch : batches) {
//     ASSIGN_OR_RETURN(StepResult result, run(std::move(state), batch));
//     state = std::move(result.state);
//   }
//
// The plugin runs in this process, which XLA can abort, unless the meshes are given to workers;
// what is compared with them runs here then, and the command line runs all of that in a child.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/cluster/cluster.h"
#include "minka/driver/compile.h"
#include "minka/driver/pipeline.h"
#include "minka/driver/plan_step.h"
#include "minka/driver/start_session.h"
#include "minka/frontend/trace.h"
#include "minka/ir/step.h"
#include "minka/lowering/stack_rows.h"
#include "minka/oracle/oracle.h"
#include "minka/plan/plan.h"
#include "minka/runtime/mesh/local_devices.h"
#include "minka/runtime/mesh/step_runner.h"
#include "minka/runtime/pipeline/pipeline_executor.h"

namespace minka {

// A method, and what is asked of its plan.
template <Method kName>
struct MethodOptions {
  static constexpr Method kMethod = kName;

  // "data=2,model=4"; empty: the fastest shape of the cluster's devices for Shard, one axis for the
  // others.
  std::string mesh;
  SearchOptions search;
  int64_t num_micro_batches = 1;  // see MicroBatchOptions
  bool per_micro_batch = false, narrow_sums = false;
  std::optional<RematChoice> remat;  // see PlanRequest
};

// Everything is chosen by the search.
using Shard = MethodOptions<Method::kShard>;
// The batch is split over all axes, parameters are whole on every device.
using DataParallel = MethodOptions<Method::kData>;
// Data parallelism in which what the optimizer alone reads is split over all axes: gradients are
// reduce-scattered, new weights gathered. Tensors that the devices do not divide stay whole; the
// plan's notes name them. Micro-batches accumulate gradients scattered, unless a memory limit is
// given that whole ones keep, too.
using Zero2 = MethodOptions<Method::kZero2>;
// As Zero2, and weights are stored split, too, and gathered for each group of uses.
using Zero3 = MethodOptions<Method::kZero3>;

// Layers as stages on meshes of their own, through which micro-batches flow. Each stage is planned
// as Shard plans a step.
struct Pipeline {
  int64_t num_micro_batches = 1;  // kChooseMicroBatches: as many as are predicted to be fastest
  PipelineOptions options;
  SearchOptions search;
  bool per_micro_batch = false, narrow_sums = false;  // see MicroBatchOptions
  std::optional<RematChoice> remat;                   // nullopt: nothing
};

using ParallelMethod = std::variant<Shard, DataParallel, Zero2, Zero3, Pipeline>;
// The method of the name as a type, with what all have in common.
ParallelMethod MakeMethod(Method method, std::string mesh, SearchOptions search = {},
                          const MicroBatchOptions& micro_batches = {},
                          std::optional<RematChoice> remat = std::nullopt);

struct ParallelizeOptions {
  CostModelChoice cost_model;
  // Takes this plan instead of searching; of the method's SearchOptions, only a memory limit can be
  // given with it.
  std::string plan_path;
  std::optional<LocalDevices> devices;  // shares a connection; else one is opened
  // Where the meshes run; nullopt: in this process, where those of a pipeline take turns.
  std::optional<WorkerOptions> workers;
  std::string plugin_path;
  std::string dump_dir;
  std::function<void(std::string_view step)> on_step;  // of the compiler, see CompileOptions
  // Asked to stop, it returns Cancelled soon, but for XLA compiling in this process.
  std::stop_token stop;
  std::map<std::string, std::string> configuration;  // recorded in plan and dump
};

// Values of the batch inputs, in their order.
using Batch = std::vector<Literal>;

// Batch inputs on the devices, or on their way there, by parameter of the step that runs;
// move-only.
struct PlacedBatch {
  std::vector<DistributedArray> arrays;
};

struct StepResult {
  State state;
  std::vector<DistributedArray> results;  // by result of step(), empty where a result is state
  int loss_result = -1;                   // -1: the step marks none

  // Waits for it. FailedPrecondition: there is none.
  absl::StatusOr<double> Loss() const;
};

// A step compiled for a mesh, or for those of a pipeline, which hold rows of what is stacked for
// its layers. Values are numbered as the parameters and results of the given step; arrays, of which
// there may be several for one of these, as those of step(). Move-only; not thread-safe.
class Parallelized {
 public:
  // Of a given step; the session is the one that compiled it.
  Parallelized(Step given, CompiledStep compiled, std::unique_ptr<Session> session,
               LazyLocalDevices devices, std::vector<std::optional<Initializer>> initializers);
  Parallelized(Step given, PlannedPipeline pipeline, std::unique_ptr<Session> session,
               std::unique_ptr<PipelineExecutor> executor, LazyLocalDevices devices,
               std::vector<std::optional<Initializer>> initializers);

  // State by the step's initialisers, made on the devices that keep it, but for constants that
  // several stages read; FailedPrecondition for a step that has none (a module file).
  absl::StatusOr<State> Initialize(uint64_t seed);
  // State from values by parameter (batch inputs and keys are not read).
  absl::StatusOr<State> Initialize(const ParameterValues& values);
  // One step; keys follow from the state's seed and step number. May return before it is done: who
  // reads a result waits for it.
  absl::StatusOr<StepResult> operator()(State state, const Batch& batch);
  // The same in two parts, so that a batch comes to workers while they run the step before: puts
  // each input on the meshes that read it, and runs a step on it.
  absl::StatusOr<PlacedBatch> Place(const Batch& batch);
  absl::StatusOr<StepResult> RunPlaced(State state, PlacedBatch batch);

  // Precondition: it is no pipeline.
  const Plan& plan() const;
  // Null: it runs on one mesh.
  const PlannedPipeline* pipeline() const { return pipeline_ ? &*pipeline_ : nullptr; }
  const PipelineExecutor& executor() const { return *executor_; }
  // Where it runs.
  Session& session() const { return *session_; }
  absl::Status SavePlan(const std::string& path) const;
  // Compiles once more and writes what CompileOptions::dump_dir says.
  absl::Status Dump(const std::string& folder) const;

  const Step& given() const { return given_; }
  // The one that runs: a pipeline's, in which stacks are split, else the given one.
  const Step& step() const { return pipeline_ ? pipeline_->split.step : given_; }
  // What parameters and results of the given step are in step().
  const StepRows& rows() const { return rows_; }
  const Step& prepared() const { return prepared_; }
  // Of this process, for what the run is compared with. Opened when it is first asked for.
  absl::StatusOr<pjrt::Client> LocalClient();
  StepRunner& runner() { return runner_; }
  const StepRunner& runner() const { return runner_; }
  // Batch inputs and key of a step, by parameter of given().
  absl::StatusOr<ParameterValues> StepValues(const Batch& batch, uint64_t seed, int64_t step) const;
  const std::vector<CompileTime>& compile_times() const { return compile_times_; }

 private:
  StepResult ResultOf(StepOutput output) const;
  // StepValues by parameter of step().
  absl::StatusOr<ParameterValues> RowValues(const Batch& batch, uint64_t seed, int64_t step) const;

  Step given_;
  Step prepared_;
  std::optional<Plan> plan_;
  std::optional<PlannedPipeline> pipeline_;
  StepRows rows_;
  std::vector<CompileTime> compile_times_;
  LazyLocalDevices devices_;
  std::vector<std::optional<Initializer>> initializers_;
  std::unique_ptr<Session> session_;
  PipelineExecutor* executor_ = nullptr;  // that of runner_
  StepRunner runner_;
};

absl::StatusOr<Parallelized> Parallelize(const TracedStep& traced, const Cluster& cluster,
                                         const ParallelMethod& method,
                                         const ParallelizeOptions& options = {});
absl::StatusOr<Parallelized> Parallelize(const Step& step, const Cluster& cluster,
                                         const ParallelMethod& method,
                                         const ParallelizeOptions& options = {});

// What PlanStep is asked for a method.
absl::StatusOr<PlanRequest> RequestFor(const Cluster& cluster, const ParallelMethod& method,
                                       const CostModelChoice& cost_model);

}  // namespace minka
