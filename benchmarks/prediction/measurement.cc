#include "benchmarks/prediction/measurement.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "minka/base/core_distance.h"
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
// part of the cores' time to others, or has moved the cores; those count in which they are where
// they were during the profile, and of these where it takes least.
constexpr int kMostTurns = 8;
constexpr double kMostStolen = 0.03;
// So long at most is waited for cores to be back, for the programs of a step together.
constexpr std::chrono::seconds kLongestWaits(30);

// Dots, an optimizer that reads and writes memory, collectives: what every row is made of.
constexpr MlpConfig kReference = {.batch = 512, .hidden = 512, .num_layers = 4};
constexpr int kReferenceSteps = 3;

int StepsPerTurn(const RunTimes& times) {
  return std::clamp(static_cast<int>(kTurnUs / std::max(times.us.back(), 1.0)), kMinSteps,
                    kMaxSteps);
}

// Some warm steps, who had the cores meanwhile, and where these were.
struct Turn {
  std::vector<double> us;
  ProcessorTime before, after;
  CoreDistances cores;

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
    Turn turn{.cores = {.before_ns = CoreRoundTripNs()}};
    turn.before = ProcessorTimeNow();
    RETURN_IF_ERROR(Run(num_steps));
    turn.after = ProcessorTimeNow();
    turn.cores.behind_ns = CoreRoundTripNs();
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

// A turn of a program, and of the reference step right before and right after it.
struct ComparedTurn {
  Turn turn;
  double reference_us = 0;  // geometric mean of both
  bool is_at = true;        // the cores were where they were during the profile, in all three
};

ComparedTurn Compare(const Turn& before, Turn turn, const Turn& after, double core_ns) {
  const bool is_at =
      before.cores.AreAt(core_ns) && turn.cores.AreAt(core_ns) && after.cores.AreAt(core_ns);
  return {std::move(turn), std::sqrt(before.median_us() * after.median_us()), is_at};
}

// Of those at the place of the profile, where there is any.
void Summarize(std::vector<ComparedTurn> turns, Json& row) {
  const auto num_turns = static_cast<double>(turns.size());
  const auto num_moved = std::ranges::count(turns, false, &ComparedTurn::is_at);
  row["moved_share"] = static_cast<double>(num_moved) / num_turns;
  if (num_moved < static_cast<int64_t>(turns.size()))
    std::erase_if(turns, [](const ComparedTurn& one) { return !one.is_at; });
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
  return static_cast<int>(std::ranges::count_if(turns, [](const ComparedTurn& one) {
    return one.is_at && one.turn.stolen_share() <= kMostStolen;
  }));
}

// What the reference step takes where the cores are there, if they ever were.
double MedianUs(const std::vector<Turn>& references, double core_ns) {
  const auto is_at = [&](const Turn& turn) { return turn.cores.AreAt(core_ns); };
  const bool is_any = std::ranges::any_of(references, is_at);
  std::vector<double> us;
  for (const Turn& turn : references) {
    if (!is_any || is_at(turn)) us.push_back(turn.median_us());
  }
  return StatisticsOf(us).median_us;
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
  const double core_ns = calibration.core_round_trip_ns;
  std::vector<std::vector<ComparedTurn>> turns(steps.size());
  const auto is_done = [&](const std::vector<ComparedTurn>& of_step) {
    return NumUndisturbed(of_step) >= kTurns || of_step.size() >= kMostTurns;
  };
  std::chrono::duration<double> left_to_wait = kLongestWaits;
  while (!std::ranges::all_of(turns, is_done)) {
    AwaitCoreDistance(core_ns, left_to_wait);
    ASSIGN_OR_RETURN(Turn before, reference.TakeTurn(kReferenceSteps));
    for (size_t i = 0; i < steps.size(); ++i) {
      ASSIGN_OR_RETURN(Turn turn, steps[i].TakeTurn(StepsPerTurn(steps[i].times())));
      ASSIGN_OR_RETURN(Turn after, reference.TakeTurn(kReferenceSteps));
      turns[i].push_back(Compare(before, std::move(turn), after, core_ns));
      before = std::move(after);
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

absl::StatusOr<double> MeasureReferenceUs(const LocalDevices& devices, double core_ns) {
  LocalSession session(devices);
  ASSIGN_OR_RETURN(RunningStep reference, ReferenceStep(session));
  std::chrono::duration<double> left_to_wait = kLongestWaits;
  std::vector<Turn> turns;
  for (int i = 0; i < kTurns; ++i) {
    AwaitCoreDistance(core_ns, left_to_wait);
    ASSIGN_OR_RETURN(turns.emplace_back(), reference.TakeTurn(kReferenceSteps));
  }
  return MedianUs(turns, core_ns);
}

absl::StatusOr<ReferencedProfile> ProfileBesideReference(const LocalDevices& devices) {
  constexpr int kProgramsPerReference = 25;
  LocalSession session(devices);
  ASSIGN_OR_RETURN(RunningStep reference, ReferenceStep(session));
  std::vector<Turn> turns;
  absl::Status failed;
  int last = -1;
  const auto take_turn = [&](std::string_view, int done, int total) {
    const bool is_waiting = total == 1 || done == last;  // for another process, or for cores
    last = done;
    if (is_waiting || done % kProgramsPerReference != 0 || !failed.ok()) return;
    absl::StatusOr<Turn> turn = reference.TakeTurn(kReferenceSteps);
    failed = turn.status();
    if (turn.ok()) turns.push_back(*std::move(turn));
  };
  ReferencedProfile out;
  ASSIGN_OR_RETURN(out.calibration,
                   Profile(devices, {.num_devices = kPredictionDevices, .on_progress = take_turn}));
  RETURN_IF_ERROR(failed);
  out.reference_us = MedianUs(turns, out.calibration.core_round_trip_ns);
  return out;
}

}  // namespace minka
