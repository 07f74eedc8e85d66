#include "executable.h"

#include <atomic>
#include <map>
#include <utility>

#include "jax_step.h"
#include "minka/base/status.h"

namespace minka {
namespace {

absl::StatusOr<std::optional<RematChoice>> ParseRemat(const std::vector<std::string>& names) {
  if (names.empty()) return std::nullopt;
  RematChoice choice;
  for (const std::string& name : names) {
    ASSIGN_OR_RETURN(const RematPolicy policy, ParseRematPolicy(name));
    choice.push_back(policy);
  }
  return choice;
}

}  // namespace

absl::StatusOr<ParallelMethod> MethodOf(const ParallelizeRequest& request) {
  const SearchOptions search{.memory_limit_bytes = request.peak_memory_bytes, .pins = request.pins};
  ASSIGN_OR_RETURN(std::optional<RematChoice> remat, ParseRemat(request.remat));
  if (request.method == "pipeline") {
    std::vector<Mesh> meshes;
    for (const std::string& mesh : request.meshes) {
      ASSIGN_OR_RETURN(meshes.emplace_back(), Mesh::Parse(mesh));
    }
    return Pipeline{.num_micro_batches = request.num_micro_batches,
                    .options = {.num_layers = request.num_layers,
                                .num_stages = request.num_stages,
                                .stage_of_layer = request.stage_of_layer,
                                .meshes = std::move(meshes),
                                .submeshes = request.submeshes,
                                .schedule = request.schedule},
                    .search = search,
                    .per_micro_batch = request.per_micro_batch,
                    .remat = std::move(remat)};
  }
  for (const Method method : {Method::kShard, Method::kData, Method::kZero2, Method::kZero3}) {
    if (request.method != MethodName(method)) continue;
    return MakeMethod(method, request.mesh, search,
                      {.num_micro_batches = request.num_micro_batches,
                       .per_micro_batch = request.per_micro_batch},
                      std::move(remat));
  }
  return InvalidArgument("there is no method \"{}\"", request.method);
}

namespace {

absl::Status NoExplanationOfPipelines() {
  return Unimplemented(
      "explain plans steps on one mesh; parallelize with minka.Shard for the mesh of a stage");
}

// Plans with each sharding of the first parameter that matches. `plan`: null: the best one.
absl::StatusOr<std::string> ExplainStep(const Step& step, const ParallelizeRequest& asked,
                                        const Plan* plan, const std::string& glob,
                                        const std::stop_token& stop, const OnPhase& on_phase) {
  ASSIGN_OR_RETURN(const ParallelMethod method, MethodOf(asked));
  ASSIGN_OR_RETURN(PlanRequest request,
                   RequestFor(Cluster::Local(asked.num_devices), method, CostModelChoice()));
  if (request.pipeline) return NoExplanationOfPipelines();
  std::atomic<bool> cancelled = false;
  request.cancelled = &cancelled;
  const std::stop_callback cancel(stop, [&] { cancelled = true; });
  PlanResult planned;
  if (!asked.plan_path.empty()) {
    ASSIGN_OR_RETURN(const Method planned_by, ParseMethod(plan->method));
    request.methods = {planned_by};
    request.micro_batches = PreparationOf(*plan).micro_batches;
    request.remat = plan->remat;
  }
  if (plan == nullptr) {
    on_phase("plan");
    ASSIGN_OR_RETURN(planned, PlanStep(step, request));
    plan = &planned.candidates[planned.best].plan;
  }
  ASSIGN_OR_RETURN(const int parameter, FindParameter(*plan, step.module.name, glob));
  ASSIGN_OR_RETURN(const std::string table,
                   ExplainParameter(step, request, *plan, parameter,
                                    [&](const std::string& pin) { on_phase("plan with " + pin); }));
  return fmt::format("The best plans on mesh {} with {} pinned ('*': as planned):\n{}",
                     plan->stage.mesh.ToString(), plan->parameters[parameter].name, table);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Executable>> Executable::Create(const ParallelizeRequest& request,
                                                               const std::stop_token& stop,
                                                               const OnPhase& on_phase) {
  on_phase("import");
  ASSIGN_OR_RETURN(const Step step, StepOfJax(request.hlo, request.description));
  ASSIGN_OR_RETURN(const ParallelMethod method, MethodOf(request));
  ASSIGN_OR_RETURN(
      Parallelized run,
      Parallelize(step, Cluster::Local(request.num_devices), method,
                  {.plan_path = request.plan_path,
                   .workers = WorkerOptions{.hosts_path = request.hosts_path,
                                            .binary = request.worker_binary,
                                            .plugin_path = request.plugin_path},
                   .plugin_path = request.plugin_path,
                   .on_step = on_phase,
                   .stop = stop,
                   .configuration = {{"method", request.method}, {"frontend", "python"}}}));
  return std::unique_ptr<Executable>(new Executable(std::move(run)));
}

absl::StatusOr<Literal> Executable::Value(int parameter, std::span<const uint8_t> bytes) const {
  const Computation& entry = run_.step().module.entry_computation();
  const Shape& shape = entry.instructions[entry.parameters[parameter]].shape();
  if (static_cast<int64_t>(bytes.size()) != shape.num_bytes()) {
    return InvalidArgument("{} is {}, which has {} bytes; {} were given",
                           run_.step().parameters[parameter].name, ToString(shape),
                           shape.num_bytes(), bytes.size());
  }
  return Literal{shape, std::make_shared<const std::string>(
                            reinterpret_cast<const char*>(bytes.data()), bytes.size())};
}

absl::StatusOr<ArrayHandle> Executable::Put(int parameter, std::span<const uint8_t> bytes) {
  const std::lock_guard lock(mutex_);
  ASSIGN_OR_RETURN(const Literal value, Value(parameter, bytes));
  ASSIGN_OR_RETURN(DistributedArray array, run_.runner().executor().Put(parameter, value));
  return ArrayHandle{identity_, parameter, std::move(array)};
}

absl::StatusOr<std::vector<ArrayHandle>> Executable::Run(std::span<ArrayHandle* const> resident,
                                                         std::span<const StepInput> inputs) {
  const std::lock_guard lock(mutex_);
  const std::vector<ParameterInfo>& parameters = run_.step().parameters;
  ParameterValues values(parameters.size());
  for (const StepInput& input : inputs) {
    ASSIGN_OR_RETURN(values[input.parameter], Value(input.parameter, input.bytes));
  }
  for (size_t i = 0; i < resident.size(); ++i) {
    if (resident[i] == nullptr || !resident[i]->array.empty()) continue;
    return FailedPrecondition("{} was consumed by an earlier step; use what that returned",
                              parameters[i].name);
  }
  State state;
  for (ArrayHandle* handle : resident) {
    state.arrays.push_back(handle ? std::move(handle->array) : DistributedArray());
  }
  absl::StatusOr<std::vector<DistributedArray>> results = run_.runner().Launch(state, values);
  if (!results.ok()) {
    for (size_t i = 0; i < resident.size(); ++i) {
      if (resident[i]) resident[i]->array = std::move(state.arrays[i]);
    }
    return results.status();
  }
  ASSIGN_OR_RETURN(state, run_.runner().NextState(std::move(state), *results));
  std::vector<ArrayHandle> handles;
  for (DistributedArray& array : *results) handles.push_back({identity_, -1, std::move(array)});
  for (int i = 0; i < static_cast<int>(resident.size()); ++i) {
    if (!resident[i]) continue;
    const int result = parameters[i].state_result;
    ArrayHandle& handle = result < 0 ? *resident[i] : handles[result];
    handle.parameter = i;
    handle.array = std::move(state.arrays[i]);
  }
  return handles;
}

absl::StatusOr<std::string> Executable::Save(const SaveRequest& request,
                                             std::span<ArrayHandle* const> state,
                                             const std::stop_token& stop) {
  const std::lock_guard lock(mutex_);
  CheckpointManifest about{.step = request.step, .model = request.model};
  ASSIGN_OR_RETURN(CheckpointWriter writer,
                   CheckpointWriter::Create(request.folder, std::move(about)));
  for (size_t i = 0; i < state.size(); ++i) {
    const ParameterInfo& parameter = run_.step().parameters[i];
    if (parameter.role != ParameterRole::kState) continue;
    if (stop.stop_requested()) return absl::CancelledError("saving was stopped");
    if (state[i]->array.empty()) {
      return FailedPrecondition("{} was consumed by a step; use what that returned",
                                parameter.name);
    }
    ASSIGN_OR_RETURN(const Literal value, state[i]->array.ToHost());
    RETURN_IF_ERROR(writer.Add(parameter.name, {.shape = value.shape, .bytes = *value.bytes}));
  }
  return writer.Commit(request.keep);
}

absl::StatusOr<std::vector<ArrayHandle>> Executable::Restore(const std::string& path,
                                                             const std::stop_token& stop) {
  const std::lock_guard lock(mutex_);
  ASSIGN_OR_RETURN(const CheckpointReader checkpoint, CheckpointReader::Open(path));
  // Constants are the user's to give with every call.
  Step state = run_.step();
  for (ParameterInfo& parameter : state.parameters) {
    if (parameter.role == ParameterRole::kConstant) parameter.role = ParameterRole::kBatch;
  }
  RETURN_IF_ERROR(CheckFits(checkpoint, state));
  std::map<std::string, int> numbers;
  for (size_t i = 0; i < state.parameters.size(); ++i) {
    if (IsResident(state.parameters[i])) numbers[state.parameters[i].name] = static_cast<int>(i);
  }
  std::vector<ArrayHandle> handles(state.parameters.size());
  for (int file = 0; file < static_cast<int>(checkpoint.manifest().files.size()); ++file) {
    ASSIGN_OR_RETURN(TensorFile tensors, checkpoint.ReadTensorFile(file));
    for (auto& [name, tensor] : tensors.tensors) {
      if (stop.stop_requested()) return absl::CancelledError("restoring was stopped");
      const Literal value{tensor.shape,
                          std::make_shared<const std::string>(std::move(tensor.bytes))};
      const int number = numbers.at(name);
      ASSIGN_OR_RETURN(DistributedArray array, run_.runner().executor().Put(number, value));
      handles[number] = {identity_, number, std::move(array)};
    }
  }
  return handles;
}

absl::StatusOr<std::vector<Literal>> Executable::Values(
    const std::vector<std::span<const uint8_t>>& bytes) const {
  std::vector<Literal> values(bytes.size());
  for (int i = 0; i < static_cast<int>(bytes.size()); ++i) {
    ASSIGN_OR_RETURN(values[i], Value(i, bytes[i]));
  }
  return values;
}

absl::StatusOr<std::string> Executable::Check(std::vector<Literal> values, int num_steps) {
  const std::lock_guard lock(mutex_);
  const StepInputs inputs = [&](int) -> absl::StatusOr<ParameterValues> { return values; };
  ASSIGN_OR_RETURN(const OracleReport report, CheckAgainstOneDevice(run_, inputs, num_steps));
  if (report.ok()) return DescribeCheck(report);
  return absl::AbortedError(fmt::format("the plan does not compute what one device does: {}\n{}",
                                        report.Failures(), DescribeCheck(report)));
}

absl::StatusOr<std::string> Executable::Explain(const ParallelizeRequest& request,
                                                const std::string& glob,
                                                const std::stop_token& stop,
                                                const OnPhase& on_phase) const {
  // Not locked: these never change, and it takes long.
  if (run_.pipeline()) return NoExplanationOfPipelines();
  return ExplainStep(run_.step(), request, &run_.plan(), glob, stop, on_phase);
}

absl::StatusOr<std::string> ExplainRequest(const ParallelizeRequest& request,
                                           const std::string& glob, const std::stop_token& stop,
                                           const OnPhase& on_phase) {
  ASSIGN_OR_RETURN(const Step step, StepOfJax(request.hlo, request.description));
  return ExplainStep(step, request, nullptr, glob, stop, on_phase);
}

absl::StatusOr<std::unique_ptr<Follower>> Executable::Follow(
    const ParallelizeRequest& request) const {
  ASSIGN_OR_RETURN(Step step, StepOfJax(request.hlo, request.description));
  const std::lock_guard lock(mutex_);
  ASSIGN_OR_RETURN(Evaluation evaluation,
                   Evaluation::Create({.step = step}, run_, Cluster::Local(request.num_devices),
                                      CostModelChoice()));
  return std::make_unique<Follower>(std::move(step), std::move(evaluation), *this);
}

absl::StatusOr<std::vector<Literal>> Follower::Run(std::span<ArrayHandle* const> state,
                                                   const std::vector<std::string>& bytes) {
  Batch batch;
  const Computation& entry = step_.module.entry_computation();
  for (size_t i = 0; i < step_.parameters.size(); ++i) {
    if (step_.parameters[i].role == ParameterRole::kConstant) continue;
    const Shape& shape = entry.instructions[entry.parameters[i]].shape();
    batch.push_back({shape, std::make_shared<const std::string>(bytes[batch.size()])});
  }
  const std::lock_guard lock(training_.mutex_);
  const std::vector<ParameterInfo>& parameters = training_.run_.step().parameters;
  State read{.num_steps = num_calls_++};
  for (size_t i = 0; i < state.size(); ++i) {
    if (state[i] == nullptr || !state[i]->array.empty()) continue;
    return FailedPrecondition("{} was consumed by a step; use what that returned",
                              parameters[i].name);
  }
  for (ArrayHandle* handle : state) {
    read.arrays.push_back(handle ? std::move(handle->array) : DistributedArray());
  }
  absl::StatusOr<std::vector<Literal>> results = evaluation_.Run(read, batch);
  for (size_t i = 0; i < state.size(); ++i) {
    if (state[i]) state[i]->array = std::move(read.arrays[i]);
  }
  return results;
}

std::string Executable::PlanJson() const {
  const std::lock_guard lock(mutex_);
  const PlannedPipeline* pipeline = run_.pipeline();
  return pipeline ? PipelinePlanToJson(pipeline->plan, pipeline->modules())
                  : PlanToJson(run_.plan(), run_.prepared().module);
}

absl::StatusOr<std::string> Executable::PlanTable() const {
  const std::lock_guard lock(mutex_);
  const PlannedPipeline* pipeline = run_.pipeline();
  if (!pipeline) return minka::PlanTable(run_.prepared(), run_.plan());
  ASSIGN_OR_RETURN(const Timeline timeline, PredictTimeline(*pipeline));
  return PipelineTable(pipeline->prepared, pipeline->plan, pipeline->schedule, timeline);
}

absl::Status Executable::Dump(const std::string& folder) {
  const std::lock_guard lock(mutex_);
  return run_.Dump(folder);
}

}  // namespace minka
