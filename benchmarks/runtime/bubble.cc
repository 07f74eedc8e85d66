#include "benchmarks/runtime/bubble.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <ranges>
#include <span>
#include <utility>

#include "benchmarks/runtime/instruction_lists.h"
#include "benchmarks/runtime/pipeline_model.h"
#include "fmt/format.h"
#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/driver/start_session.h"
#include "minka/models/gpt.h"
#include "minka/runtime/mesh/run_times.h"
#include "minka/simulator/timeline.h"

namespace minka {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kNumMeshes = 2;
constexpr int kExamples = 2;  // of a micro-batch
constexpr int kGptWarmUpRounds = 1, kGptStepsPerRound = 3;
// Each program so often in a list, which is about as long as a step.
constexpr int kRepetitions = 8;

struct BubbleCase {
  std::string schedule;
  int num_micro_batches = 1;

  std::string name() const {
    return fmt::format("{}, {} micro-batches", schedule, num_micro_batches);
  }
};

std::vector<BubbleCase> AllBubbleCases() {
  std::vector<BubbleCase> cases;
  for (const char* const schedule : {"1f1b", "zero-bubble-h1"}) {
    for (const int num_micro_batches : {4, 8, 16}) cases.push_back({schedule, num_micro_batches});
  }
  return cases;
}

// Head and embedding are small beside the layers, so that halves are equal.
Model BalancedGpt(int num_micro_batches) {
  return Gpt({.batch = kExamples * num_micro_batches,
              .sequence = 128,
              .vocabulary = 64,
              .hidden = 256,
              .num_layers = 4,
              .num_heads = 4});
}

double MedianOf(std::span<const double> values) { return StatisticsOf(values).median_us; }
double RoundedTo(double value, int per_unit) { return std::round(value * per_unit) / per_unit; }

// By stage and kind of program, of one micro-batch or, for what a step runs once, of all phases.
using TaskTable = std::vector<std::map<ProgramKind, double>>;

// One program that a worker runs again and again.
class Repetition {
 public:
  static absl::StatusOr<Repetition> Load(Session& session, const PipelineProgram& whole, int mesh,
                                         int program, int times) {
    Repetition out;
    RepeatedProgram repeated = Repeat(whole, mesh, program, times);
    out.in_place_ = std::move(repeated.in_place);
    ASSIGN_OR_RETURN(out.executor_, session.Load(std::move(repeated.pipeline)));
    for (size_t i = 0; i < out.executor_->program().parameters.size(); ++i) {
      const auto parameter = static_cast<int>(i);
      const Shape& shape = out.executor_->ParameterLayout(parameter).shape;
      // No index is out of range, and no number so small that it is slow.
      const bool is_index = shape.type == ElementType::kS32 || shape.type == ElementType::kPred;
      ASSIGN_OR_RETURN(out.arrays_.emplace_back(),
                       out.executor_->Put(parameter, FilledLiteral(shape, is_index ? 0 : 0.01)));
    }
    return out;
  }

  absl::Status Launch() {
    std::vector<DistributedArray*> arguments;
    for (DistributedArray& array : arrays_) arguments.push_back(&array);
    ASSIGN_OR_RETURN(std::vector<DistributedArray> results, executor_->Run(arguments));
    for (size_t i = 0; i < results.size(); ++i) arrays_[in_place_[i]] = std::move(results[i]);
    return absl::OkStatus();
  }
  absl::Status Wait() { return executor_->Wait(); }
  double last_us() const { return executor_->times().us.back(); }

 private:
  std::unique_ptr<PipelineExecutor> executor_;
  std::vector<int> in_place_;
  std::vector<DistributedArray> arrays_;
};

// The programs of a kind, by mesh.
std::vector<std::vector<int>> ProgramsOf(const PipelineProgram& program, ProgramKind kind) {
  std::vector<std::vector<int>> of_mesh;
  for (const MeshProgram& mesh : program.meshes) {
    of_mesh.emplace_back();
    for (size_t i = 0; i < mesh.programs.size(); ++i) {
      if (mesh.programs[i].task.kind == kind) of_mesh.back().push_back(static_cast<int>(i));
    }
  }
  return of_mesh;
}

// Both workers run their program of a kind at the same time, because they share the memory in the
// pipeline, too.
class TaskTimer {
 public:
  static absl::StatusOr<TaskTimer> Create(Session& session, const PipelineProgram& program) {
    TaskTimer timer;
    for (const ProgramKind kind :
         {ProgramKind::kFront, ProgramKind::kForward, ProgramKind::kBackward,
          ProgramKind::kWeightGradient, ProgramKind::kApply}) {
      const std::vector<std::vector<int>> programs = ProgramsOf(program, kind);
      for (size_t i = 0; i < std::max(programs[0].size(), programs[1].size()); ++i) {
        Group& group = timer.groups_.emplace_back();
        group.kind = kind;
        for (int mesh = 0; mesh < kNumMeshes; ++mesh) {
          if (i >= programs[mesh].size()) continue;
          ASSIGN_OR_RETURN(auto repetition, Repetition::Load(session, program, mesh,
                                                             programs[mesh][i], kRepetitions));
          group.repetitions.emplace(mesh, std::move(repetition));
        }
      }
    }
    return timer;
  }

  // By stage and kind, summed over phases.
  absl::StatusOr<TaskTable> Measure() {
    TaskTable table(kNumMeshes);
    for (Group& group : groups_) {
      // The last mesh first: its list is an empty one for those before, which then begin theirs.
      for (auto& [mesh, repetition] : std::views::reverse(group.repetitions)) {
        RETURN_IF_ERROR(repetition.Launch());
      }
      for (auto& [mesh, repetition] : group.repetitions) {
        RETURN_IF_ERROR(repetition.Wait());
        table[mesh][group.kind] += repetition.last_us() / kRepetitions;
      }
    }
    return table;
  }

 private:
  struct Group {
    ProgramKind kind = ProgramKind::kForward;
    std::map<int, Repetition> repetitions;  // by mesh
  };
  std::vector<Group> groups_;
};

// Of every task.
TaskTable Medians(const std::vector<TaskTable>& tables) {
  TaskTable medians = tables.front();
  for (size_t stage = 0; stage < medians.size(); ++stage) {
    for (auto& [kind, median] : medians[stage]) {
      std::vector<double> times;
      for (const TaskTable& table : tables) times.push_back(table[stage].at(kind));
      median = MedianOf(times);
    }
  }
  return medians;
}

double TimeOf(const TaskTable& table, int stage, ProgramKind kind) {
  const auto found = table[stage].find(kind);
  return found == table[stage].end() ? 0 : found->second;
}

absl::StatusOr<Timeline> TimelineOf(const Schedule& schedule, const TaskTable& table) {
  const auto time = [&](const Task& task) {
    switch (task.kind) {
      case TaskKind::kForward:
        return TimeOf(table, task.stage, ProgramKind::kForward);
      case TaskKind::kBackward:
        return TimeOf(table, task.stage, ProgramKind::kBackward);
      case TaskKind::kWeightGradient:
        return TimeOf(table, task.stage, ProgramKind::kWeightGradient);
      case TaskKind::kApply:
        break;
    }
    return TimeOf(table, task.stage, ProgramKind::kFront) +
           TimeOf(table, task.stage, ProgramKind::kApply);
  };
  return Simulate(schedule, {.task = time, .transfer = {}});
}

double WorkOf(const TaskTable& table, int stage) {
  return TimeOf(table, stage, ProgramKind::kForward) +
         TimeOf(table, stage, ProgramKind::kBackward) +
         TimeOf(table, stage, ProgramKind::kWeightGradient);
}

Json TasksMs(const TaskTable& table) {
  Json stages = Json::array();
  for (const auto& of_stage : table) {
    Json tasks;
    for (const auto& [kind, us] : of_stage) {
      tasks[std::string(ProgramKindName(kind))] = RoundedTo(us / 1e3, 1000);
    }
    stages.push_back(std::move(tasks));
  }
  return stages;
}

// The plan knows the front as a part of apply.
TaskTable PredictedTasks(const PipelinePlan& plan) {
  TaskTable table;
  for (const PipelineStagePlan& stage : plan.stages) {
    std::map<ProgramKind, double>& of_stage = table.emplace_back();
    const auto add = [&](ProgramKind kind, double us) {
      if (us > 0) of_stage[kind] = us;
    };
    add(ProgramKind::kForward, stage.forward_us);
    add(ProgramKind::kBackward, stage.backward_us);
    add(ProgramKind::kWeightGradient, stage.weight_gradient_us);
    add(ProgramKind::kApply, stage.apply_us);
  }
  return table;
}

}  // namespace

std::vector<std::string> BubbleNames() {
  std::vector<std::string> names;
  for (const BubbleCase& which : AllBubbleCases()) names.push_back(which.name());
  return names;
}

absl::StatusOr<Json> MeasureBubble(const std::string& name, const std::string& binary,
                                   const Calibration& calibration, int num_rounds) {
  const std::vector<BubbleCase> cases = AllBubbleCases();
  const auto which = std::ranges::find(cases, name, &BubbleCase::name);
  MINKA_CHECK(which != cases.end(), "no case {}", name);
  ASSIGN_OR_RETURN(PipelineModel model,
                   PlanPipelineModel(BalancedGpt(which->num_micro_batches),
                                     {.num_meshes = kNumMeshes,
                                      .num_micro_batches = which->num_micro_batches,
                                      .schedule = which->schedule,
                                      .calibration = calibration}));
  ASSIGN_OR_RETURN(
      const std::unique_ptr<Session> session,
      StartWorkers(model.planned.num_devices(), {.binary = binary, .cpus = {{0}, {1}}}));
  ASSIGN_OR_RETURN(auto executor, CompilePipeline(model.planned, *session));
  ASSIGN_OR_RETURN(TaskTimer timer, TaskTimer::Create(*session, executor->program()));
  StepRunner runner(model.planned.prepared, std::move(executor));
  ASSIGN_OR_RETURN(const ParameterValues values, model.Values());
  ASSIGN_OR_RETURN(State state, runner.CreateState(values));
  std::vector<double> step_us, schedule_us, shares;
  std::vector<TaskTable> tables;
  // In turns, so that what else happens on the machine meets both alike.
  for (int round = 0; round < num_rounds + kGptWarmUpRounds; ++round) {
    ASSIGN_OR_RETURN(TaskTable table, timer.Measure());
    RETURN_IF_ERROR(runner.executor().ResetMeasurements());
    for (int i = 0; i < kGptStepsPerRound; ++i) {
      ASSIGN_OR_RETURN(StepOutput output, runner.Run(std::move(state), values));
      state = std::move(output.state);
    }
    RETURN_IF_ERROR(runner.executor().Wait());
    if (round < kGptWarmUpRounds) continue;
    ASSIGN_OR_RETURN(const Timeline timeline, TimelineOf(model.planned.schedule, table));
    step_us.push_back(MedianOf(runner.executor().times().us));
    schedule_us.push_back(timeline.step_time);
    shares.push_back(schedule_us.back() / step_us.back());
    tables.push_back(std::move(table));
  }
  const TaskTable table = Medians(tables);
  ASSIGN_OR_RETURN(const Timeline timeline, TimelineOf(model.planned.schedule, table));
  const RunStatistics steps = StatisticsOf(step_us);
  const double idle = std::accumulate(timeline.idle.begin(), timeline.idle.end(), 0.0);
  return Json{{"name", name},
              {"step_ms", RoundedTo(steps.median_us / 1e3, 100)},
              {"lower_quartile_ms", RoundedTo(steps.lower_quartile_us / 1e3, 100)},
              {"upper_quartile_ms", RoundedTo(steps.upper_quartile_us / 1e3, 100)},
              {"schedule_ms", RoundedTo(MedianOf(schedule_us) / 1e3, 100)},
              {"of_schedule", RoundedTo(MedianOf(shares), 1000)},
              {"predicted_ms", RoundedTo(model.planned.plan.step_time_us / 1e3, 100)},
              {"bubble", RoundedTo(idle / (kNumMeshes * timeline.step_time), 1000)},
              {"balance", RoundedTo(WorkOf(table, 1) / WorkOf(table, 0), 1000)},
              {"tasks_ms", TasksMs(table)},
              {"predicted_tasks_ms", TasksMs(PredictedTasks(model.planned.plan))}};
}

void AddSlowdown(double slowdown, Json& row) {
  row["slowdown"] = RoundedTo(slowdown, 1000);
  row["of_measured"] =
      RoundedTo(slowdown * row["predicted_ms"].get<double>() / row["step_ms"].get<double>(), 1000);
}

std::string BubbleTableRow(const Json& row) {
  const auto cell = [&](const char* field) { return row[field].get<double>(); };
  return fmt::format(
      "| {} | {:.1f} | {:.1f} | {:.3f} | {:.1f} | {:.2f} | {:.2f} | {:.3f} | {:.3f} |\n",
      row["name"].get<std::string>(), cell("step_ms"), cell("schedule_ms"), cell("of_schedule"),
      cell("predicted_ms"), cell("slowdown"), cell("of_measured"), cell("bubble"), cell("balance"));
}

}  // namespace minka
