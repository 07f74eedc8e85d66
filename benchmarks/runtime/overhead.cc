#include "benchmarks/runtime/overhead.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <sstream>
#include <utility>

#include "benchmarks/runtime/instruction_lists.h"
#include "benchmarks/runtime/pipeline_model.h"
#include "benchmarks/support/run_apart.h"
#include "fmt/format.h"
#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/driver/start_session.h"
#include "minka/models/mlp.h"
#include "minka/runtime/mesh/local_devices.h"
#include "minka/runtime/mesh/run_times.h"
#include "minka/runtime/worker/worker_pipeline_executor.h"

namespace minka {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr int kStepsPerRound = 30;
constexpr int kWarmUpSteps = 20;
constexpr int kLaunches = 3000;
constexpr int kMeshesOfModel = 4;

struct Case {
  std::string name;
  std::optional<ListKind> kind;  // nullopt: of a training step
  int num_meshes = 4;
  // Of lists; micro-batches of a training step.
  std::vector<int> sizes;
};

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  const std::vector<int> lengths = {0, 32, 64, 128};
  for (const int workers : {1, 4}) {
    cases.push_back({fmt::format("run, {} workers", workers), ListKind::kRun, workers, lengths});
  }
  for (const int workers : {2, 4}) {
    cases.push_back({fmt::format("send and receive, {} workers", workers), ListKind::kTransfer,
                     workers, lengths});
  }
  cases.push_back({"run and free, 4 workers", ListKind::kFree, 4, lengths});
  cases.push_back({fmt::format("1f1b, {} workers", kMeshesOfModel),
                   std::nullopt,
                   kMeshesOfModel,
                   {1, 2, 4, 8, 16}});
  return cases;
}

double Median(std::span<const double> values) { return StatisticsOf(values).median_us; }
double Rounded(double value) { return std::round(value * 100) / 100; }

// Least squares.
struct Line {
  double intercept = 0, slope = 0;
};
Line LineThrough(const std::vector<double>& x, const std::vector<double>& y) {
  const auto count = static_cast<double>(x.size());
  const double mean_x = std::accumulate(x.begin(), x.end(), 0.0) / count;
  const double mean_y = std::accumulate(y.begin(), y.end(), 0.0) / count;
  double xx = 0, xy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    xx += (x[i] - mean_x) * (x[i] - mean_x);
    xy += (x[i] - mean_x) * (y[i] - mean_y);
  }
  return {.intercept = mean_y - xy / xx * mean_x, .slope = xy / xx};
}

double CpuMicroseconds(int pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(file, line);
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  std::string skipped;
  for (int i = 0; i < 11; ++i) fields >> skipped;
  double user = 0, system = 0;
  fields >> user >> system;
  return (user + system) * 1e6 / static_cast<double>(sysconf(_SC_CLK_TCK));
}

// A step that can be run again and again.
struct Repeatable {
  std::function<absl::Status()> run;
  const PipelineProgram* program = nullptr;  // lives as long as `run`

  double longest_list() const {
    size_t longest = 0;
    for (const MeshProgram& mesh : program->meshes) {
      longest = std::max(longest, mesh.instructions.size());
    }
    return static_cast<double>(longest);
  }
  double all_lists() const {
    size_t sum = 0;
    for (const MeshProgram& mesh : program->meshes) sum += mesh.instructions.size();
    return static_cast<double>(sum);
  }
};

absl::StatusOr<Repeatable> LoadLists(const Case& which, int length, Session& session) {
  ASSIGN_OR_RETURN(std::shared_ptr<PipelineExecutor> executor,
                   session.Load(MakeLists(*which.kind, which.num_meshes, length)));
  auto arrays = std::make_shared<std::vector<DistributedArray>>();
  for (int i = 0; i < which.num_meshes; ++i) {
    ASSIGN_OR_RETURN(arrays->emplace_back(),
                     executor->Put(i, FilledLiteral(executor->ParameterLayout(i).shape, 1)));
  }
  const auto run = [executor, arrays]() -> absl::Status {
    std::vector<DistributedArray*> arguments;
    for (DistributedArray& array : *arrays) arguments.push_back(&array);
    ASSIGN_OR_RETURN(*arrays, executor->Run(arguments));
    return executor->Wait();
  };
  return Repeatable{.run = run, .program = &executor->program()};
}

absl::StatusOr<Repeatable> LoadModel(const Case& which, int num_micro_batches, Session& session) {
  ASSIGN_OR_RETURN(
      PipelineModel model,
      PlanPipelineModel(Mlp({.batch = 32, .hidden = 32, .num_layers = 4}),
                        {.num_meshes = which.num_meshes, .num_micro_batches = num_micro_batches}));
  ASSIGN_OR_RETURN(ParameterValues inputs, model.Values());
  ASSIGN_OR_RETURN(auto executor, CompilePipeline(model.planned, session));
  const PipelineProgram* const program = &executor->program();
  auto runner = std::make_shared<StepRunner>(model.planned.prepared, std::move(executor));
  ASSIGN_OR_RETURN(State state, runner->CreateState(inputs));
  const auto run = [runner, inputs = std::move(inputs),
                    state = std::make_shared<State>(std::move(state))]() -> absl::Status {
    ASSIGN_OR_RETURN(StepOutput output, runner->Run(std::move(*state), inputs));
    *state = std::move(output.state);
    return runner->executor().Wait();
  };
  return Repeatable{.run = run, .program = program};
}

absl::StatusOr<Repeatable> Load(const Case& which, int size, Session& session) {
  return which.kind ? LoadLists(which, size, session) : LoadModel(which, size, session);
}

struct Sample {
  double longest_list = 0, all_lists = 0;
  double step_us = 0;  // median
  double cpu_us = 0;   // of all workers, per step
};

absl::StatusOr<std::vector<Sample>> Sampled(const Case& which, Session& session, int num_rounds,
                                            std::span<const int> pids) {
  std::vector<Repeatable> steps;
  for (const int size : which.sizes) {
    ASSIGN_OR_RETURN(steps.emplace_back(), Load(which, size, session));
  }
  for (const Repeatable& step : steps) {
    for (int i = 0; i < kWarmUpSteps; ++i) RETURN_IF_ERROR(step.run());
  }
  const auto cpu = [&] {
    double sum = 0;
    for (const int pid : pids) sum += CpuMicroseconds(pid);
    return sum;
  };
  std::vector<std::vector<double>> times(steps.size());
  std::vector<double> cpu_times(steps.size());
  // In turns, so that what else happens on the machine meets all alike.
  for (int round = 0; round < num_rounds; ++round) {
    for (size_t i = 0; i < steps.size(); ++i) {
      const double before = cpu();
      for (int step = 0; step < kStepsPerRound; ++step) {
        const Clock::time_point start = Clock::now();
        RETURN_IF_ERROR(steps[i].run());
        const std::chrono::duration<double, std::micro> elapsed = Clock::now() - start;
        times[i].push_back(elapsed.count());
      }
      cpu_times[i] += cpu() - before;
    }
  }
  std::vector<Sample> samples;
  for (size_t i = 0; i < steps.size(); ++i) {
    samples.push_back({.longest_list = steps[i].longest_list(),
                       .all_lists = steps[i].all_lists(),
                       .step_us = Median(times[i]),
                       .cpu_us = cpu_times[i] / (num_rounds * kStepsPerRound)});
  }
  return samples;
}

Line LineOf(const std::vector<Sample>& samples, double Sample::* x, double Sample::* y) {
  std::vector<double> xs, ys;
  for (const Sample& sample : samples) {
    xs.push_back(sample.*x);
    ys.push_back(sample.*y);
  }
  return LineThrough(xs, ys);
}

// That of empty lists where there are some.
double StepCost(const Case& which, const std::vector<Sample>& samples, const Line& line) {
  return which.kind ? samples.front().step_us : line.intercept;
}

Json StepTimes(const Case& which, const std::vector<Sample>& samples) {
  Json times = Json::array();
  for (size_t i = 0; i < samples.size(); ++i) {
    times.push_back({{"size", which.sizes[i]},
                     {"longest_list", samples[i].longest_list},
                     {"us", Rounded(samples[i].step_us)}});
  }
  return times;
}

absl::StatusOr<Json> OnWorkers(const Case& which, const std::string& binary, int num_rounds) {
  const std::vector<int> num_devices(which.num_meshes, 1);  // by mesh
  ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                   StartWorkers(num_devices, {.binary = binary}));
  const Workers& workers = dynamic_cast<WorkersSession&>(*session).workers();
  std::vector<int> pids;
  for (int i = 0; i < which.num_meshes; ++i) pids.push_back(workers.pid(i));
  ASSIGN_OR_RETURN(const std::vector<Sample> samples, Sampled(which, *session, num_rounds, pids));
  const Line wall = LineOf(samples, &Sample::longest_list, &Sample::step_us);
  const Line cpu = LineOf(samples, &Sample::all_lists, &Sample::cpu_us);
  return Json{{"instruction_us", Rounded(wall.slope)},
              {"cpu_us", Rounded(cpu.slope)},
              {"step_us", Rounded(StepCost(which, samples, wall))},
              {"steps_us", StepTimes(which, samples)}};
}

// Microseconds of a launch and of waiting for it, without the runtime.
absl::StatusOr<double> LaunchTime(const pjrt::Client& client, const pjrt::Executable& executable) {
  const int device = executable.devices().front();
  const auto zeros = [&](int parameter) {
    const Shape& shape = executable.parameter_shape(parameter);
    return client.CopyFromHost(device, shape, *FilledLiteral(shape, 0).bytes);
  };
  std::vector<pjrt::Buffer> buffers;
  for (int i = 0; i < executable.num_parameters(); ++i) {
    ASSIGN_OR_RETURN(pjrt::Buffer buffer, zeros(i));
    buffers.push_back(std::move(buffer));
  }
  std::vector<double> times;
  for (int i = 0; i < kLaunches; ++i) {
    for (const int parameter : executable.donated_parameters()) {
      ASSIGN_OR_RETURN(buffers[parameter], zeros(parameter));
    }
    std::vector<std::vector<pjrt::Buffer*>> arguments(1);
    for (pjrt::Buffer& buffer : buffers) arguments.front().push_back(&buffer);
    const Clock::time_point start = Clock::now();
    ASSIGN_OR_RETURN(const pjrt::Launch launch, executable.Execute(arguments));
    RETURN_IF_ERROR(launch.Await());
    const std::chrono::duration<double, std::micro> elapsed = Clock::now() - start;
    times.push_back(elapsed.count());
  }
  return Median(times);
}

// Of all launches of a step, for each of its instructions.
absl::StatusOr<double> LaunchesPerInstruction(const PipelineExecutor& executor,
                                              const pjrt::Client& client) {
  double launches_us = 0, num_instructions = 0;
  size_t first_executable = 0;
  for (const MeshProgram& mesh : executor.program().meshes) {
    std::map<int, int> num_runs;
    for (const PipelineInstruction& instruction : mesh.instructions) {
      num_instructions += 1;
      if (const auto* run = std::get_if<RunInstruction>(&instruction)) ++num_runs[run->program];
    }
    for (const auto& [program, times] : num_runs) {
      ASSIGN_OR_RETURN(const double us,
                       LaunchTime(client, *executor.executables()[first_executable + program]));
      launches_us += us * times;
    }
    first_executable += mesh.programs.size();
  }
  return launches_us / num_instructions;
}

absl::StatusOr<Json> InOneProcess(const Case& which, int num_rounds) {
  ASSIGN_OR_RETURN(const LocalDevices devices, OpenLocalDevices({.num_devices = which.num_meshes}));
  LocalSession session(devices);
  ASSIGN_OR_RETURN(const std::vector<Sample> samples, Sampled(which, session, num_rounds, {}));
  const Line wall = LineOf(samples, &Sample::all_lists, &Sample::step_us);
  ASSIGN_OR_RETURN(const Repeatable longest, Load(which, which.sizes.back(), session));
  ASSIGN_OR_RETURN(const auto executor, session.Load(*longest.program));
  ASSIGN_OR_RETURN(const double launches, LaunchesPerInstruction(*executor, devices.client));
  return Json{{"local_instruction_us", Rounded(wall.slope)},
              {"launch_us", Rounded(launches)},
              {"local_step_us", Rounded(StepCost(which, samples, wall))},
              {"local_steps_us", StepTimes(which, samples)}};
}

}  // namespace

std::vector<std::string> OverheadNames() {
  std::vector<std::string> names;
  for (const Case& which : AllCases()) names.push_back(which.name);
  return names;
}

absl::StatusOr<Json> MeasureOverhead(const std::string& name, const std::string& binary,
                                     int num_rounds) {
  const std::vector<Case> cases = AllCases();
  const auto which = std::ranges::find(cases, name, &Case::name);
  MINKA_CHECK(which != cases.end(), "no case {}", name);
  Json row = {{"name", name}};
  ASSIGN_OR_RETURN(const Json workers,
                   RunApart(name, [&] { return OnWorkers(*which, binary, num_rounds); }));
  ASSIGN_OR_RETURN(const Json local,
                   RunApart(name, [&] { return InOneProcess(*which, num_rounds); }));
  row.update(workers);
  row.update(local);
  return row;
}

std::string OverheadTableRow(const Json& row) {
  const auto cell = [&](const char* field) { return row[field].get<double>(); };
  return fmt::format("| {} | {:.1f} | {:.1f} | {:.1f} | {:.1f} | {:.0f} | {:.0f} |\n",
                     row["name"].get<std::string>(), cell("instruction_us"),
                     cell("local_instruction_us"), cell("launch_us"), cell("cpu_us"),
                     cell("step_us"), cell("local_step_us"));
}

}  // namespace minka
