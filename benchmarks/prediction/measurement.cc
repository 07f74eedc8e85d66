#include "benchmarks/prediction/measurement.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "fmt/format.h"
#include "minka/base/status.h"
#include "minka/driver/compile.h"
#include "minka/driver/inputs.h"
#include "minka/driver/plan_step.h"
#include "minka/runtime/mesh/local_devices.h"
#include "minka/runtime/mesh/step_runner.h"

namespace minka {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kWarmUpSteps = 3;
constexpr int kMinSteps = 7, kMaxSteps = 60;
constexpr double kMeasuredUs = 1.5e6;  // about so long per program, within the numbers of steps
constexpr double kGap = 0.01;

// Seconds that all cores together were busy, and this process among them.
struct Busy {
  double all = 0, own = 0;
};

Busy BusySeconds() {
  std::ifstream stat("/proc/stat");
  std::string cpu;
  double user = 0, nice = 0, system = 0;
  stat >> cpu >> user >> nice >> system;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return {.all = (user + nice + system) / static_cast<double>(sysconf(_SC_CLK_TCK)),
          .own = seconds(usage.ru_utime) + seconds(usage.ru_stime)};
}

int NumSteps(const RunTimes& times) {
  return std::clamp(static_cast<int>(kMeasuredUs / std::max(times.us.back(), 1.0)), kMinSteps,
                    kMaxSteps);
}

absl::Status RunWarm(const Step& step, StepRunner& runner, Json& row) {
  ASSIGN_OR_RETURN(const std::vector<Literal> inputs, RandomInputs(step, /*seed=*/1));
  ASSIGN_OR_RETURN(State state, runner.CreateState(inputs));
  const auto run = [&](int num_steps) -> absl::Status {
    for (int i = 0; i < num_steps; ++i) {
      ASSIGN_OR_RETURN(StepOutput output, runner.Run(std::move(state), inputs));
      state = std::move(output.state);
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(run(kWarmUpSteps));
  const Busy before = BusySeconds();
  const int num_steps = NumSteps(runner.executor().times());
  RETURN_IF_ERROR(run(num_steps));
  const Busy after = BusySeconds();
  const double all = after.all - before.all;
  const double others = std::max(0.0, all - (after.own - before.own));
  const RunStatistics warm = runner.executor().times().Warm(kWarmUpSteps);
  row["median_us"] = warm.median_us;
  row["quartiles_us"] = {warm.lower_quartile_us, warm.upper_quartile_us};
  row["num_steps"] = num_steps;
  row["busy_us"] = 1e6 * (after.own - before.own) /
                   (num_steps * static_cast<double>(sysconf(_SC_NPROCESSORS_ONLN)));
  row["others_share"] = all > 0 ? others / all : 0;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Json> Measure(const PredictionProgram& program, const std::string& module_folder,
                             const Calibration& calibration, bool memory_only,
                             const std::string& dump_dir) {
  ASSIGN_OR_RETURN(const Step step, LoadProgram(program, module_folder));
  ASSIGN_OR_RETURN(const Mesh mesh, Mesh::Parse(program.mesh));
  PlanRequest request{.cluster = Cluster::Local(kPredictionDevices),
                      .remat = RematChoice(),
                      .meshes = {mesh},
                      .methods = {program.method},
                      .cost_model = {.kind = CostModelKind::kMeasured, .calibration = calibration}};
  request.search.gap = kGap;
  ASSIGN_OR_RETURN(const PlanResult planned, PlanStep(step, request));
  const Plan& plan = planned.candidates[planned.best].plan;
  ASSIGN_OR_RETURN(const LocalDevices devices,
                   OpenLocalDevices({.num_devices = kPredictionDevices}));
  LocalSession session(devices);
  ASSIGN_OR_RETURN(CompiledStep compiled,
                   Compile(step, [&](const Step&, std::optional<int64_t>) { return plan; }, session,
                           {.dump_dir = dump_dir}));
  Json row = {{"name", program.name()},
              {"step", program.step},
              {"method", std::string(MethodName(program.method))},
              {"mesh", program.mesh},
              {"predicted_us", plan.step_time_us},
              {"estimated_bytes", plan.peak_memory_bytes},
              {"compiled_bytes", compiled.plan.peak_memory_bytes}};
  if (memory_only) return row;
  StepRunner runner(compiled.prepared, std::move(compiled.executor));
  RETURN_IF_ERROR(RunWarm(step, runner, row));
  return row;
}

}  // namespace minka
