#include "minka/driver/predict_pipeline.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "minka/analysis/xla_cpu_memory.h"
#include "minka/base/parallel.h"
#include "minka/base/status.h"
#include "minka/cost/cross_mesh_load.h"
#include "minka/driver/plan_stage.h"
#include "minka/planner/intra_op/memory_estimate.h"
#include "minka/simulator/mesh_memory.h"

namespace minka {
namespace {

Sharding SentSharding(const PlannedPipeline& planned, const StagePort& from) {
  const Module& module = planned.staged.stages[from.stage].step.module;
  const StagePlan& plan = planned.plan.stages[from.stage].plan.stage;
  return VersionSharding(module, plan, module.entry_computation().results[from.number],
                         plan.result_versions[from.number]);
}

Sharding ReceivedSharding(const PlannedPipeline& planned, const StagePort& to) {
  const Module& module = planned.staged.stages[to.stage].step.module;
  return VersionSharding(module, planned.plan.stages[to.stage].plan.stage,
                         {module.entry_computation().parameters[to.number]}, /*version=*/0);
}

// Meshes lie one behind the other on the hosts of their kind.
class LoadsOfMeshes {
 public:
  LoadsOfMeshes(const PlanRequest& request, const PlannedPipeline& planned)
      : request_(request), meshes_(planned.meshes()), kinds_(planned.kinds()) {
    std::vector<int64_t> num_used(request.num_kinds());  // devices by kind
    for (size_t mesh = 0; mesh < meshes_.size(); ++mesh) {
      first_device_.push_back(num_used[kinds_[mesh]]);
      num_used[kinds_[mesh]] += meshes_[mesh].num_devices();
    }
  }

  CrossMeshLoad Between(int from, int to) const { return {Placed(from), Placed(to)}; }

 private:
  PlacedMesh Placed(int mesh) const {
    return {request_.HostsOf(kinds_[mesh]), meshes_[mesh], first_device_[mesh]};
  }

  const PlanRequest& request_;
  std::vector<Mesh> meshes_;
  std::vector<int> kinds_;             // by mesh
  std::vector<int64_t> first_device_;  // by mesh, of its kind
};

// What a stage sends up and down the pipeline is on its way to every mesh at once.
void SetSendTimes(const PlanRequest& request, PlannedPipeline& out) {
  const LoadsOfMeshes loads_of_meshes(request, out);
  struct Way {
    int stage = 0;
    bool is_up = false;
    int to_mesh = 0;
    auto operator<=>(const Way&) const = default;
  };
  std::map<Way, CrossMeshLoad> loads;
  for (const Border& border : out.staged.borders) {
    // A step of one micro-batch sends all once.
    if (!border.per_micro_batch && out.plan.num_micro_batches > 1) continue;
    const int stage = border.from.stage, from = out.plan.stages[stage].mesh_number;
    for (const StagePort& port : border.to) {
      const int to = out.plan.stages[port.stage].mesh_number;
      if (to == from) continue;
      const auto [way, is_new] =
          loads.try_emplace({stage, port.stage > stage, to}, loads_of_meshes.Between(from, to));
      way->second.Add(border.shape, SentSharding(out, border.from), ReceivedSharding(out, port));
    }
  }
  for (PipelineStagePlan& stage : out.plan.stages) {
    stage.send_forward_us = stage.send_backward_us = 0;
  }
  for (const auto& [way, load] : loads) {
    PipelineStagePlan& stage = out.plan.stages[way.stage];
    double& send_us = way.is_up ? stage.send_forward_us : stage.send_backward_us;
    send_us = std::max(send_us, load.Us());
  }
}

std::vector<PlannedTransfers> TransfersOf(const PlanRequest& request,
                                          const PlannedPipeline& planned) {
  const LoadsOfMeshes loads_of_meshes(request, planned);
  std::map<std::tuple<int, int, bool>, PlannedTransfers> found;
  for (const Border& border : planned.staged.borders) {
    const int from = planned.schedule.MeshOf(border.from.stage);
    std::set<int> meshes;
    for (const StagePort& port : border.to) {
      const int to = planned.schedule.MeshOf(port.stage);
      PlannedTransfers& transfers = found[{from, to, border.per_micro_batch}];
      transfers.from_mesh = from;
      transfers.to_mesh = to;
      transfers.per_micro_batch = border.per_micro_batch;
      if (meshes.insert(to).second) ++transfers.num_values;
      const int num_messages = border.per_micro_batch ? planned.plan.num_micro_batches : 1;
      transfers.num_messages += num_messages;
      CrossMeshLoad load = loads_of_meshes.Between(from, to);
      load.Add(border.shape, SentSharding(planned, border.from), ReceivedSharding(planned, port));
      transfers.bytes += num_messages * load.tile_bytes();
    }
  }
  std::vector<PlannedTransfers> out;
  for (const auto& [key, transfers] : found) out.push_back(transfers);
  return out;
}

}  // namespace

void SetTaskTimes(const StageStep& staged, int num_micro_batches, PipelineStagePlan& stage) {
  for (const auto& [kind, cost] : CostsByProgram(staged, stage.plan.stage)) {
    switch (kind) {
      case ProgramKind::kForward:
        stage.forward_us += cost.us / num_micro_batches;
        break;
      case ProgramKind::kBackward:
        stage.backward_us += cost.us / num_micro_batches;
        break;
      case ProgramKind::kWeightGradient:
        stage.weight_gradient_us += cost.us / num_micro_batches;
        break;
      case ProgramKind::kFront:
      case ProgramKind::kApply:
      case ProgramKind::kWhole:
        stage.apply_us += cost.us;
        break;
    }
  }
}

std::map<ProgramTask, int64_t> TemporariesOf(const StageStep& staged, const StagePlan& plan,
                                             Platform platform) {
  std::map<ProgramTask, int> numbers;
  std::vector<int> programs;
  for (const ProgramTask& task : staged.tasks) {
    const auto number = static_cast<int>(numbers.size());
    programs.push_back(numbers.try_emplace(task, number).first->second);
  }
  const std::vector<int64_t> bytes = EstimateTemporaries(
      StepFacts(staged.step, platform), plan, programs, static_cast<int>(numbers.size()));
  std::map<ProgramTask, int64_t> temporaries;
  for (const auto& [task, number] : numbers) temporaries[task] = bytes[number];
  return temporaries;
}

std::vector<std::vector<int64_t>> TemporariesOfPrograms(Platform platform,
                                                        const PlannedPipeline& planned,
                                                        const PipelineProgram& program,
                                                        int num_threads) {
  const auto num_stages = static_cast<int>(planned.plan.stages.size());
  std::vector<std::map<ProgramTask, int64_t>> of_stages(num_stages);
  if (platform != Platform::kCpu) {
    ForEachInParallel(num_stages, num_threads, [&](int stage) {
      of_stages[stage] = TemporariesOf(planned.staged.stages[stage],
                                       planned.plan.stages[stage].plan.stage, platform);
    });
  }
  std::vector<std::vector<int64_t>> temporary;
  std::vector<std::pair<size_t, size_t>> programs;  // mesh, number
  for (const MeshProgram& mesh : program.meshes) {
    for (size_t number = 0; number < mesh.programs.size(); ++number)
      programs.emplace_back(temporary.size(), number);
    temporary.emplace_back(mesh.programs.size());
  }
  ForEachInParallel(static_cast<int>(programs.size()), num_threads, [&](int i) {
    const auto& [mesh, number] = programs[i];
    const StageProgram& of_stage = program.meshes[mesh].programs[number];
    if (platform != Platform::kCpu) {
      const std::map<ProgramTask, int64_t>& of_tasks = of_stages[of_stage.stage];
      const auto of_task = of_tasks.find(of_stage.task);
      if (of_task != of_tasks.end()) temporary[mesh][number] = of_task->second;
      return;
    }
    const XlaCpuMemory memory = XlaCpuMemoryOf(of_stage.module);
    temporary[mesh][number] =
        memory.upper_bound_bytes() - memory.argument_bytes - memory.output_bytes;
  });
  return temporary;
}

std::map<ProgramKind, ProgramCost> CostsByProgram(const StageStep& staged, const StagePlan& plan) {
  const MicroLoop loop = FindMicroLoop(staged.step.module);
  std::map<ProgramKind, ProgramCost> costs;
  for (size_t id = 0; id < plan.ops.size(); ++id) {
    costs[staged.tasks[id].kind].us += plan.ops[id].cost_us;
  }
  for (const Reshard& reshard : plan.reshards) {
    const bool at_end = reshard.before == static_cast<InstructionId>(plan.ops.size());
    const bool with_producer = at_end || PartOf(loop, reshard) == LoopPart::kFront;
    const InstructionId id = with_producer ? reshard.value.instruction : reshard.before;
    ProgramCost& cost = costs[staged.tasks[id].kind];
    cost.us += reshard.cost_us;
    const bool is_local = std::ranges::none_of(
        reshard.steps, [](const ReshardStep& step) { return IsCollective(step.kind); });
    if (!is_local) cost.collectives_us += reshard.cost_us;
  }
  return costs;
}

void SetMemory(const PipelineProgram& program,
               std::span<const std::vector<int64_t>> temporary_bytes, PipelinePlan& plan) {
  plan.peak_memory_bytes = 0;
  for (size_t mesh = 0; mesh < program.meshes.size(); ++mesh) {
    const int64_t peak = PeakMemory(program, program.meshes[mesh], temporary_bytes[mesh]);
    plan.peak_memory_bytes = std::max(plan.peak_memory_bytes, peak);
    for (PipelineStagePlan& stage : plan.stages) {
      if (stage.mesh_number != static_cast<int>(mesh)) continue;
      stage.plan.peak_memory_bytes = stage.plan.stage.peak_memory_bytes = peak;
    }
  }
}

absl::StatusOr<Timeline> PredictTimeline(const PlannedPipeline& planned) {
  return PredictTimeline(planned.schedule, planned.plan);
}

absl::StatusOr<Timeline> PredictTimeline(const Schedule& schedule, const PipelinePlan& plan) {
  const auto send = [&plan](const Task& from, const Task&) {
    const PipelineStagePlan& stage = plan.stages[from.stage];
    return from.kind == TaskKind::kForward ? stage.send_forward_us : stage.send_backward_us;
  };
  const auto time = [&plan](const Task& task) {
    const PipelineStagePlan& stage = plan.stages[task.stage];
    switch (task.kind) {
      case TaskKind::kForward:
        return stage.forward_us;
      case TaskKind::kBackward:
        return stage.backward_us;
      case TaskKind::kWeightGradient:
        return stage.weight_gradient_us;
      case TaskKind::kApply:
        break;
    }
    return stage.apply_us;
  };
  return Simulate(schedule,
                  {.task = time, .transfer = send, .meshes_share_cores = plan.meshes_share_cores});
}

bool MeshesShareCores(const PlanRequest& request) {
  const Cluster& cluster = request.cluster;
  return request.num_kinds() == 1 && cluster.shared_compute_pool && cluster.num_hosts == 1;
}

absl::Status PredictPipeline(const PlanRequest& request, PlannedPipeline& planned) {
  PipelinePlan& plan = planned.plan;
  for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
    SetTaskTimes(planned.staged.stages[stage], plan.num_micro_batches, plan.stages[stage]);
  }
  SetSendTimes(request, planned);
  plan.meshes_share_cores = MeshesShareCores(request);
  ASSIGN_OR_RETURN(const Timeline timeline, PredictTimeline(planned));
  plan.step_time_us = timeline.step_time;
  const double idle = std::accumulate(timeline.idle.begin(), timeline.idle.end(), 0.0);
  const double all = timeline.step_time * static_cast<double>(timeline.idle.size());
  plan.bubble = all > 0 ? idle / all : 0;
  plan.transfers = TransfersOf(request, planned);
  const Platform platform = request.cluster.platform();  // of all kinds
  ASSIGN_OR_RETURN(const PipelineProgram program, LowerForMemory(planned, platform));
  SetMemory(program,
            TemporariesOfPrograms(platform, planned, program, NumSearchThreads(request.search)),
            plan);
  return absl::OkStatus();
}

}  // namespace minka
