#include "minka/driver/predict_pipeline.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "minka/analysis/xla_cpu_memory.h"
#include "minka/base/status.h"
#include "minka/planner/intra_op/memory_estimate.h"
#include "minka/simulator/mesh_memory.h"

namespace minka {
namespace {

// What it takes to bring so many bytes from one mesh to another: every device of the smaller mesh
// sends or receives its part, over the links within a host where both meshes lie in one.
double TransferTime(const Cluster& cluster, double bytes, int64_t num_devices, bool within_host) {
  const Link& link = within_host ? cluster.intra_host : cluster.inter_host;
  double us = bytes / (static_cast<double>(num_devices) * link.bytes_per_us);
  if (!within_host && cluster.host_network_bytes_per_us > 0) {
    us = std::max(us, bytes / cluster.host_network_bytes_per_us);
  }
  return link.latency_us + us;
}

void SetSendTimes(const Cluster& cluster, PlannedPipeline& out) {
  std::vector<int64_t> first_device = {0};  // by mesh, and behind the last
  for (const Mesh& mesh : out.meshes()) {
    first_device.push_back(first_device.back() + mesh.num_devices());
  }
  const auto host = [&](int64_t device) { return device / cluster.devices_per_host; };
  const auto time = [&](int from, int to, double bytes) {
    if (bytes == 0 || from == to) return 0.0;
    const auto devices = [&](int mesh) { return first_device[mesh + 1] - first_device[mesh]; };
    const int64_t first = std::min(first_device[from], first_device[to]);
    const int64_t last = std::max(first_device[from + 1], first_device[to + 1]) - 1;
    return TransferTime(cluster, bytes, std::min(devices(from), devices(to)),
                        host(first) == host(last));
  };
  std::vector<double> up(out.plan.stages.size()), down(out.plan.stages.size());
  for (const Border& border : out.staged.borders) {
    // A step of one micro-batch sends all once.
    if (!border.per_micro_batch && out.plan.num_micro_batches > 1) continue;
    for (const StagePort& to : border.to) {
      const auto bytes = static_cast<double>(border.shape.num_bytes());
      (to.stage > border.from.stage ? up : down)[border.from.stage] += bytes;
    }
  }
  const auto num_stages = static_cast<int>(out.plan.stages.size());
  for (int i = 0; i < num_stages; ++i) {
    PipelineStagePlan& stage = out.plan.stages[i];
    const int next = out.plan.stages[std::min(i + 1, num_stages - 1)].mesh_number;
    const int before = out.plan.stages[std::max(i - 1, 0)].mesh_number;
    stage.send_forward_us = time(stage.mesh_number, next, up[i]);
    stage.send_backward_us = time(stage.mesh_number, before, down[i]);
  }
}

// What the plan predicts of its operations and reshards, by the program that they run in.
void SetTaskTimes(const StageStep& staged, int num_micro_batches, PipelineStagePlan& stage) {
  const auto time_of = [&](ProgramKind kind) -> double& {
    switch (kind) {
      case ProgramKind::kForward:
        return stage.forward_us;
      case ProgramKind::kBackward:
        return stage.backward_us;
      case ProgramKind::kWeightGradient:
        return stage.weight_gradient_us;
      case ProgramKind::kFront:
      case ProgramKind::kApply:
      case ProgramKind::kWhole:
        break;
    }
    return stage.apply_us;
  };
  const StagePlan& plan = stage.plan.stage;
  for (size_t id = 0; id < plan.ops.size(); ++id) {
    time_of(staged.tasks[id].kind) += plan.ops[id].cost_us;
  }
  for (const PlannedCollective& collective : ListCollectives(staged.step.module, plan)) {
    if (collective.reshards.empty()) continue;  // in its operation's costs
    const Reshard& reshard = plan.reshards[collective.reshards.front()];
    const bool at_end = reshard.before == static_cast<InstructionId>(plan.ops.size());
    const InstructionId id = at_end ? reshard.value.instruction : reshard.before;
    time_of(staged.tasks[id].kind) += collective.cost_us * static_cast<double>(collective.runs);
  }
  stage.forward_us /= num_micro_batches;
  stage.backward_us /= num_micro_batches;
  stage.weight_gradient_us /= num_micro_batches;
}

std::vector<PlannedTransfers> TransfersOf(const PlannedPipeline& planned) {
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
      transfers.bytes += num_messages * border.shape.num_bytes();
    }
  }
  std::vector<PlannedTransfers> out;
  for (const auto& [key, transfers] : found) out.push_back(transfers);
  return out;
}

// What each program of a stage holds besides its arguments and results.
std::map<ProgramTask, int64_t> TemporariesOf(const StageStep& staged, const StagePlan& plan) {
  std::map<ProgramTask, int> numbers;
  std::vector<int> programs;
  for (const ProgramTask& task : staged.tasks) {
    const auto number = static_cast<int>(numbers.size());
    programs.push_back(numbers.try_emplace(task, number).first->second);
  }
  const std::vector<int64_t> bytes =
      EstimateTemporaries(StepFacts(staged.step), plan, programs, static_cast<int>(numbers.size()));
  std::map<ProgramTask, int64_t> temporaries;
  for (const auto& [task, number] : numbers) temporaries[task] = bytes[number];
  return temporaries;
}

// As PlanStep estimates a mesh's memory: XLA:CPU is imitated, other compilers are not.
absl::Status EstimatePipelineMemory(const Cluster& cluster, PlannedPipeline& out) {
  ASSIGN_OR_RETURN(const PipelineProgram program, LowerPipeline(out));
  std::vector<std::map<ProgramTask, int64_t>> of_stages;
  if (cluster.device.name != kCpuDevice) {
    for (size_t stage = 0; stage < out.plan.stages.size(); ++stage) {
      of_stages.push_back(
          TemporariesOf(out.staged.stages[stage], out.plan.stages[stage].plan.stage));
    }
  }
  std::vector<std::vector<int64_t>> temporary;
  for (const MeshProgram& mesh : program.meshes) {
    temporary.emplace_back();
    for (const StageProgram& of_stage : mesh.programs) {
      if (!of_stages.empty()) {
        temporary.back().push_back(of_stages[of_stage.stage][of_stage.task]);
        continue;
      }
      const XlaCpuMemory memory = XlaCpuMemoryOf(of_stage.module);
      temporary.back().push_back(memory.upper_bound_bytes() - memory.argument_bytes -
                                 memory.output_bytes);
    }
  }
  SetMemory(program, temporary, out.plan);
  return absl::OkStatus();
}

}  // namespace

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
  const auto send = [&planned](const Task& from, const Task&) {
    const PipelineStagePlan& stage = planned.plan.stages[from.stage];
    return from.kind == TaskKind::kForward ? stage.send_forward_us : stage.send_backward_us;
  };
  const auto time = [&planned](const Task& task) {
    const PipelineStagePlan& stage = planned.plan.stages[task.stage];
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
  return Simulate(
      planned.schedule,
      {.task = time, .transfer = send, .meshes_share_cores = planned.plan.meshes_share_cores});
}

absl::Status PredictPipeline(const Cluster& cluster, PlannedPipeline& planned) {
  PipelinePlan& plan = planned.plan;
  for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
    SetTaskTimes(planned.staged.stages[stage], plan.num_micro_batches, plan.stages[stage]);
  }
  SetSendTimes(cluster, planned);
  plan.meshes_share_cores = cluster.shared_compute_pool && cluster.num_hosts == 1;
  ASSIGN_OR_RETURN(const Timeline timeline, PredictTimeline(planned));
  plan.step_time_us = timeline.step_time;
  const double idle = std::accumulate(timeline.idle.begin(), timeline.idle.end(), 0.0);
  const double all = timeline.step_time * static_cast<double>(timeline.idle.size());
  plan.bubble = all > 0 ? idle / all : 0;
  plan.transfers = TransfersOf(planned);
  return EstimatePipelineMemory(cluster, planned);
}

}  // namespace minka
