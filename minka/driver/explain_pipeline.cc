#include "minka/driver/explain_pipeline.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "fmt/ranges.h"
#include "minka/base/status.h"
#include "minka/driver/mesh_shapes.h"
#include "minka/driver/plan_stage.h"
#include "minka/driver/predict_pipeline.h"
#include "minka/driver/request_in_rows.h"
#include "minka/report/format.h"
#include "minka/report/pipeline_comparison.h"
#include "minka/report/table.h"
#include "minka/report/tensors_of_plan.h"
#include "minka/schedule/generate.h"

namespace minka {
namespace {

// What the tasks of a stage take in a step.
double BusyTime(const PipelineStagePlan& stage, int num_micro_batches) {
  return num_micro_batches * (stage.forward_us + stage.backward_us + stage.weight_gradient_us) +
         stage.apply_us;
}

// The predicted step time of the pipeline with other times.
absl::StatusOr<double> StepTimeWith(const PlannedPipeline& planned,
                                    const std::function<void(PipelinePlan& plan)>& change) {
  PlannedPipeline changed{.schedule = planned.schedule, .plan = planned.plan};
  change(changed.plan);
  ASSIGN_OR_RETURN(const Timeline timeline, PredictTimeline(changed));
  return timeline.step_time;
}

void SendInNoTime(PipelinePlan& plan) {
  for (PipelineStagePlan& stage : plan.stages) {
    stage.send_forward_us = stage.send_backward_us = 0;
  }
}

void SpreadEvenly(PipelinePlan& plan) {
  for (double PipelineStagePlan::* const time :
       {&PipelineStagePlan::forward_us, &PipelineStagePlan::backward_us,
        &PipelineStagePlan::weight_gradient_us, &PipelineStagePlan::apply_us}) {
    double sum = 0;
    for (const PipelineStagePlan& stage : plan.stages) sum += stage.*time;
    for (PipelineStagePlan& stage : plan.stages) {
      stage.*time = sum / static_cast<double>(plan.stages.size());
    }
  }
}

// Of a step in which nothing waits: the busiest mesh alone, or all of them where they share cores.
double TimeWithoutWaits(const PlannedPipeline& planned) {
  std::vector<double> busy(planned.schedule.shape.num_meshes);
  for (const PipelineStagePlan& stage : planned.plan.stages) {
    busy[stage.mesh_number] += BusyTime(stage, planned.plan.num_micro_batches);
  }
  return planned.plan.meshes_share_cores ? std::accumulate(busy.begin(), busy.end(), 0.0)
                                         : *std::ranges::max_element(busy);
}

class PipelineExplainer {
 public:
  PipelineExplainer(const ExplainedPipeline& explained, const PlanRequest& request,
                    const OnExplained& on_explained)
      : name_(explained.name),
        planned_(explained.planned),
        plan_(planned_.plan),
        request_(request),
        on_explained_(on_explained),
        stages_(request) {}

  absl::StatusOr<std::string> Whole() {
    ASSIGN_OR_RETURN(const Timeline timeline, PredictTimeline(planned_));
    std::string text = fmt::format("{} as a pipeline: where the {} of a step go\n\n{}\n{}\n\n",
                                   planned_.prepared.module.name, FormatTime(plan_.step_time_us),
                                   MeshTable(timeline), LongestStage(timeline));
    ASSIGN_OR_RETURN(const std::string savings, SavingsTable());
    text += savings + "\n";
    std::vector<PipelineRow> rows = {AsPlanned()};
    RETURN_IF_ERROR(AddSubmeshes(rows));
    for (int stage = 0; stage + 1 < num_stages(); ++stage) RETURN_IF_ERROR(MoveBorder(stage, rows));
    RETURN_IF_ERROR(AddSchedules(rows));
    return text + "Pipelines next to it ('*': as planned):\n" + PipelineComparison(rows);
  }

  absl::StatusOr<std::string> OfStage(int stage) {
    const PipelineStagePlan& of_stage = plan_.stages[stage];
    const Mesh& mesh = of_stage.plan.stage.mesh;
    std::string text =
        fmt::format("stage {} of {}: layers {} on mesh {}, {}\n\n{}\n", stage,
                    planned_.prepared.module.name, LayersText(of_stage.plan.stage.layers),
                    of_stage.mesh_number, MeshText(of_stage), ProgramTable(stage));
    std::vector<PipelineRow> rows = {AsPlanned()};
    ASSIGN_OR_RETURN(
        const std::vector<Mesh> shapes,
        SubmeshShapes(request_.HostsOf(of_stage.kind), static_cast<int>(mesh.num_devices())));
    for (const Mesh& shape : shapes) {
      if (shape == mesh) continue;
      PipelineOptions options = AsItIs();
      options.meshes[of_stage.mesh_number] = shape;
      RETURN_IF_ERROR(Add(fmt::format("mesh {} is {}", of_stage.mesh_number, shape.ToString()),
                          std::move(options), rows));
    }
    if (stage > 0) RETURN_IF_ERROR(MoveBorder(stage - 1, rows));
    if (stage + 1 < num_stages()) RETURN_IF_ERROR(MoveBorder(stage, rows));
    return text + "Pipelines next to it ('*': as planned):\n" + PipelineComparison(rows);
  }

  absl::StatusOr<std::string> OfTensor(const std::optional<int>& stage, const std::string& glob) {
    return OfPinned(stage, [&](int candidate) {
      return FindParameter(plan_.stages[candidate].plan, Whose(stage), glob);
    });
  }

  absl::StatusOr<std::string> OfOperation(const std::optional<int>& stage,
                                          const std::string& glob) {
    std::string how_it_runs;
    const auto find = [&](int candidate) -> absl::StatusOr<PinnedTensor> {
      const minka::Plan& plan = plan_.stages[candidate].plan;
      ASSIGN_OR_RETURN(PinnedTensor tensor,
                       FindOperation(StepOf(candidate), plan, Whose(stage), glob));
      how_it_runs = OperationsText(StepOf(candidate), plan, tensor.name) + "\n";
      return tensor;
    };
    ASSIGN_OR_RETURN(const std::string table, OfPinned(stage, find));
    return how_it_runs + table;
  }

 private:
  int num_stages() const { return static_cast<int>(plan_.stages.size()); }
  const Step& StepOf(int stage) const { return planned_.staged.stages[stage].step; }

  std::string Whose(const std::optional<int>& stage) const {
    return stage ? fmt::format("stage {} of {}", *stage, name_) : name_;
  }

  // What was planned, as a request.
  PipelineOptions AsItIs() const {
    PipelineOptions options = request_.pipeline.value_or(PipelineOptions());
    options.layers = plan_.layers;
    options.num_stages = 0;
    options.stage_of_layer = plan_.stage_of_layer;
    options.meshes = planned_.meshes();
    options.kinds = planned_.kinds();
    options.submeshes.clear();
    options.shares.clear();
    options.schedule = plan_.schedule;
    return options;
  }

  // By other options of the pipeline, else as it is.
  absl::StatusOr<PlannedPipeline> Plan(const std::string& what, PipelineOptions options) {
    PlanRequest request = request_;
    request.pipeline = std::move(options);
    request.remat = plan_.remat;
    return Plan(what, request);
  }

  absl::StatusOr<PlannedPipeline> Plan(const std::string& what, const PlanRequest& request) {
    RETURN_IF_ERROR(CheckNotCancelled(request_));
    on_explained_(what);
    return PlanPipeline(planned_.split, request, stages_);
  }

  PipelineRow AsPlanned() const {
    return {.chosen = true, .what = "as planned", .figures = FiguresOf(plan_), .remark = ""};
  }

  absl::Status Add(const std::string& what, PipelineOptions options,
                   std::vector<PipelineRow>& rows) {
    const absl::StatusOr<PlannedPipeline> planned = Plan(what, std::move(options));
    if (absl::IsCancelled(planned.status())) return planned.status();
    rows.push_back({.what = what, .remark = Message(planned.status())});
    if (planned.ok()) rows.back().figures = FiguresOf(planned->plan);
    return absl::OkStatus();
  }

  std::string MeshTable(const Timeline& timeline) const {
    const std::vector<std::string> devices = planned_.devices();
    std::vector<Column> columns = {{"mesh", Align::kRight}, {"stages"}};
    if (!devices.empty()) columns.push_back({"devices"});
    columns.insert(columns.end(), {{"forward", Align::kRight},
                                   {"backward", Align::kRight},
                                   {"apply", Align::kRight},
                                   {"of it collectives", Align::kRight},
                                   {"waits", Align::kRight},
                                   {"memory/device", Align::kRight},
                                   {"of it state", Align::kRight},
                                   {"in flight", Align::kRight}});
    Table table(columns);
    const std::vector<MicroBatchesHeld> held = MostHeld(planned_.schedule);
    for (int mesh = 0; mesh < planned_.schedule.shape.num_meshes; ++mesh) {
      std::vector<int> stages;
      double forward = 0, backward = 0, apply = 0, collectives = 0;
      int64_t peak = 0, state = 0;
      for (int i = 0; i < num_stages(); ++i) {
        const PipelineStagePlan& stage = plan_.stages[i];
        if (stage.mesh_number != mesh) continue;
        stages.push_back(i);
        forward += plan_.num_micro_batches * stage.forward_us;
        backward += plan_.num_micro_batches * (stage.backward_us + stage.weight_gradient_us);
        apply += stage.apply_us;
        for (const auto& [kind, cost] : CostsByProgram(planned_.staged.stages[i], stage.plan.stage))
          collectives += cost.collectives_us;
        peak = stage.plan.peak_memory_bytes;  // of the whole mesh
        state += stage.plan.state_bytes_per_device;
      }
      std::vector<std::string> cells = {fmt::to_string(mesh),
                                        fmt::format("{}", fmt::join(stages, ","))};
      if (!devices.empty()) cells.push_back(devices[mesh]);
      cells.insert(cells.end(),
                   {FormatTime(forward), FormatTime(backward), FormatTime(apply),
                    FormatTime(collectives), FormatTime(timeline.idle[mesh]), FormatBytes(peak),
                    FormatBytes(state), fmt::to_string(held[mesh].in_flight)});
      table.Add(std::move(cells));
    }
    return table.ToString();
  }

  std::string LongestStage(const Timeline& timeline) const {
    int longest = 0;
    for (int stage = 1; stage < num_stages(); ++stage) {
      if (Busy(stage) > Busy(longest)) longest = stage;
    }
    const double idle = std::accumulate(timeline.idle.begin(), timeline.idle.end(), 0.0);
    return fmt::format(
        "The longest is stage {}: its tasks take {} of a step{}. The meshes wait for {} of their "
        "time.",
        longest, FormatTime(Busy(longest)),
        plan_.meshes_share_cores ? " alone, and longer beside others on the same cores" : "",
        FormatPercent(idle / (timeline.step_time * static_cast<double>(timeline.idle.size()))));
  }

  double Busy(int stage) const { return BusyTime(plan_.stages[stage], plan_.num_micro_batches); }

  // What a step would take if something cost nothing.
  absl::StatusOr<std::string> SavingsTable() {
    Table table({{"if"},
                 {"step time", Align::kRight},
                 {"change", Align::kRight},
                 {"memory/device", Align::kRight},
                 {"remark"}});
    const auto add = [&](const std::string& what, double step_time_us, int64_t bytes) {
      table.Add({what, FormatTime(step_time_us), ChangeText(step_time_us, plan_.step_time_us),
                 FormatBytes(bytes), ""});
    };
    const int64_t planned_bytes = plan_.peak_memory_bytes;
    ASSIGN_OR_RETURN(const double sent, StepTimeWith(planned_, SendInNoTime));
    add("meshes sent in no time", sent, planned_bytes);
    ASSIGN_OR_RETURN(const double even, StepTimeWith(planned_, SpreadEvenly));
    add("all stages took equally long", even, planned_bytes);
    if (plan_.meshes_share_cores) {
      ASSIGN_OR_RETURN(const double apart, StepTimeWith(planned_, [](PipelinePlan& plan) {
                         plan.meshes_share_cores = false;
                       }));
      add("each mesh had cores of its own", apart, planned_bytes);
    }
    add("no mesh waited for another", TimeWithoutWaits(planned_), planned_bytes);
    const auto add_planned = [&](const std::string& what,
                                 const PlanRequest& request) -> absl::Status {
      const absl::StatusOr<PlannedPipeline> planned = Plan(what, request);
      if (absl::IsCancelled(planned.status())) return planned.status();
      if (planned.ok()) {
        add(what, planned->plan.step_time_us, planned->plan.peak_memory_bytes);
      } else {
        table.Add({what, "-", "-", "-", Message(planned.status())});
      }
      return absl::OkStatus();
    };
    PlanRequest request = request_;
    request.pipeline = AsItIs();
    request.remat = plan_.remat;
    request.micro_batches.num_micro_batches *= 2;
    RETURN_IF_ERROR(add_planned(
        fmt::format("there were {} micro-batches", request.micro_batches.num_micro_batches),
        request));
    if (request_.has_memory_limit() || !plan_.remat.empty()) {
      request = request_;
      request.pipeline = AsItIs();
      request.remat = RematChoice();
      request.LiftMemoryLimit();
      RETURN_IF_ERROR(add_planned("memory had no limit, and nothing were recomputed", request));
    }
    return table.ToString();
  }

  // The partings of the devices, each with the layers that suit it.
  absl::Status AddSubmeshes(std::vector<PipelineRow>& rows) {
    PlanRequest request = request_;
    request.pipeline = AsItIs();
    request.pipeline->stage_of_layer.clear();
    request.pipeline->meshes.clear();
    request.pipeline->kinds.clear();
    if (request_.pipeline) request.pipeline->shares = request_.pipeline->shares;
    request.pipeline->stage_search.clear();
    const absl::StatusOr<PlannedPipeline> planned = Plan("other numbers of stages", request);
    if (absl::IsCancelled(planned.status())) return planned.status();
    if (!planned.ok()) {
      rows.push_back({.what = "other stages", .remark = Message(planned.status())});
      return absl::OkStatus();
    }
    std::vector<int> sizes;
    for (const Mesh& mesh : rows.front().figures->meshes) {
      sizes.push_back(static_cast<int>(mesh.num_devices()));
    }
    for (const TriedSubmeshes& tried : planned->tried) {
      const bool is_planned = tried.num_devices == sizes && tried.figures &&
                              tried.devices == planned_.devices() &&
                              tried.figures->num_layers == rows.front().figures->num_layers;
      if (is_planned) continue;
      rows.push_back(RowOf(tried));
      rows.back().chosen = false;
      if (tried.figures) rows.back().remark.clear();
    }
    return absl::OkStatus();
  }

  // The last layer of the stage to the next one, and the first layer of that one to the stage.
  absl::Status MoveBorder(int stage, std::vector<PipelineRow>& rows) {
    const std::vector<int>& now = plan_.stage_of_layer;
    const auto next = std::ranges::find(now, stage + 1);
    const auto layer = static_cast<int>(next - now.begin());
    for (const auto& [moved, to] : {std::pair(layer - 1, stage + 1), std::pair(layer, stage)}) {
      if (std::ranges::count(now, now[moved]) == 1) continue;  // nothing would be left
      PipelineOptions options = AsItIs();
      options.stage_of_layer[moved] = to;
      RETURN_IF_ERROR(
          Add(fmt::format("layer {} on stage {}", moved, to), std::move(options), rows));
    }
    return absl::OkStatus();
  }

  // Those that do something else with these stages.
  absl::Status AddSchedules(std::vector<PipelineRow>& rows) {
    for (const ScheduleKind& kind : ScheduleKinds()) {
      if (kind.trains != planned_.schedule.trains) continue;
      const absl::StatusOr<Schedule> other = MakeSchedule(kind.name, planned_.schedule.shape);
      if (!other.ok() || other->tasks == planned_.schedule.tasks) continue;
      PipelineOptions options = AsItIs();
      options.schedule = kind.name;
      RETURN_IF_ERROR(Add(fmt::format("schedule {}", kind.name), std::move(options), rows));
    }
    return absl::OkStatus();
  }

  std::string ProgramTable(int stage) const {
    Table table({{"program"},
                 {"per step", Align::kRight},
                 {"of it collectives", Align::kRight},
                 {"runs", Align::kRight}});
    for (const auto& [kind, cost] :
         CostsByProgram(planned_.staged.stages[stage], plan_.stages[stage].plan.stage)) {
      table.Add({std::string(ProgramKindName(kind)), FormatTime(cost.us),
                 FormatTime(cost.collectives_us),
                 fmt::to_string(IsPerMicroBatch(kind) ? plan_.num_micro_batches : 1)});
    }
    return table.ToString();
  }

  template <typename Find>
  absl::StatusOr<std::string> OfPinned(const std::optional<int>& stage, const Find& find) {
    const int last = stage.value_or(num_stages() - 1);
    for (int candidate = stage.value_or(0); candidate <= last; ++candidate) {
      const absl::StatusOr<PinnedTensor> tensor = find(candidate);
      if (tensor.ok()) return OfSharding(candidate, *tensor);
      if (candidate == last) return tensor.status();
    }
    return NotFound("{} has no stages", name_);
  }

  absl::StatusOr<std::string> OfSharding(int stage, const PinnedTensor& tensor) {
    const Mesh& mesh = plan_.stages[stage].plan.stage.mesh;
    PlanRequest request = request_;
    request.pipeline = AsItIs();
    request.remat = plan_.remat;
    request.search.pins = PinsOnOthers(planned_.prepared, tensor.name, request.search.pins);
    request.pipeline->stage_search.resize(num_stages());
    std::vector<std::string>& pins = request.pipeline->stage_search[stage].pins;
    const std::vector<std::string> other_pins = PinsOnOthers(StepOf(stage), tensor.name, pins);
    const auto plan_with = [&](const std::string& pin) -> absl::StatusOr<PinnedFigures> {
      pins = other_pins;
      pins.push_back(pin);
      ASSIGN_OR_RETURN(const PlannedPipeline planned, Plan("plan with " + pin, request));
      const PipelineStagePlan& pinned = planned.plan.stages[stage];
      return PinnedFigures{.step_time_us = planned.plan.step_time_us,
                           .stage_time_us = BusyTime(pinned, plan_.num_micro_batches),
                           .peak_memory_bytes = pinned.plan.peak_memory_bytes,
                           .state_bytes = pinned.plan.state_bytes_per_device};
    };
    ASSIGN_OR_RETURN(const std::string table, TableOfShardings(tensor, mesh, plan_with));
    return fmt::format(
        "The best plans of stage {} on mesh {}, {}, with {} pinned ('*': as planned):\n{}", stage,
        plan_.stages[stage].mesh_number, mesh.ToString(), tensor.name, table);
  }

  const std::string name_;
  const PlannedPipeline& planned_;
  const PipelinePlan& plan_;
  const PlanRequest& request_;
  const OnExplained& on_explained_;
  StagePlanner stages_;
};

}  // namespace

absl::StatusOr<std::string> ExplainPipeline(const ExplainedPipeline& explained,
                                            const PlanRequest& request,
                                            const ExplainQuestion& question,
                                            const OnExplained& on_explained) {
  const auto num_stages = static_cast<int>(explained.planned.plan.stages.size());
  if (question.stage && (*question.stage < 0 || *question.stage >= num_stages)) {
    return InvalidArgument("there is no stage {}: there are stages 0 to {}", *question.stage,
                           num_stages - 1);
  }
  RETURN_IF_ERROR(CheckKinds(explained.planned.plan, request.num_kinds()));
  const StepRows& rows = explained.planned.split.rows;
  ASSIGN_OR_RETURN(const PlanRequest in_rows, RequestInRows(request, explained.step, rows));
  PipelineExplainer explainer(explained, in_rows, on_explained);
  if (!question.operation.empty()) {
    return explainer.OfOperation(question.stage, question.operation);
  }
  if (!question.tensor.empty()) {
    return explainer.OfTensor(question.stage, GlobInRows(question.tensor, explained.step, rows));
  }
  return question.stage ? explainer.OfStage(*question.stage) : explainer.Whole();
}

}  // namespace minka
