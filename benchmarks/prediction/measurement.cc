#include "benchmarks/prediction/measurement.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "minka/base/processor_time.h"
#include "minka/base/status.h"
#include "minka/driver/compile.h"
#include "minka/driver/inputs.h"
#include "minka/driver/plan_step.h"
#include "minka/frontend/optimizer.h"
#include "minka/frontend/trace.h"
#include "minka/models/mlp.h"
#include "minka/profiler/profile.h"
#include "minka/runtime/mesh/step_runner.h"

namespace minka {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kWarmUpSteps = 3;
// Turns of each program, those that count; in each at least so many steps behind one that does not.
constexpr int kTurns = 5;
constexpr int kMinSteps = 2, kMaxSteps = 12;
constexpr double kTurnUs = 0.4e6;  // about so long, within the numbers of steps
constexpr double kGap = 0.01;
// There are more turns, up to so many, while the host of this virtual machine gives more than this
// part of the cores' time to others; those count in which it takes least.
constexpr int kMostTurns = 8;
constexpr double kMostStolen = 0.03;

// Dots, an optimizer that reads and writes memory, collectives: what every row is made of.
constexpr MlpConfig kReference = {.batch = 512, .hidden = 512, .num_layers = 4};
constexpr int kReferenceSteps = 3;

int StepsPerTurn(const RunTimes& times) {
  return std::clamp(static_cast<int>(kTurnUs / std::max(times.us.back(), 1.0)), kMinSteps,
                    kMaxSteps);
}

// Some warm steps, and who had the cores meanwhile.
struct Turn {
  std::vector<double> us;
  ProcessorTime before, after;

  double median_us() const { return StatisticsOf(us).median_us; }
  double stolen_share() const { return StolenShare(before, after); }
};

// A step that is ready to run, with its state.
class RunningStep {
 public:
  static absl::StatusOr<RunningStep> Create(const Step& step, CompiledStep compiled) {
    RunningStep out(StepRunner(compiled.prepared, std::move(compiled.executor)));
    ASSIGN_OR_RETURN(out.inputs_, RandomInputs(step, /*seed=*/1));
    ASSIGN_OR_RETURN(out.state_, out.runner_.CreateState(out.inputs_));
    RETURN_IF_ERROR(out.Run(kWarmUpSteps));
    return out;
  }

  // Behind one step that does not count.
  absl::StatusOr<Turn> TakeTurn(int num_steps) {
    RETURN_IF_ERROR(Run(1));
    const size_t first = runner_.executor().times().us.size();
    Turn turn{.before = ProcessorTimeNow()};
    RETURN_IF_ERROR(Run(num_steps));
    turn.after = ProcessorTimeNow();
    const std::vector<double>& us = runner_.executor().times().us;
    turn.us.assign(us.begin() + static_cast<int64_t>(first), us.end());
    return turn;
  }

  const RunTimes& times() const { return runner_.executor().times(); }

 private:
  explicit RunningStep(StepRunner runner) : runner_(std::move(runner)) {}

  absl::Status Run(int num_steps) {
    for (int i = 0; i < num_steps; ++i) {
      ASSIGN_OR_RETURN(StepOutput output, runner_.Run(std::move(state_), inputs_));
      state_ = std::move(output.state);
    }
    return absl::OkStatus();
  }

  StepRunner runner_;
  std::vector<Literal> inputs_;
  State state_;
};

absl::StatusOr<CompiledStep> PlanAndCompile(const Step& step, const PlanRequest& request,
                                            LocalSession& session, const std::string& dump_dir,
                                            Plan& plan) {
  ASSIGN_OR_RETURN(PlanResult planned, PlanStep(step, request));
  plan = std::move(planned.candidates[planned.best].plan);
  return Compile(step, [&](const Step&, std::optional<int64_t>) { return plan; }, session,
                 {.dump_dir = dump_dir});
}

// How fast the machine is now: the time of one step of fixed shapes, data-parallel.
absl::StatusOr<RunningStep> ReferenceStep(LocalSession& session) {
  ASSIGN_OR_RETURN(TracedStep traced, Trace(Mlp(kReference), AdamW({})));
  PlanRequest request{.cluster = Cluster::Local(kPredictionDevices),
                      .meshes = {*Mesh::Parse(fmt::format("{}", kPredictionDevices))},
                      .methods = {Method::kData}};
  Plan plan;
  ASSIGN_OR_RETURN(CompiledStep compiled,
                   PlanAndCompile(traced.step, request, session, /*dump_dir=*/"", plan));
  return RunningStep::Create(traced.step, std::move(compiled));
}

// A turn of a program, and what the reference step took right before and right after it.
struct ComparedTurn {
  Turn turn;
  double reference_us = 0;  // geometric mean of both
};

void Summarize(std::vector<ComparedTurn> turns, Json& row) {
  std::ranges::stable_sort(turns, {},
                           [](const ComparedTurn& one) { return one.turn.stolen_share(); });
  turns.resize(std::min<size_t>(turns.size(), kTurns));
  std::vector<double> us, quotients;
  double busy_s = 0, others = 0, stolen = 0;
  for (const ComparedTurn& one : turns) {
    us.insert(us.end(), one.turn.us.begin(), one.turn.us.end());
    quotients.push_back(one.turn.median_us() / one.reference_us);
    busy_s += one.turn.after.own_s - one.turn.before.own_s;
    others += OthersShare(one.turn.before, one.turn.after) / static_cast<double>(turns.size());
    stolen += one.turn.stolen_share() / static_cast<double>(turns.size());
  }
  const RunStatistics all = StatisticsOf(us);
  row["median_us"] = all.median_us;
  row["quartiles_us"] = {all.lower_quartile_us, all.upper_quartile_us};
  row["num_steps"] = us.size();
  row["busy_us"] = 1e6 * busy_s / static_cast<double>(us.size() * sysconf(_SC_NPROCESSORS_ONLN));
  row["others_share"] = others;
  row["stolen_share"] = stolen;
  row["reference_us"] = all.median_us / StatisticsOf(quotients).median_us;
}

int NumUndisturbed(const std::vector<ComparedTurn>& turns) {
  return static_cast<int>(std::ranges::count_if(
      turns, [](const ComparedTurn& one) { return one.turn.stolen_share() <= kMostStolen; }));
}

// A program that is ready to run, and what the row says of it.
struct Compiled {
  Step step;
  CompiledStep compiled;
  Json row;
};

absl::StatusOr<Compiled> Compile(const PredictionProgram& program, const std::string& module_folder,
                                 const CostModelChoice& costs, const std::string& dump_dir,
                                 LocalSession& session) {
  Compiled result;
  ASSIGN_OR_RETURN(result.step, LoadProgram(program, module_folder));
  ASSIGN_OR_RETURN(const Mesh mesh, Mesh::Parse(program.mesh));
  PlanRequest request{.cluster = Cluster::Local(kPredictionDevices),
                      .remat = RematChoice(),
                      .meshes = {mesh},
                      .methods = {program.method},
                      .cost_model = costs};
  if (costs.kind == CostModelKind::kAlpa) {
    request.cost_model.alpha.assign(mesh.num_axes(), 1);
    request.cost_model.beta.assign(mesh.num_axes(), 1);
  }
  request.search.gap = kGap;
  const std::string dump = dump_dir.empty() ? "" : fmt::format("{}/{}", dump_dir, program.name());
  Plan plan;
  ASSIGN_OR_RETURN(result.compiled, PlanAndCompile(result.step, request, session, dump, plan));
  result.row = {{"name", program.name()},
                {"step", program.step},
                {"method", std::string(MethodName(program.method))},
                {"mesh", program.mesh},
                {"predicted_us", plan.step_time_us},
                {"estimated_bytes", plan.peak_memory_bytes},
                {"compiled_bytes", result.compiled.plan.peak_memory_bytes}};
  return result;
}

}  // namespace

absl::StatusOr<Json> MeasureInTurns(const std::vector<PredictionProgram>& programs,
                                    const std::string& module_folder,
                                    const Calibration& calibration, const std::string& dump_dir) {
  ASSIGN_OR_RETURN(const LocalDevices devices,
                   OpenLocalDevices({.num_devices = kPredictionDevices}));
  LocalSession session(devices);
  Json rows = Json::array();
  std::vector<RunningStep> steps;
  for (const PredictionProgram& program : programs) {
    ASSIGN_OR_RETURN(
        Compiled compiled,
        Compile(program, module_folder,
                {.kind = CostModelKind::kMeasured, .calibration = calibration}, dump_dir, session));
    rows.push_back(std::move(compiled.row));
    ASSIGN_OR_RETURN(RunningStep step,
                     RunningStep::Create(compiled.step, std::move(compiled.compiled)));
    steps.push_back(std::move(step));
  }
  ASSIGN_OR_RETURN(RunningStep reference, ReferenceStep(session));
  const auto reference_us = [&]() -> absl::StatusOr<double> {
    ASSIGN_OR_RETURN(const Turn turn, reference.TakeTurn(kReferenceSteps));
    return turn.median_us();
  };
  std::vector<std::vector<ComparedTurn>> turns(steps.size());
  const auto is_done = [&](const std::vector<ComparedTurn>& of_step) {
    return NumUndisturbed(of_step) >= kTurns || of_step.size() >= kMostTurns;
  };
  while (!std::ranges::all_of(turns, is_done)) {
    ASSIGN_OR_RETURN(double before_us, reference_us());
    for (size_t i = 0; i < steps.size(); ++i) {
      ASSIGN_OR_RETURN(Turn turn, steps[i].TakeTurn(StepsPerTurn(steps[i].times())));
      ASSIGN_OR_RETURN(const double after_us, reference_us());
      turns[i].push_back({std::move(turn), std::sqrt(before_us * after_us)});
      before_us = after_us;
    }
  }
  for (size_t i = 0; i < steps.size(); ++i) Summarize(std::move(turns[i]), rows[i]);
  return rows;
}

absl::StatusOr<Json> MeasureMemory(const std::vector<PredictionProgram>& programs,
                                   const std::string& module_folder, const CostModelChoice& costs,
                                   const std::string& dump_dir) {
  ASSIGN_OR_RETURN(const LocalDevices devices,
                   OpenLocalDevices({.num_devices = kPredictionDevices}));
  LocalSession session(devices);
  Json rows = Json::array();
  for (const PredictionProgram& program : programs) {
    ASSIGN_OR_RETURN(Compiled compiled, Compile(program, module_folder, costs, dump_dir, session));
    rows.push_back(std::move(compiled.row));
  }
  return rows;
}

absl::StatusOr<double> MeasureReferenceUs(const LocalDevices& devices) {
  LocalSession session(devices);
  ASSIGN_OR_RETURN(RunningStep reference, ReferenceStep(session));
  std::vector<double> us;
  for (int i = 0; i < kTurns; ++i) {
    ASSIGN_OR_RETURN(const Turn turn, reference.TakeTurn(kReferenceSteps));
    us.push_back(turn.median_us());
  }
  return StatisticsOf(us).median_us;
}

absl::StatusOr<ReferencedProfile> ProfileBesideReference(const LocalDevices& devices) {
  constexpr int kProgramsPerReference = 25;
  LocalSession session(devices);
  ASSIGN_OR_RETURN(RunningStep reference, ReferenceStep(session));
  std::vector<double> us;
  absl::Status failed;
  const auto take_turn = [&](std::string_view, int done, int total) {
    const bool is_waiting = total == 1;  // for another process that profiles
    if (is_waiting || done % kProgramsPerReference != 0 || !failed.ok()) return;
    const absl::StatusOr<Turn> turn = reference.TakeTurn(kReferenceSteps);
    if (turn.ok()) us.push_back(turn->median_us());
    failed = turn.status();
  };
  ReferencedProfile out;
  ASSIGN_OR_RETURN(out.calibration,
                   Profile(devices, {.num_devices = kPredictionDevices, .on_progress = take_turn}));
  RETURN_IF_ERROR(failed);
  out.reference_us = StatisticsOf(us).median_us;
  return out;
}

}  // namespace minka
