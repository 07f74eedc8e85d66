// `minka run`: runs any module on this machine's devices.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <memory>

#include "fmt/ranges.h"
#include "minka/base/core_distance.h"
#include "minka/base/file.h"
#include "minka/base/processor_time.h"
#include "minka/base/status.h"
#include "minka/driver/check.h"
#include "minka/driver/describe_pipeline.h"
#include "minka/driver/inputs.h"
#include "minka/driver/parallelize.h"
#include "minka/driver/prepare.h"
#include "minka/report/format.h"
#include "minka/report/pipeline_table.h"
#include "minka/report/plan_table.h"
#include "minka/tensors/safetensors.h"
#include "minka/tools/bundle.h"
#include "minka/tools/child_process.h"
#include "minka/tools/command.h"
#include "minka/tools/local_cluster.h"
#include "minka/tools/planning_flags.h"
#include "minka/tools/quantities.h"
#include "minka/tools/run_report.h"
#include "minka/tools/step_source.h"
#include "minka/tools/worker_flags.h"

namespace minka {
namespace {

struct RunFlags {
  StepSource source;
  PlanningFlags planning{.cost_model = "measured"};
  WorkerFlags workers;
  std::string plan, inputs, outputs, dump_to, repro, plugin;
  std::vector<std::string> given_planning;  // flags of that group on the command line
  std::optional<uint64_t> random_inputs;
  int steps = 5;
  bool check = false, json = false;
};

// The first steps find caches cold and memory untouched.
constexpr int kNumWarmUpSteps = 2;

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The plan says all that they would, except how much memory the compiled program may take.
absl::Status CheckFlagsBesidePlan(const RunFlags& flags) {
  if (flags.plan.empty()) return absl::OkStatus();
  std::vector<std::string> settled;
  std::ranges::copy_if(flags.given_planning, std::back_inserter(settled),
                       [](const std::string& flag) { return flag != "--memory-limit"; });
  if (settled.empty()) return absl::OkStatus();
  return InvalidArgument(
      "--plan {} is a plan already made; drop {}, or drop --plan to search for another one",
      flags.plan, fmt::join(settled, ", "));
}

absl::Status CheckFlags(const RunFlags& flags) {
  RETURN_IF_ERROR(CheckFlagsBesidePlan(flags));
  if (flags.inputs.empty() != flags.random_inputs.has_value()) {
    return InvalidArgument("{}", flags.inputs.empty()
                                     ? "what does the module run on? Give --inputs "
                                       "FILE.safetensors or --random-inputs SEED"
                                     : "--inputs and --random-inputs exclude each other");
  }
  if (flags.json && flags.outputs == "-") {
    return InvalidArgument(
        "--json and --outputs - both want standard output; give --outputs a file");
  }
  if (flags.source.model == "-" && flags.inputs == "-") {
    return InvalidArgument("the module and --inputs cannot both be standard input");
  }
  if (flags.source.model == "-" && !flags.repro.empty()) {
    return InvalidArgument("--repro packs the module's file; standard input is none");
  }
  return CheckRunsLocally("run", flags.planning);
}

absl::StatusOr<std::vector<Literal>> InputsOf(const RunFlags& flags, const Step& step) {
  if (flags.random_inputs) return RandomInputs(step, *flags.random_inputs);
  ASSIGN_OR_RETURN(const TensorFile file, ReadTensors(flags.inputs));
  auto inputs = InputsFromTensors(step.module, file);
  if (!inputs.ok()) return WithContext(inputs.status(), flags.inputs);
  return inputs;
}

// The mesh that a plan file is for.
absl::Status TakeMeshOfPlan(const RunFlags& flags, const Step& step, PlanningFlags& planning) {
  if (flags.plan.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string json, ReadFile(flags.plan));
  ASSIGN_OR_RETURN(const PlannedPreparation how, PlannedPreparationOf(json));
  if (!how.stage_of_layer.empty()) {
    auto pipeline = LoadPipeline(step, json);
    if (!pipeline.ok()) return WithContext(pipeline.status(), flags.plan);
    planning.method = kPipelineMethod;
    for (const Mesh& mesh : pipeline->meshes()) planning.meshes.push_back(mesh.ToString());
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const Preparation planned, PreparationOfJson(json));
  ASSIGN_OR_RETURN(const Step prepared, Prepare(step, planned));
  auto plan = PlanFromJson(json, prepared.module);
  if (!plan.ok()) return WithContext(plan.status(), flags.plan);
  planning.meshes = {plan->stage.mesh.ToString()};
  return absl::OkStatus();
}

absl::StatusOr<ParallelMethod> MethodOf(const PlanRequest& request) {
  if (request.pipeline) {
    return Pipeline{.num_micro_batches = request.micro_batches.num_micro_batches,
                    .options = *request.pipeline,
                    .search = request.search,
                    .per_micro_batch = request.micro_batches.per_micro_batch,
                    .narrow_sums = request.micro_batches.narrow_sums,
                    .remat = request.remat};
  }
  if (request.methods.size() != 1 || request.meshes.size() > 1) {
    return InvalidArgument(
        "run takes one --method and one --mesh (or --num-devices); minka plan compares several");
  }
  const std::string mesh = request.meshes.empty() ? "" : request.meshes.front().ToString();
  return MakeMethod(request.methods.front(), mesh, request.search, request.micro_batches,
                    request.remat);
}

// All results of the given step by number, state read back from the devices.
absl::StatusOr<std::vector<Literal>> ResultsOf(const Parallelized& run, const StepOutput& output) {
  const Step& step = run.step();
  std::vector<const DistributedArray*> results;
  for (const DistributedArray& result : output.results) results.push_back(&result);
  for (size_t i = 0; i < step.parameters.size(); ++i) {
    const int result = step.parameters[i].state_result;
    if (step.parameters[i].role != ParameterRole::kState || result < 0) continue;
    results[result] = &output.state.arrays[i];
  }
  ASSIGN_OR_RETURN(const std::vector<Literal> values, ToHost(results));
  return PutTogether(values, run.rows().results);
}

class ModuleRun {
 public:
  explicit ModuleRun(const RunFlags& flags) : flags_(flags) {}

  absl::Status Run() {
    RETURN_IF_ERROR(CheckFlags(flags_));
    ReportPhase("import");
    ASSIGN_OR_RETURN(source_, LoadStep(flags_.source));
    ASSIGN_OR_RETURN(inputs_, InputsOf(flags_, source_.step));
    RETURN_IF_ERROR(PlanAndCompile());
    RETURN_IF_ERROR(Execute());
    if (flags_.check) RETURN_IF_ERROR(Check());
    return PrintReport();
  }

 private:
  absl::Status PlanAndCompile() {
    PlanningFlags planning = flags_.planning;
    RETURN_IF_ERROR(TakeMeshOfPlan(flags_, source_.step, planning));
    ASSIGN_OR_RETURN(PlanRequest request, RequestOf(planning));
    RETURN_IF_ERROR(CheckTraceFlag(flags_.workers.trace, request.pipeline.has_value()));
    if (flags_.plan.empty()) RETURN_IF_ERROR(AddLocalDevices(flags_.plugin, request));
    if (const auto& calibration = request.cost_model.calibration; calibration)
      figures_.profiled_core_round_trip_ns = calibration->core_round_trip_ns;
    ASSIGN_OR_RETURN(const ParallelMethod method, MethodOf(request));
    ParallelizeOptions options{.cost_model = request.cost_model,
                               .plan_path = flags_.plan,
                               .plugin_path = flags_.plugin,
                               .dump_dir = flags_.dump_to,
                               .on_step = ReportPhase,
                               .configuration = ToOptions(flags_.source)};
    options.configuration.merge(ToOptions(flags_.planning));
    if (!flags_.workers.in_process)
      options.workers = {.hosts_path = flags_.workers.hosts, .plugin_path = flags_.plugin};
    ReportPhase("plugin");
    const auto start = Clock::now();
    ASSIGN_OR_RETURN(Parallelized run, Parallelize(source_.step, request.cluster, method, options));
    figures_.compile_seconds = SecondsSince(start);
    run_.emplace(std::move(run));
    return absl::OkStatus();
  }

  absl::Status Execute() {
    ReportPhase("run");
    StepRunner& runner = run_->runner();
    values_ = InRows(inputs_, run_->rows().parameters);
    auto start = Clock::now();
    ASSIGN_OR_RETURN(State state, run_->Initialize(inputs_));
    figures_.create_state_seconds = SecondsSince(start);
    RETURN_IF_ERROR(runner.executor().ResetMeasurements());
    ReportPart("the launch on all devices");
    start = Clock::now();
    ASSIGN_OR_RETURN(StepOutput output, runner.Run(std::move(state), values_));
    RETURN_IF_ERROR(runner.executor().Wait());
    figures_.prepare_input_seconds =
        std::max(0.0, SecondsSince(start) - runner.executor().times().us.front() * 1e-6);
    RETURN_IF_ERROR(WriteResults(output));
    output.results.clear();  // they take memory
    RETURN_IF_ERROR(TimeWarmSteps(std::move(output.state)));
    StepExecutor& executor = runner.executor();
    figures_.step_times = executor.times();
    figures_.num_warm_up = kNumWarmUpSteps;
    ASSIGN_OR_RETURN(figures_.measured_peak_memory_bytes, executor.MeasuredPeakBytes());
    figures_.total_allocation_bytes = run_->pipeline() != nullptr
                                          ? run_->pipeline()->plan.peak_memory_bytes
                                          : run_->plan().peak_memory_bytes;
    return absl::OkStatus();
  }

  absl::Status WriteResults(const StepOutput& output) {
    ReportPart("reading the results");
    ASSIGN_OR_RETURN(const std::vector<Literal> results, ResultsOf(*run_, output));
    if (flags_.outputs.empty()) return absl::OkStatus();
    return WriteTensors(flags_.outputs, ToTensorFile(results));
  }

  // State goes on from step to step; the other inputs stay.
  absl::Status TimeWarmSteps(State state) {
    StepRunner& runner = run_->runner();
    const int num_steps = kNumWarmUpSteps + flags_.steps;
    ProcessorTime warm_from;
    for (int step = 1; step < num_steps; ++step) {
      const std::string what = fmt::format("step {} of {}", step + 1, num_steps);
      ReportPart(what);
      if (step == kNumWarmUpSteps) warm_from = ProcessorTimeNow();
      ShowStatus(
          fmt::format("{}, the last in {}", what, FormatTime(runner.executor().times().us.back())));
      auto* const pipeline = dynamic_cast<PipelineExecutor*>(&runner.executor());
      const bool is_traced = pipeline != nullptr && !flags_.workers.trace.empty();
      if (is_traced) pipeline->set_is_tracing(step + 1 == num_steps);
      ASSIGN_OR_RETURN(StepOutput output, runner.Run(std::move(state), values_));
      RETURN_IF_ERROR(NoteHostTime(output));
      if (is_traced) trace_ = TraceOf(*pipeline);
      state = std::move(output.state);
    }
    if (flags_.steps > 0) figures_.stolen_share = StolenShare(warm_from, ProcessorTimeNow());
    figures_.core_round_trip_ns = CoreRoundTripNs();
    ClearStatus();
    return absl::OkStatus();
  }

  // Of the step just launched; waits for it and fetches what it gives beside the state.
  absl::Status NoteHostTime(const StepOutput& output) {
    StepRunner& runner = run_->runner();
    HostTimes& times = figures_.host_times;
    const auto launched = Clock::now();
    RETURN_IF_ERROR(runner.executor().Wait());
    times.wait_us.push_back(SecondsSince(launched) * 1e6);
    const auto done = Clock::now();
    std::vector<const DistributedArray*> read;
    for (const DistributedArray& result : output.results) {
      if (!result.empty()) read.push_back(&result);
    }
    RETURN_IF_ERROR(ToHost(read).status());
    times.fetch_us.push_back(SecondsSince(done) * 1e6);
    times.inputs_us.push_back(runner.launch_time().inputs_us);
    times.dispatch_us.push_back(runner.launch_time().dispatch_us);
    return absl::OkStatus();
  }

  absl::Status Check() {
    ReportPhase("check against one device");
    const StepInputs inputs = [this](int) -> absl::StatusOr<ParameterValues> { return inputs_; };
    ASSIGN_OR_RETURN(check_, CheckAgainstOneDevice(*run_, inputs, /*num_steps=*/1));
    if (check_->ok()) return absl::OkStatus();
    fmt::print(stderr, "{}", DescribeCheck(*check_));
    return FailedPrecondition("the plan computes something else than one device:\n{}",
                              check_->Failures());
  }

  absl::Status PrintReport() const {
    const PlannedPipeline* const pipeline = run_->pipeline();
    if (pipeline != nullptr && !flags_.workers.trace.empty()) {
      ASSIGN_OR_RETURN(const Timeline timeline, PredictTimeline(*pipeline));
      RETURN_IF_ERROR(WriteFile(flags_.workers.trace, ChromeTrace(timeline, trace_)));
    }
    if (flags_.json) {
      auto json = pipeline != nullptr ? RunJson(*pipeline, figures_)
                                      : RunJson(run_->plan(), run_->prepared().module, figures_);
      if (check_) json["check"] = "ok";
      return Print(DumpJson(json));
    }
    if (flags_.outputs == "-") return absl::OkStatus();
    std::string text;
    for (const std::string& line : source_.inferred) text += fmt::format("concluded: {}\n", line);
    if (pipeline != nullptr) {
      ASSIGN_OR_RETURN(const std::string table, DescribePipeline(*pipeline));
      text +=
          table + "\n" + PredictedAndMeasured(pipeline->plan, !flags_.workers.in_process, figures_);
    } else {
      text += PlanTable(run_->prepared(), run_->plan()) + "\n" +
              PredictedAndMeasured(run_->plan(), figures_);
    }
    if (check_) text += DescribeCheck(*check_);
    return Print(text);
  }

  const RunFlags& flags_;
  SourceStep source_;
  std::vector<Literal> inputs_;
  ParameterValues values_;  // inputs_, as the step that runs takes them
  std::optional<Parallelized> run_;
  RunFigures figures_;
  std::vector<std::vector<TracedEvent>> trace_;  // of the last step, where it was asked for
  std::optional<OracleReport> check_;
};

absl::Status PackRepro(const RunFlags& flags, const CommandLine& line,
                       const ChildOutcome& outcome) {
  std::map<std::string, std::string> files;
  if (IsModuleFile(flags.source.model)) {
    ASSIGN_OR_RETURN(files["module.hlo.pb"], ReadFile(flags.source.model));
  }
  if (!flags.plan.empty()) {
    ASSIGN_OR_RETURN(files["plan.json"], ReadFile(flags.plan));
  }
  nlohmann::ordered_json command = {{"arguments", line.arguments},
                                    {"minka", MINKA_VERSION},
                                    {"exit_code", outcome.exit_code},
                                    {"death", outcome.death}};
  if (const char* const plugin = std::getenv("MINKA_PJRT_PLUGIN")) command["plugin"] = plugin;
  if (!flags.plugin.empty()) command["plugin"] = flags.plugin;
  files["command.json"] = command.dump(1) + "\n";
  files["messages.txt"] = outcome.messages;
  return WriteBundle(flags.repro, files);
}

void RunInParent(const RunFlags& flags, CommandLine& line) {
  const ChildOutcome outcome = RunInChild(line.arguments);
  line.exit_code = outcome.exit_code;
  if (!outcome.death.empty()) {
    fmt::print(stderr, "minka: {}\n", DescribeDeath(outcome));
    if (flags.repro.empty()) {
      fmt::print(stderr, "minka: --repro FILE.tar.gz packs what a report needs\n");
    }
  }
  if (flags.repro.empty()) return;
  Finish(PackRepro(flags, line, outcome), line);
}

}  // namespace

void AddRunCommand(CLI::App& app, CommandLine& line) {
  const auto flags = std::make_shared<RunFlags>();
  CLI::App* const command =
      app.add_subcommand("run", "Run a module on this machine's devices, split by a plan");
  command
      ->add_option("module", flags->source.model,
                   "A module file (HloModuleProto or HLO text) or a named model; - is standard "
                   "input")
      ->required();
  command->add_option("--plan", flags->plan,
                      "Run by this plan.json. Default: the fastest plan that is found");
  command->add_option("--inputs", flags->inputs,
                      "Parameters as safetensors named 0, 1, ...; - is standard input");
  command
      ->add_option("--random-inputs", flags->random_inputs,
                   "Draw the parameters with this seed instead")
      ->check(WholeNumberFrom<uint64_t>(0));
  command->add_option("--outputs", flags->outputs,
                      "Write the results as safetensors named 0, 1, ...; - is standard output. "
                      "Default: not written");
  command
      ->add_option("--steps", flags->steps,
                   fmt::format("Time so many steps after {} that warm up; each goes on from the "
                               "state that the one before left. Results are those of the first. "
                               "Default: {}",
                               kNumWarmUpSteps, flags->steps))
      ->check(WholeNumberFrom(1));
  command->add_flag("--check", flags->check,
                    "Also run on one device, compare every result, and fail where the difference "
                    "is more than rounding explains");
  AddPlanningFlags(*command, flags->planning, ". Default: no limit");
  AddModelFlags(*command, flags->source);
  AddModuleFlags(*command, flags->source);
  AddWorkerFlags(*command, flags->workers);
  command->add_option("--dump-to", flags->dump_to,
                      "Folder for every step of the compiler as text. Default: not written");
  command->add_option("--repro", flags->repro,
                      "Pack module, flags, versions and messages into this .tar.gz for a report. "
                      "Default: not written");
  command->add_option("--plugin", flags->plugin,
                      "PJRT plugin. Default: MINKA_PJRT_PLUGIN, else searched");
  command->add_flag("--json", flags->json, "Print one JSON object instead of tables");
  command->callback([flags, command, &line] {
    flags->given_planning = GivenPlanningFlags(*command);
    if (IsChild()) {
      Finish(ModuleRun(*flags).Run(), line);
    } else {
      RunInParent(*flags, line);
    }
  });
}

}  // namespace minka
