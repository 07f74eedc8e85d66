#include "minka/driver/parallelize.h"

#include <atomic>
#include <numeric>
#include <utility>

#include "minka/base/check.h"
#include "minka/base/file.h"
#include "minka/base/status.h"
#include "minka/driver/describe_pipeline.h"
#include "minka/driver/initial_state.h"
#include "minka/driver/inputs.h"

namespace minka {
namespace {

PlanSource Search(PlanRequest request) {
  return [request = std::move(request)](const Step& step,
                                        std::optional<int64_t> limit) -> SearchResult<Plan> {
    PlanRequest limited = request;
    limited.search.memory_limit_bytes = limit;
    ASSIGN_OR_RETURN(PlanResult result, PlanStep(step, limited));
    return std::move(result.candidates[result.best].plan);
  };
}

// A plan file also says how the step is prepared.
absl::StatusOr<PlanSource> SourceOf(PlanRequest& request, const ParallelizeOptions& options) {
  if (options.plan_path.empty()) return Search(request);
  if (request.search != SearchOptions{.memory_limit_bytes = request.search.memory_limit_bytes}) {
    return InvalidArgument(
        "{} is a plan already made; leave out pins, limits, gap, time limit and threads, or leave "
        "out the plan to search for one",
        options.plan_path);
  }
  ASSIGN_OR_RETURN(std::string json, ReadFile(options.plan_path));
  ASSIGN_OR_RETURN(const Preparation planned, PreparationOfJson(json));
  request.micro_batches = planned.micro_batches;
  return PlanFromText(std::move(json));
}

LazyLocalDevices DevicesFor(const Cluster& cluster, const ParallelizeOptions& options) {
  if (options.devices) return LazyLocalDevices(*options.devices);
  // Beside workers, one for what is compared with them.
  const int num_devices = options.workers ? 1 : static_cast<int>(cluster.num_devices());
  return LazyLocalDevices(
      {.num_devices = num_devices, .plugin_path = options.plugin_path, .kind = cluster.platform()});
}

// The pipeline of a request, or of a plan file that has one.
absl::StatusOr<std::optional<PlannedPipeline>> PipelineOf(const Step& step,
                                                          const PlanRequest& request,
                                                          const ParallelizeOptions& options) {
  if (options.plan_path.empty()) {
    if (!request.pipeline) return std::nullopt;
    return PlanPipeline(step, request);
  }
  ASSIGN_OR_RETURN(const std::string json, ReadFile(options.plan_path));
  ASSIGN_OR_RETURN(const PlannedPreparation planned, PlannedPreparationOf(json));
  if (planned.stage_of_layer.empty()) return std::nullopt;
  return LoadPipeline(step, json);
}

int64_t NumDevices(const PlannedPipeline& pipeline) {
  const std::vector<int> by_mesh = pipeline.num_devices();
  return std::accumulate(by_mesh.begin(), by_mesh.end(), int64_t{0});
}

absl::StatusOr<Parallelized> ParallelizeWith(const Step& step,
                                             std::vector<std::optional<Initializer>> initializers,
                                             const Cluster& cluster, const ParallelMethod& method,
                                             const ParallelizeOptions& options) {
  ASSIGN_OR_RETURN(PlanRequest request, RequestFor(cluster, method, options.cost_model));
  request.options = options.configuration;
  std::atomic<bool> cancelled = false;
  request.cancelled = &cancelled;
  const std::stop_callback cancel_planning(options.stop, [&] { cancelled = true; });
  ASSIGN_OR_RETURN(const PlanSource source, SourceOf(request, options));
  if (request.pipeline && options.on_step) options.on_step("plan");
  ASSIGN_OR_RETURN(std::optional<PlannedPipeline> pipeline, PipelineOf(step, request, options));
  LazyLocalDevices devices = DevicesFor(cluster, options);
  if (pipeline && NumDevices(*pipeline) > cluster.num_devices()) {
    return InvalidArgument("the plan's meshes have {} devices together, the cluster {}",
                           NumDevices(*pipeline), cluster.num_devices());
  }
  const std::vector<int> num_devices =
      pipeline ? pipeline->num_devices() : std::vector{static_cast<int>(cluster.num_devices())};
  if (options.on_step) options.on_step(options.workers ? "workers" : "devices");
  ASSIGN_OR_RETURN(std::unique_ptr<Session> session,
                   StartSession(num_devices, options.workers, devices));
  // Until the session moves on.
  const auto cancel = [running = session.get()] { running->Cancel(); };
  std::optional<std::stop_callback<decltype(cancel)>> cancel_session(std::in_place, options.stop,
                                                                     cancel);
  if (pipeline) {
    if (options.on_step) options.on_step("xla");
    ASSIGN_OR_RETURN(auto executor, CompilePipeline(*pipeline, *session));
    RETURN_IF_ERROR(CheckMemory(pipeline->plan, request));
    cancel_session.reset();
    Parallelized run(step, *std::move(pipeline), std::move(session), std::move(executor),
                     std::move(devices), std::move(initializers));
    if (!options.dump_dir.empty()) RETURN_IF_ERROR(run.Dump(options.dump_dir));
    return run;
  }
  ASSIGN_OR_RETURN(CompiledStep compiled,
                   Compile(step, source, *session,
                           {.preparation = {.micro_batches = request.micro_batches},
                            .memory_limit_bytes = request.search.memory_limit_bytes,
                            .dump_dir = options.dump_dir,
                            .configuration = options.configuration,
                            .on_step = options.on_step}));
  cancel_session.reset();
  return Parallelized(step, std::move(compiled), std::move(session), std::move(devices),
                      std::move(initializers));
}

template <typename... Cases>
struct Visitor : Cases... {
  using Cases::operator()...;
};

}  // namespace

ParallelMethod MakeMethod(Method method, std::string mesh, SearchOptions search,
                          const MicroBatchOptions& micro_batches,
                          std::optional<RematChoice> remat) {
  const auto make = [&]<typename T>(T made) -> ParallelMethod {
    made.mesh = std::move(mesh);
    made.search = std::move(search);
    made.num_micro_batches = micro_batches.num_micro_batches;
    made.per_micro_batch = micro_batches.per_micro_batch;
    made.narrow_sums = micro_batches.narrow_sums;
    made.remat = std::move(remat);
    return made;
  };
  switch (method) {
    case Method::kShard:
      return make(Shard{});
    case Method::kData:
      return make(DataParallel{});
    case Method::kZero2:
      return make(Zero2{});
    case Method::kZero3:
      return make(Zero3{});
  }
  MINKA_CHECK(false);
}

absl::StatusOr<PlanRequest> RequestFor(const Cluster& cluster, const ParallelMethod& method,
                                       const CostModelChoice& cost_model) {
  PlanRequest request{.cluster = cluster, .cost_model = cost_model};
  std::string mesh;
  const Visitor visitor{[&](const Pipeline& pipeline) {
                          request.pipeline = pipeline.options;
                          request.search = pipeline.search;
                          request.micro_batches = {.num_micro_batches = pipeline.num_micro_batches,
                                                   .per_micro_batch = pipeline.per_micro_batch,
                                                   .narrow_sums = pipeline.narrow_sums};
                          request.remat = pipeline.remat;
                        },

                        [&]<Method kName>(const MethodOptions<kName>& any) {
                          request.methods = {kName};
                          request.search = any.search;
                          request.micro_batches = {.num_micro_batches = any.num_micro_batches,
                                                   .per_micro_batch = any.per_micro_batch,
                                                   .narrow_sums = any.narrow_sums};
                          request.remat = any.remat;
                          mesh = any.mesh;
                          if (mesh.empty() && kName != Method::kShard) {
                            mesh = fmt::format("data={}", cluster.num_devices());
                          }
                        }};
  std::visit(visitor, method);
  if (!mesh.empty()) {
    ASSIGN_OR_RETURN(const Mesh parsed, Mesh::Parse(mesh));
    request.meshes = {parsed};
  }
  return request;
}

absl::StatusOr<Parallelized> Parallelize(const TracedStep& traced, const Cluster& cluster,
                                         const ParallelMethod& method,
                                         const ParallelizeOptions& options) {
  return ParallelizeWith(traced.step, traced.initializers, cluster, method, options);
}

absl::StatusOr<Parallelized> Parallelize(const Step& step, const Cluster& cluster,
                                         const ParallelMethod& method,
                                         const ParallelizeOptions& options) {
  return ParallelizeWith(step, {}, cluster, method, options);
}

Parallelized::Parallelized(Step given, CompiledStep compiled, std::unique_ptr<Session> session,
                           LazyLocalDevices devices,
                           std::vector<std::optional<Initializer>> initializers)
    : given_(std::move(given)),
      prepared_(compiled.prepared),
      plan_(compiled.plan),
      rows_(WholeRows(given_)),
      compile_times_(compiled.times),
      devices_(std::move(devices)),
      initializers_(std::move(initializers)),
      session_(std::move(session)),
      executor_(compiled.executor.get()),
      runner_(prepared_, std::move(compiled.executor)) {}

Parallelized::Parallelized(Step given, PlannedPipeline pipeline, std::unique_ptr<Session> session,
                           std::unique_ptr<PipelineExecutor> executor, LazyLocalDevices devices,
                           std::vector<std::optional<Initializer>> initializers)
    : given_(std::move(given)),
      prepared_(pipeline.prepared),
      pipeline_(std::move(pipeline)),
      rows_(pipeline_->split.rows),
      devices_(std::move(devices)),
      initializers_(std::move(initializers)),
      session_(std::move(session)),
      executor_(executor.get()),
      runner_(prepared_, std::move(executor)) {}

const Plan& Parallelized::plan() const {
  MINKA_CHECK(plan_.has_value(), "a pipeline has a plan for each of its stages");
  return *plan_;
}

absl::StatusOr<State> Parallelized::Initialize(uint64_t seed) {
  if (initializers_.empty()) {
    return FailedPrecondition(
        "the step {} says nothing about initial values; give them to Initialize",
        given_.module.name);
  }
  ASSIGN_OR_RETURN(const InitialValuesProgram program,
                   TraceInitialValues(given_, initializers_, rows_, *executor_));
  const Literal input = SeedOf(seed);
  absl::StatusOr<std::vector<DistributedArray>> values =
      MakeValues(program, {&input, 1}, *executor_, *session_);
  if (!values.ok()) return WithContext(values.status(), "the initial values");
  State state{.seed = seed};
  state.arrays.resize(step().parameters.size());
  for (size_t i = 0; i < values->size(); ++i) {
    state.arrays[program.parameters[i]] = std::move((*values)[i]);
  }
  const Computation& entry = given_.module.entry_computation();
  for (size_t i = 0; i < initializers_.size(); ++i) {
    const std::vector<int>& numbers = rows_.parameters[i];
    if (!initializers_[i] || !state.arrays[numbers.front()].empty()) continue;
    const Literal value =
        InitialValue(*initializers_[i], entry.instructions[entry.parameters[i]].shape(),
                     given_.parameters[i].name, seed);
    const std::vector<Literal> parts = InRows({value}, {numbers});
    for (size_t row = 0; row < parts.size(); ++row) {
      ASSIGN_OR_RETURN(state.arrays[numbers[row]],
                       runner_.executor().Put(numbers[row], parts[row]));
    }
  }
  return state;
}

absl::StatusOr<State> Parallelized::Initialize(const ParameterValues& values) {
  return runner_.CreateState(InRows(values, rows_.parameters));
}

absl::StatusOr<ParameterValues> Parallelized::StepValues(const Batch& batch, uint64_t seed,
                                                         int64_t step) const {
  ParameterValues values(given_.parameters.size());
  size_t next = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const ParameterRole role = given_.parameters[i].role;
    if (role == ParameterRole::kKey) values[i] = StepKey(seed, step);
    if (role != ParameterRole::kBatch) continue;
    if (next == batch.size()) {
      return InvalidArgument("the batch has {} arrays; {} is missing", batch.size(),
                             given_.parameters[i].name);
    }
    values[i] = batch[next++];
  }
  if (next < batch.size()) {
    return InvalidArgument("the batch has {} arrays; the step takes {}", batch.size(), next);
  }
  return values;
}

absl::StatusOr<ParameterValues> Parallelized::RowValues(const Batch& batch, uint64_t seed,
                                                        int64_t step) const {
  ASSIGN_OR_RETURN(const ParameterValues values, StepValues(batch, seed, step));
  return InRows(values, rows_.parameters);
}

absl::StatusOr<double> StepResult::Loss() const {
  if (loss_result < 0) return FailedPrecondition("no result of the step is marked as its loss");
  ASSIGN_OR_RETURN(const Literal loss, results[loss_result].ToHost());
  return ScalarValue(loss);
}

absl::StatusOr<StepResult> Parallelized::operator()(State state, const Batch& batch) {
  ASSIGN_OR_RETURN(const ParameterValues values, RowValues(batch, state.seed, state.num_steps));
  ASSIGN_OR_RETURN(StepOutput output, runner_.Run(std::move(state), values));
  return ResultOf(std::move(output));
}

absl::StatusOr<PlacedBatch> Parallelized::Place(const Batch& batch) {
  ASSIGN_OR_RETURN(const ParameterValues values, RowValues(batch, /*seed=*/0, /*step=*/0));
  PlacedBatch placed;
  for (int i = 0; i < static_cast<int>(values.size()); ++i) {
    placed.arrays.emplace_back();
    if (step().parameters[i].role != ParameterRole::kBatch) continue;
    ASSIGN_OR_RETURN(placed.arrays.back(), runner_.executor().Put(i, values[i]));
  }
  runner_.executor().Flush();
  return placed;
}

absl::StatusOr<StepResult> Parallelized::RunPlaced(State state, PlacedBatch batch) {
  if (batch.arrays.size() != step().parameters.size()) {
    return FailedPrecondition("this batch was consumed by an earlier step; place another");
  }
  ParameterValues values(step().parameters.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const ParameterRole role = step().parameters[i].role;
    if (role == ParameterRole::kKey) values[i] = StepKey(state.seed, state.num_steps);
    if (role == ParameterRole::kBatch && i < state.arrays.size()) {
      state.arrays[i] = std::move(batch.arrays[i]);
    }
  }
  StepOutput output;
  ASSIGN_OR_RETURN(output.results, runner_.Launch(state, values));
  for (size_t i = 0; i < values.size(); ++i) {
    if (!IsResident(step().parameters[i])) state.arrays[i] = {};
  }
  ASSIGN_OR_RETURN(output.state, runner_.NextState(std::move(state), output.results));
  return ResultOf(std::move(output));
}

StepResult Parallelized::ResultOf(StepOutput output) const {
  StepResult result{.state = std::move(output.state), .results = std::move(output.results)};
  for (size_t i = 0; i < step().results.size(); ++i) {
    if (step().results[i].role == ResultRole::kLoss) result.loss_result = static_cast<int>(i);
  }
  return result;
}

absl::StatusOr<pjrt::Client> Parallelized::LocalClient() {
  ASSIGN_OR_RETURN(const LocalDevices devices, devices_.Get());
  return devices.client;
}

absl::Status Parallelized::SavePlan(const std::string& path) const {
  return WriteFile(path, pipeline_ ? PipelinePlanToJson(pipeline_->plan, pipeline_->modules())
                                   : PlanToJson(*plan_, prepared_.module));
}

absl::Status Parallelized::Dump(const std::string& folder) const {
  if (pipeline_) return DumpPipeline(*pipeline_, session_->platform(), executor_, folder);
  return Compile(given_, PlanFromText(PlanToJson(*plan_, prepared_.module)), *session_,
                 {.preparation = PreparationOf(*plan_),
                  .dump_dir = folder,
                  .configuration = plan_->options})
      .status();
}

}  // namespace minka
