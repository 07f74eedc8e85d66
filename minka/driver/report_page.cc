#include "minka/driver/report_page.h"

#include <map>
#include <optional>
#include <span>
#include <utility>
#include <variant>

#include "fmt/format.h"
#include "minka/base/parallel.h"
#include "minka/base/status.h"
#include "minka/driver/predict_pipeline.h"
#include "minka/plan/plan_json.h"
#include "minka/report/format.h"
#include "minka/report/page.h"
#include "minka/report/pipeline_table.h"
#include "minka/report/tensors_of_plan.h"
#include "minka/simulator/mesh_memory.h"

namespace minka {
namespace {

// What takes less of the step than this shares an event with its neighbours.
constexpr double kLeastShare = 5e-4;

std::string_view TierName(MemoryTier tier) {
  return tier == MemoryTier::kCompiled ? "compiled" : "estimated";
}

// On the cluster's devices from `next` on, which are then those behind it.
PageMesh MeshOf(const Mesh& mesh, const Cluster& cluster, const std::string& prefix,
                int64_t& next) {
  PageMesh page{.mesh = mesh};
  if (cluster.device.memory_bytes > 0) page.device_memory_bytes = cluster.device.memory_bytes;
  for (int64_t i = 0; i < mesh.num_devices(); ++i, ++next) {
    page.devices.push_back(fmt::format("{}host {}, device {}", prefix,
                                       next / cluster.devices_per_host,
                                       next % cluster.devices_per_host));
  }
  return page;
}

// Meshes take the devices of their kind of hosts in their order.
std::vector<PageMesh> MeshesOf(const PlannedPipeline& planned, const std::vector<Cluster>& hosts) {
  const std::vector<Mesh> meshes = planned.meshes();
  const std::vector<int> kinds = planned.kinds();
  std::vector<int64_t> next(hosts.size());  // devices, by kind
  std::vector<PageMesh> pages;
  for (size_t mesh = 0; mesh < meshes.size(); ++mesh) {
    const Cluster& cluster = hosts[kinds[mesh]];
    const std::string prefix = hosts.size() > 1 ? cluster.device.name + ", " : "";
    pages.push_back(MeshOf(meshes[mesh], cluster, prefix, next[kinds[mesh]]));
    if (hosts.size() > 1) pages.back().device = cluster.device.name;
  }
  return pages;
}

std::string ClusterText(const Cluster& cluster) {
  return fmt::format("{}: {} x {} {}{}", cluster.name, cluster.num_hosts, cluster.devices_per_host,
                     cluster.device.name,
                     cluster.torus.sizes.empty()
                         ? ""
                         : fmt::format(", a torus of {}", fmt::join(cluster.torus.sizes, " x ")));
}

std::string CollectivesText(const Plan& plan) {
  std::string text;
  for (const auto& [kind, count] : plan.collectives) {
    const auto bytes = plan.collective_bytes.find(kind);
    text += fmt::format("{}{} {} ({})", text.empty() ? "" : ", ", count, kind,
                        FormatBytes(bytes == plan.collective_bytes.end() ? 0 : bytes->second));
  }
  return text.empty() ? "none" : text;
}

// A row of events one behind the other; short ones are joined.
class RowOfEvents {
 public:
  RowOfEvents(std::string name, double least_us) : least_us_(least_us) {
    row_.name = std::move(name);
  }

  void Add(const std::string& name, const std::string& category, double begin_us, double us) {
    if (us <= 0) return;
    const double end_us = begin_us + us;
    std::vector<TracedEvent>& events = row_.events;
    const bool joins = us < least_us_ && num_joined_ > 0 && events.back().category == category &&
                       begin_us - events.back().end_us < least_us_;
    if (!joins) {
      events.push_back({name, category, begin_us, end_us});
      num_joined_ = us < least_us_ ? 1 : 0;
      return;
    }
    events.back().name = fmt::format("{} short ones", ++num_joined_);
    events.back().end_us = end_us;
  }
  PageRow Take() { return std::move(row_); }

 private:
  const double least_us_;
  PageRow row_;
  int num_joined_ = 0;  // in the last event
};

// Operations and reshards in the order of the module.
std::vector<PageRow> EventsOf(const Step& prepared, const StagePlan& stage) {
  const Computation& entry = prepared.module.entry_computation();
  const double least_us = kLeastShare * stage.step_time_us;
  RowOfEvents computed("computation", least_us), sent("communication", least_us);
  double now_us = 0;
  size_t next = 0;
  const auto reshard = [&](InstructionId before) {
    for (; next < stage.reshards.size() && stage.reshards[next].before <= before; ++next) {
      const Reshard& at = stage.reshards[next];
      std::string kinds;
      bool is_collective = false;
      for (const ReshardStep& step : at.steps) {
        kinds += fmt::format("{}{}", kinds.empty() ? "" : ", ", ToString(step.kind));
        is_collective = is_collective || IsCollective(step.kind);
      }
      const std::string name = fmt::format("{} of {}", kinds, entry.instruction(at.value).name);
      (is_collective ? sent : computed)
          .Add(name, is_collective ? "collective" : "reshard", now_us, at.cost_us);
      now_us += at.cost_us;
    }
  };
  for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
    reshard(id);
    const Instruction& instruction = entry.instructions[id];
    const OpPlan& op = stage.ops[id];
    computed.Add(instruction.op_name.empty() ? instruction.name : instruction.op_name,
                 std::string(kPhaseNames[static_cast<int>(op.phase)]), now_us, op.cost_us);
    now_us += op.cost_us;
  }
  reshard(static_cast<InstructionId>(entry.num_instructions()));
  return {computed.Take(), sent.Take()};
}

TaskKind KindOfTask(ProgramKind kind) {
  switch (kind) {
    case ProgramKind::kForward:
      return TaskKind::kForward;
    case ProgramKind::kBackward:
      return TaskKind::kBackward;
    case ProgramKind::kWeightGradient:
      return TaskKind::kWeightGradient;
    case ProgramKind::kFront:
    case ProgramKind::kApply:
    case ProgramKind::kWhole:
      break;
  }
  return TaskKind::kApply;
}

// When the programs of a mesh run. Those that run once per step behind the micro-batches share the
// time of the task that applies; those in front of them take none of it.
std::vector<PageMemory> MemoryOverTime(const PipelineProgram& program, const MeshProgram& mesh,
                                       std::span<const int64_t> temporary_bytes,
                                       const std::vector<TimedTask>& tasks) {
  std::map<Task, TimedTask> timed;
  for (const TimedTask& task : tasks) timed[task.task] = task;
  std::vector<const RunInstruction*> runs;
  std::map<int, int> num_applied;  // by stage
  for (const PipelineInstruction& instruction : mesh.instructions) {
    const auto* const run = std::get_if<RunInstruction>(&instruction);
    if (run == nullptr) continue;
    runs.push_back(run);
    const StageProgram& of_stage = mesh.programs[run->program];
    if (of_stage.task.kind == ProgramKind::kApply) ++num_applied[of_stage.stage];
  }
  const std::vector<HeldMemory> held = MemoryOfRuns(program, mesh, temporary_bytes);
  std::vector<PageMemory> moments;
  std::map<int, int> applied;
  for (size_t i = 0; i < runs.size(); ++i) {
    const StageProgram& of_stage = mesh.programs[runs[i]->program];
    const ProgramKind kind = of_stage.task.kind;
    const auto found = timed.find(
        {KindOfTask(kind), of_stage.stage, IsPerMicroBatch(kind) ? runs[i]->micro_batch : 0});
    if (found == timed.end() || kind == ProgramKind::kFront) continue;
    PageMemory moment{.name = fmt::format("stage {} {}", of_stage.stage, ToString(of_stage.task)),
                      .begin_us = found->second.begin,
                      .end_us = found->second.end,
                      .held = held[i]};
    if (IsPerMicroBatch(kind)) {
      moment.name += fmt::format(" of micro-batch {}", runs[i]->micro_batch);
    } else if (kind == ProgramKind::kApply) {
      const double part_us = (moment.end_us - moment.begin_us) / num_applied[of_stage.stage];
      moment.begin_us += part_us * applied[of_stage.stage]++;
      moment.end_us = moment.begin_us + part_us;
    }
    moments.push_back(std::move(moment));
  }
  return moments;
}

std::vector<PageRow> RowsOf(const Timeline& timeline) {
  std::vector<PageRow> rows;
  for (size_t mesh = 0; mesh < timeline.meshes.size(); ++mesh) {
    PageRow& row = rows.emplace_back(PageRow{.name = fmt::format("mesh {}", mesh)});
    for (const TimedTask& timed : timeline.meshes[mesh]) {
      row.events.push_back({ToString(timed.task), std::string(TaskKindName(timed.task.kind)),
                            timed.begin, timed.end});
    }
  }
  return rows;
}

PageStage StageOf(const PlannedPipeline& planned, size_t number) {
  const PipelineStagePlan& stage = planned.plan.stages[number];
  PageStage page{.mesh_number = stage.mesh_number,
                 .layers = LayersText(stage.plan.stage.layers),
                 .facts = {{"forward of a micro-batch", FormatTime(stage.forward_us)},
                           {"backward", FormatTime(stage.backward_us)}},
                 .tensors = TensorsOfPlan(planned.staged.stages[number].step, stage.plan)};
  if (planned.schedule.splits_backward) {
    page.facts.push_back({"gradients of weights", FormatTime(stage.weight_gradient_us)});
  }
  page.facts.insert(page.facts.end(),
                    {{"apply", FormatTime(stage.apply_us)},
                     {"send up", FormatTime(stage.send_forward_us)},
                     {"send down", FormatTime(stage.send_backward_us)},
                     {"peak memory per device", FormatBytes(stage.plan.peak_memory_bytes)},
                     {"of it state", FormatBytes(stage.plan.state_bytes_per_device)},
                     {"collectives per step", CollectivesText(stage.plan)},
                     {"gap of its shardings", FormatPercent(stage.plan.sharding_gap)}});
  return page;
}

}  // namespace

std::string PageOfPlan(const Step& prepared, const Plan& plan, const Cluster& cluster) {
  int64_t first_device = 0;
  PageContents page{.title = prepared.module.name,
                    .meshes = {MeshOf(plan.stage.mesh, cluster, /*prefix=*/"", first_device)},
                    .predicted = EventsOf(prepared, plan.stage),
                    .notes = plan.notes};
  page.facts = {
      {"cluster", ClusterText(cluster)},
      {"mesh", plan.stage.mesh.ToString()},
      {"method", plan.method},
      {"step time, predicted",
       fmt::format("{} (cost model {})", FormatTime(plan.step_time_us), plan.cost_model)},
      {"peak memory per device",
       fmt::format("{} ({})", FormatBytes(plan.peak_memory_bytes), TierName(plan.memory_tier))},
      {"of it state", FormatBytes(plan.state_bytes_per_device)},
      {"parameters", FormatCount(plan.num_parameters)},
      {"micro-batches", fmt::to_string(plan.num_micro_batches)},
      {"collectives per step", CollectivesText(plan)}};
  if (!plan.remat.empty()) page.facts.push_back({"recomputed", FormatRemat(plan.remat)});
  page.search = {{"objective", FormatTime(plan.objective)},
                 {"lower bound", FormatTime(plan.lower_bound)},
                 {"gap of the shardings", FormatPercent(plan.sharding_gap)},
                 {"gap of the whole search", plan.gap ? FormatPercent(*plan.gap) : "not known"},
                 {"ended", plan.stop_reason},
                 {"search", fmt::format("{:.2f} s", plan.search_seconds)}};
  page.stages.push_back({.facts = {{"peak memory per device", FormatBytes(plan.peak_memory_bytes)}},
                         .tensors = TensorsOfPlan(prepared, plan)});
  return ReportPage(page);
}

absl::StatusOr<std::string> PageOfPipeline(const PlannedPipeline& planned,
                                           const std::vector<Cluster>& hosts,
                                           std::vector<std::vector<TracedEvent>> measured) {
  const PipelinePlan& plan = planned.plan;
  RETURN_IF_ERROR(CheckKinds(plan, static_cast<int>(hosts.size())));
  ASSIGN_OR_RETURN(const Timeline timeline, PredictTimeline(planned));
  const Platform platform = hosts.front().platform();  // of all kinds
  ASSIGN_OR_RETURN(const PipelineProgram program, LowerPipeline(planned, platform));
  if (!measured.empty() && measured.size() != program.meshes.size()) {
    return InvalidArgument("the trace has {} meshes, the plan {}", measured.size(),
                           program.meshes.size());
  }
  PageContents page{.title = planned.prepared.module.name,
                    .meshes = MeshesOf(planned, hosts),
                    .predicted = RowsOf(timeline),
                    .notes = plan.notes};
  std::vector<std::string> clusters;
  for (const Cluster& of_kind : hosts) clusters.push_back(ClusterText(of_kind));
  page.facts = {
      {"cluster", fmt::format("{}", fmt::join(clusters, "; "))},
      {"stages", fmt::format("{} on {} meshes", plan.stages.size(), page.meshes.size())},
      {"micro-batches", fmt::to_string(plan.num_micro_batches)},
      {"schedule", plan.schedule},
      {"step time, predicted",
       fmt::format("{} (cost model {})", FormatTime(plan.step_time_us), plan.cost_model)},
      {"bubble", FormatPercent(plan.bubble)},
      {"peak memory per device",
       fmt::format("{} ({})", FormatBytes(plan.peak_memory_bytes), TierName(plan.memory_tier))}};
  if (!plan.remat.empty()) page.facts.push_back({"recomputed", FormatRemat(plan.remat)});
  if (plan.lower_bound_us && plan.gap) {
    page.search = {{"lower bound", FormatTime(*plan.lower_bound_us)},
                   {"gap of the whole search", FormatPercent(*plan.gap)}};
  }
  page.search.emplace_back("search", fmt::format("{:.2f} s", plan.search_seconds));
  for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
    page.stages.push_back(StageOf(planned, stage));
  }
  const std::vector<std::vector<int64_t>> temporary =
      TemporariesOfPrograms(platform, planned, program, NumHardwareThreads());
  for (size_t mesh = 0; mesh < program.meshes.size(); ++mesh) {
    page.memory.push_back(
        MemoryOverTime(program, program.meshes[mesh], temporary[mesh], timeline.meshes[mesh]));
  }
  for (size_t mesh = 0; mesh < measured.size(); ++mesh) {
    page.measured.push_back({fmt::format("mesh {}", mesh), std::move(measured[mesh])});
  }
  return ReportPage(page);
}

}  // namespace minka
