#include "executable.h"

#include <algorithm>
#include <utility>

#include "jax_step.h"
#include "minka/base/status.h"
#include "minka/runtime/mesh/local_devices.h"
#include "planned_step.h"

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

LayerChoice LayersOf(const ParallelizeRequest& request) {
  if (!request.layer_starts.empty()) return ManualLayers{request.layer_starts};
  if (request.num_layers > 0) return AutoLayers{request.num_layers};
  return MarkedLayers{};
}

}  // namespace

absl::StatusOr<Cluster> LocalClusterOf(const ParallelizeRequest& request) {
  if (request.gpu.empty()) return Cluster::Local(request.num_devices);
  Cluster cluster = Cluster::LocalCuda(request.num_devices);
  const bool has_rates = cluster.SetGpu(request.gpu, request.gpu_memory_bytes);
  if (has_rates || !request.calibration.empty()) return cluster;
  return NotFound(
      "minka knows no rates of a {}, by which it could plan; minka.init(cost_model=\"measured\") "
      "measures them, and minka.jit takes a file with them as cluster",
      request.gpu);
}

absl::StatusOr<CostModelChoice> CostsOf(const ParallelizeRequest& request) {
  if (request.calibration.empty()) return CostModelChoice();
  CostModelChoice costs{.kind = CostModelKind::kMeasured};
  ASSIGN_OR_RETURN(costs.calibration, Calibration::FromJson(request.calibration));
  return costs;
}

absl::StatusOr<ParallelMethod> MethodOf(const ParallelizeRequest& request) {
  SearchOptions search{.memory_limit_bytes = request.peak_memory_bytes, .pins = request.pins};
  if (!search.memory_limit_bytes && request.gpu_memory_bytes > 0) {
    search.memory_limit_bytes = request.gpu_memory_bytes;
  }
  ASSIGN_OR_RETURN(std::optional<RematChoice> remat, ParseRemat(request.remat));
  if (request.method == "pipeline") {
    std::vector<Mesh> meshes;
    for (const std::string& mesh : request.meshes) {
      ASSIGN_OR_RETURN(meshes.emplace_back(), Mesh::Parse(mesh));
    }
    return Pipeline{.num_micro_batches = request.num_micro_batches,
                    .options = {.layers = LayersOf(request),
                                .num_stages = request.num_stages,
                                .stage_of_layer = request.stage_of_layer,
                                .meshes = std::move(meshes),
                                .submeshes = request.submeshes,
                                .submesh_choices = request.submesh_choices,
                                .schedule = request.schedule},
                    .search = search,
                    .per_micro_batch = request.per_micro_batch,
                    .narrow_sums = request.narrow_sums,
                    .remat = std::move(remat)};
  }
  for (const Method method : {Method::kShard, Method::kData, Method::kZero2, Method::kZero3}) {
    if (request.method != MethodName(method)) continue;
    return MakeMethod(method, request.mesh, search,
                      {.num_micro_batches = request.num_micro_batches,
                       .per_micro_batch = request.per_micro_batch,
                       .narrow_sums = request.narrow_sums},
                      std::move(remat));
  }
  return InvalidArgument("there is no method \"{}\"", request.method);
}

absl::StatusOr<std::unique_ptr<Executable>> Executable::Create(const ParallelizeRequest& request,
                                                               const std::stop_token& stop,
                                                               const OnPhase& on_phase) {
  on_phase("import");
  ASSIGN_OR_RETURN(const Step step, StepOfJax(request.hlo, request.description));
  ASSIGN_OR_RETURN(const ParallelMethod method, MethodOf(request));
  ASSIGN_OR_RETURN(const Cluster cluster, LocalClusterOf(request));
  ASSIGN_OR_RETURN(const CostModelChoice costs, CostsOf(request));
  ASSIGN_OR_RETURN(
      Parallelized run,
      Parallelize(step, cluster, method,
                  {.cost_model = costs,
                   .plan_path = request.plan_path,
                   .workers = WorkerOptions{.hosts_path = request.hosts_path,
                                            .binary = request.worker_binary,
                                            .plugin_path = request.plugin_path},
                   .plugin_path = request.plugin_path,
                   .on_step = on_phase,
                   .stop = stop,
                   .configuration = {{"method", request.method}, {"frontend", "python"}}}));
  return std::unique_ptr<Executable>(new Executable(std::move(run)));
}

std::function<absl::StatusOr<HostArray>()> ArrayHandle::StartToLend() const {
  if (parts.size() == 1) return parts.front().StartToLend();
  std::vector<std::function<absl::StatusOr<Literal>()>> pending;
  for (const DistributedArray& part : parts) pending.push_back(part.StartToHost());
  return [pending = std::move(pending)]() -> absl::StatusOr<HostArray> {
    std::vector<Literal> rows;
    for (const auto& wait : pending) {
      ASSIGN_OR_RETURN(rows.emplace_back(), wait());
    }
    return HostArray(Stacked(rows));
  };
}

std::string ArrayHandle::ToString() const {
  if (parts.size() == 1) return parts.front().ToString();
  Shape shape = parts.front().layout().shape;
  shape.dims[0] = static_cast<int64_t>(parts.size());
  std::string text = minka::ToString(shape);
  for (size_t first = 0, end = 0; first < parts.size(); first = end) {
    while (end < parts.size() && parts[end].layout() == parts[first].layout()) ++end;
    text += fmt::format("{} rows {}-{}: {}", first == 0 ? "" : ",", first, end - 1,
                        parts[first].ToString());
  }
  return text;
}

absl::StatusOr<HostArray> Executable::View(int parameter, std::span<const uint8_t> bytes) const {
  const Computation& entry = given().module.entry_computation();
  const Shape& shape = entry.instructions[entry.parameters[parameter]].shape();
  if (static_cast<int64_t>(bytes.size()) != shape.num_bytes()) {
    return InvalidArgument("{} is {}, which has {} bytes; {} were given",
                           given().parameters[parameter].name, ToString(shape), shape.num_bytes(),
                           bytes.size());
  }
  return HostArray(shape, {.bytes = {reinterpret_cast<const char*>(bytes.data()), bytes.size()}});
}

absl::StatusOr<Literal> Executable::Value(int parameter, std::span<const uint8_t> bytes) const {
  ASSIGN_OR_RETURN(HostArray view, View(parameter, bytes));
  return Literal{
      std::move(view.shape),
      std::make_shared<const std::string>(view.contents.bytes.data(), view.contents.bytes.size())};
}

std::vector<DistributedArray> Executable::TakeArrays(std::span<ArrayHandle* const> handles) const {
  std::vector<DistributedArray> arrays(run_.step().parameters.size());
  for (size_t i = 0; i < handles.size(); ++i) {
    if (handles[i] == nullptr) continue;
    for (size_t row = 0; row < rows().parameters[i].size(); ++row) {
      arrays[rows().parameters[i][row]] = std::move(handles[i]->parts[row]);
    }
  }
  return arrays;
}

void Executable::GiveBack(std::vector<DistributedArray> arrays,
                          std::span<ArrayHandle* const> handles) const {
  for (size_t i = 0; i < handles.size(); ++i) {
    if (handles[i] == nullptr) continue;
    for (size_t row = 0; row < rows().parameters[i].size(); ++row) {
      handles[i]->parts[row] = std::move(arrays[rows().parameters[i][row]]);
    }
  }
}

std::vector<ArrayHandle> Executable::HandlesOf(std::vector<DistributedArray> arrays) const {
  std::vector<ArrayHandle> handles(given().parameters.size());
  for (int i = 0; i < static_cast<int>(handles.size()); ++i) {
    handles[i] = {.owner = identity_, .parameter = i};
    for (const int row : rows().parameters[i]) handles[i].parts.push_back(std::move(arrays[row]));
  }
  return handles;
}

absl::Status Executable::CheckIsThere(std::span<ArrayHandle* const> handles,
                                      std::string_view consumer) const {
  for (size_t i = 0; i < handles.size(); ++i) {
    if (handles[i] == nullptr || !handles[i]->empty()) continue;
    return FailedPrecondition("{} was consumed by {}; use what that returned",
                              given().parameters[i].name, consumer);
  }
  return absl::OkStatus();
}

absl::StatusOr<ArrayHandle> Executable::Put(int parameter, std::span<const uint8_t> bytes) {
  const std::lock_guard lock(mutex_);
  const std::vector<int>& numbers = rows().parameters[parameter];
  ArrayHandle handle{.owner = identity_, .parameter = parameter};
  std::vector<HostArray> parts;
  if (numbers.size() == 1) {
    ASSIGN_OR_RETURN(HostArray whole, View(parameter, bytes));
    parts.push_back(std::move(whole));
  } else {
    ASSIGN_OR_RETURN(const Literal value, Value(parameter, bytes));
    for (const Literal& row : InRows({value}, {numbers})) parts.emplace_back(row);
  }
  for (size_t row = 0; row < parts.size(); ++row) {
    ASSIGN_OR_RETURN(handle.parts.emplace_back(),
                     run_.runner().executor().Put(numbers[row], parts[row]));
  }
  run_.runner().executor().Flush();
  return handle;
}

absl::StatusOr<std::vector<ArrayHandle>> Executable::Run(std::span<ArrayHandle* const> resident,
                                                         std::span<const StepInput> inputs) {
  const std::lock_guard lock(mutex_);
  RETURN_IF_ERROR(CheckIsThere(resident, "an earlier step"));
  std::vector<std::pair<int, DistributedArray>> put;  // by the parameter's number
  for (const StepInput& input : inputs) {
    const int number = rows().parameters[input.parameter].front();
    ASSIGN_OR_RETURN(const HostArray value, View(input.parameter, input.bytes));
    ASSIGN_OR_RETURN(DistributedArray array, run_.runner().executor().Put(number, value));
    put.emplace_back(number, std::move(array));
  }
  State state{.arrays = TakeArrays(resident)};
  for (auto& [number, array] : put) state.arrays[number] = std::move(array);
  absl::StatusOr<std::vector<DistributedArray>> results = run_.runner().Launch(state, {});
  if (!results.ok()) {
    GiveBack(std::move(state.arrays), resident);
    return results.status();
  }
  ASSIGN_OR_RETURN(state, run_.runner().NextState(std::move(state), *results));
  std::vector<ArrayHandle> handles;
  for (const std::vector<int>& numbers : rows().results) {
    ArrayHandle& handle = handles.emplace_back(ArrayHandle{.owner = identity_});
    for (const int row : numbers) handle.parts.push_back(std::move((*results)[row]));
  }
  std::vector<ArrayHandle*> next(resident.begin(), resident.end());
  for (int i = 0; i < static_cast<int>(next.size()); ++i) {
    if (!next[i]) continue;
    const int result = given().parameters[i].state_result;
    if (result >= 0) next[i] = &handles[result];
    next[i]->parameter = i;
  }
  GiveBack(std::move(state.arrays), next);
  return handles;
}

absl::StatusOr<std::string> Executable::Save(const SaveRequest& request,
                                             std::span<ArrayHandle* const> state,
                                             const std::stop_token& stop) {
  const std::lock_guard lock(mutex_);
  std::vector<NamedArray> arrays;
  for (size_t i = 0; i < state.size(); ++i) {
    if (given().parameters[i].role != ParameterRole::kState) continue;
    if (state[i]->empty()) {
      return FailedPrecondition("{} was consumed by a step; use what that returned",
                                given().parameters[i].name);
    }
    for (size_t row = 0; row < state[i]->parts.size(); ++row) {
      const ParameterInfo& parameter = run_.step().parameters[rows().parameters[i][row]];
      arrays.push_back({parameter.name, &state[i]->parts[row]});
    }
  }
  return SaveArrays({.folder = request.folder, .keep = request.keep, .stop = stop},
                    {.step = request.step, .model = request.model}, run_.runner().executor(),
                    arrays);
}

absl::StatusOr<std::vector<ArrayHandle>> Executable::Restore(const std::string& path,
                                                             const std::stop_token& stop) {
  const std::lock_guard lock(mutex_);
  ASSIGN_OR_RETURN(CheckpointReader checkpoint, CheckpointReader::Open(path));
  // Constants are the user's to give with every call.
  Step state = run_.step();
  for (ParameterInfo& parameter : state.parameters) {
    if (parameter.role == ParameterRole::kConstant) parameter.role = ParameterRole::kBatch;
  }
  RETURN_IF_ERROR(CheckFits(checkpoint, state));
  std::vector<TensorOfParameter> tensors;
  for (int i = 0; i < static_cast<int>(state.parameters.size()); ++i) {
    const ParameterInfo& parameter = state.parameters[i];
    if (parameter.role == ParameterRole::kState) tensors.push_back({i, parameter.name});
  }
  ASSIGN_OR_RETURN(std::vector<DistributedArray> arrays,
                   RestoreArrays(checkpoint, run_.runner().executor(), tensors, stop));
  std::vector<DistributedArray> by_parameter(state.parameters.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    by_parameter[tensors[i].parameter] = std::move(arrays[i]);
  }
  return HandlesOf(std::move(by_parameter));
}

absl::StatusOr<std::vector<ArrayHandle>> Executable::MakeState(
    const ParallelizeRequest& init, const std::vector<int>& parameters,
    const std::vector<std::string>& bytes) {
  InitialValuesProgram of_given{.parameters = parameters};
  ASSIGN_OR_RETURN(of_given.step, StepOfJax(init.hlo, init.description));
  const Computation& entry = of_given.step.module.entry_computation();
  std::vector<Literal> inputs;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const Shape& shape = entry.instructions[entry.parameters[i]].shape();
    inputs.push_back({shape, std::make_shared<const std::string>(bytes[i])});
  }
  const std::lock_guard lock(mutex_);
  ASSIGN_OR_RETURN(const InitialValuesProgram program, ProgramInRows(std::move(of_given), rows()));
  ASSIGN_OR_RETURN(std::vector<DistributedArray> values,
                   MakeValues(program, inputs, run_.executor(), run_.session()));
  std::vector<DistributedArray> by_parameter(run_.step().parameters.size());
  for (size_t i = 0; i < values.size(); ++i) {
    by_parameter[program.parameters[i]] = std::move(values[i]);
  }
  return HandlesOf(std::move(by_parameter));
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
  const KeptEnvironment environment;  // the user's
  const StepInputs inputs = [&](int) -> absl::StatusOr<ParameterValues> { return values; };
  ASSIGN_OR_RETURN(const OracleReport report, CheckAgainstOneDevice(run_, inputs, num_steps));
  if (report.ok()) return DescribeCheck(report);
  return absl::AbortedError(fmt::format("the plan does not compute what one device does: {}\n{}",
                                        report.Failures(), DescribeCheck(report)));
}

absl::StatusOr<std::string> Executable::Explain(const ParallelizeRequest& request,
                                                const ExplainQuestion& question,
                                                const std::stop_token& stop,
                                                const OnPhase& on_phase) const {
  // Not locked: these never change, and it takes long.
  ASSIGN_OR_RETURN(const Cluster cluster, LocalClusterOf(request));
  ASSIGN_OR_RETURN(PlanRequest planned, PlanRequestOf(request, {cluster}));
  if (!request.plan_path.empty() && !run_.pipeline()) {
    ASSIGN_OR_RETURN(const Method planned_by, ParseMethod(run_.plan().method));
    planned.methods = {planned_by};
    planned.micro_batches = PreparationOf(run_.plan()).micro_batches;
    planned.remat = run_.plan().remat;
  }
  return ExplainPlan(given(), plan(), std::move(planned), question, stop, on_phase);
}

absl::StatusOr<std::string> ExplainRequest(const ParallelizeRequest& request,
                                           const ExplainQuestion& question,
                                           const std::stop_token& stop, const OnPhase& on_phase) {
  ASSIGN_OR_RETURN(Step step, StepOfJax(request.hlo, request.description));
  ASSIGN_OR_RETURN(const Cluster cluster, LocalClusterOf(request));
  ASSIGN_OR_RETURN(PlanRequest planned, PlanRequestOf(request, {cluster}));
  ASSIGN_OR_RETURN(const std::unique_ptr<PlannedStep> found,
                   PlannedStep::Create(std::move(step), std::move(planned), stop, on_phase));
  return found->Explain(question, stop, on_phase);
}

absl::StatusOr<std::unique_ptr<Follower>> Executable::Follow(
    const ParallelizeRequest& request) const {
  ASSIGN_OR_RETURN(Step step, StepOfJax(request.hlo, request.description));
  const std::lock_guard lock(mutex_);
  ASSIGN_OR_RETURN(const Cluster cluster, LocalClusterOf(request));
  ASSIGN_OR_RETURN(const CostModelChoice costs, CostsOf(request));
  ASSIGN_OR_RETURN(Evaluation evaluation, Evaluation::Create({.step = step}, run_, cluster, costs));
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
  RETURN_IF_ERROR(training_.CheckIsThere(state, "a step"));
  State read{.arrays = training_.TakeArrays(state), .num_steps = num_calls_++};
  absl::StatusOr<std::vector<Literal>> results = evaluation_.Run(read, batch);
  training_.GiveBack(std::move(read.arrays), state);
  return results;
}

PlanOfStep Executable::plan() const {
  if (run_.pipeline()) return {.pipeline = run_.pipeline()};
  return {.prepared = &run_.prepared(), .plan = &run_.plan()};
}

std::string Executable::PlanJson() const {
  const std::lock_guard lock(mutex_);
  return minka::PlanJson(plan());
}

absl::StatusOr<std::string> Executable::PlanTable() const {
  const std::lock_guard lock(mutex_);
  return minka::PlanTable(plan());
}

absl::StatusOr<std::string> Executable::CandidatesJson() const {
  const std::lock_guard lock(mutex_);
  return minka::CandidatesJson(plan());
}

absl::Status Executable::Dump(const std::string& folder) {
  const std::lock_guard lock(mutex_);
  return run_.Dump(folder);
}

}  // namespace minka
