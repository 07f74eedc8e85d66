#include "minka/driver/explain.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "minka/base/status.h"
#include "minka/driver/mesh_shapes.h"
#include "minka/report/comparison.h"
#include "minka/report/format.h"
#include "minka/report/table.h"
#include "minka/report/tensors_of_plan.h"

namespace minka {
namespace {

// Every sharding of the shape in which each axis splits at most one dimension, replicated first.
void AddShardings(const Shape& shape, const Mesh& mesh, int axis, const Sharding& sharding,
                  std::vector<Sharding>& out) {
  if (axis == mesh.num_axes()) {
    if (Validate(sharding, shape, mesh).ok()) out.push_back(sharding);
    return;
  }
  AddShardings(shape, mesh, axis + 1, sharding, out);
  for (int dim = 0; dim < shape.rank() && mesh.size(axis) > 1; ++dim) {
    Sharding split = sharding;
    split.dims[dim].PushMinor(axis);
    AddShardings(shape, mesh, axis + 1, split, out);
  }
}

absl::StatusOr<std::string> ExplainSharding(const ExplainedPlan& explained, PlanRequest request,
                                            const PinnedTensor& tensor,
                                            const OnExplained& on_explained) {
  const Mesh& mesh = explained.plan.stage.mesh;
  request.meshes = {mesh};
  const std::vector<std::string> other_pins =
      PinsOnOthers(explained.step, tensor.name, request.search.pins);
  const auto plan_with = [&](const std::string& pin) -> absl::StatusOr<PinnedFigures> {
    RETURN_IF_ERROR(CheckNotCancelled(request));
    request.search.pins = other_pins;
    request.search.pins.push_back(pin);
    on_explained("plan with " + pin);
    ASSIGN_OR_RETURN(const PlanResult result, PlanStep(explained.step, request));
    const Plan& best = result.candidates[result.best].plan;
    return PinnedFigures{.step_time_us = best.step_time_us,
                         .peak_memory_bytes = best.peak_memory_bytes,
                         .state_bytes = best.state_bytes_per_device};
  };
  ASSIGN_OR_RETURN(const std::string table, TableOfShardings(tensor, mesh, plan_with));
  return fmt::format("The best plans on mesh {} with {} pinned ('*': as planned):\n{}",
                     mesh.ToString(), tensor.name, table);
}

// All of the cluster, among them the mesh by its own names.
std::vector<Mesh> ShapesBeside(const Mesh& mesh, const Cluster& cluster) {
  const auto has_sizes = [&](const Mesh& other) {
    bool is_equal = other.num_axes() == mesh.num_axes();
    for (int axis = 0; is_equal && axis < mesh.num_axes(); ++axis) {
      is_equal = other.size(axis) == mesh.size(axis);
    }
    return is_equal;
  };
  std::vector<Mesh> shapes = MeshShapes(cluster);
  const auto found = std::ranges::find_if(shapes, has_sizes);
  if (found == shapes.end()) {
    shapes.push_back(mesh);
  } else {
    *found = mesh;
  }
  return shapes;
}

absl::StatusOr<std::string> ExplainOnEveryMesh(const ExplainedPlan& explained, PlanRequest request,
                                               const OnExplained& on_explained) {
  request.meshes = ShapesBeside(explained.plan.stage.mesh, request.cluster);
  request.on_progress = [&](const std::string& what, double, double) { on_explained(what); };
  ASSIGN_OR_RETURN(const PlanResult result, PlanStep(explained.step, request));
  std::vector<ComparisonRow> rows;
  for (const PlanCandidate& candidate : result.candidates) {
    rows.push_back({.method = std::string(MethodName(candidate.method)),
                    .mesh = candidate.mesh.ToString(),
                    .plan = candidate.status.ok() ? &candidate.plan : nullptr,
                    .fits = candidate.fits,
                    .chosen = candidate.mesh == explained.plan.stage.mesh,
                    .why_not = Message(candidate.status)});
  }
  return fmt::format("The best plans on every mesh of {} devices ('*': as planned):\n{}",
                     request.cluster.num_devices(), ComparisonTable(rows));
}

}  // namespace

std::vector<std::string> PinsOnOthers(const Step& step, const std::string& tensor,
                                      const std::vector<std::string>& pins) {
  std::vector<std::string> others;
  for (const std::string& pin : pins) {
    const size_t cut = pin.rfind('=');
    const std::string glob = pin.substr(0, cut);
    if (!MatchesGlob(glob, tensor)) {
      others.push_back(pin);
      continue;
    }
    std::set<std::string> names;
    for (const ParameterInfo& info : step.parameters) names.insert(info.name);
    for (const ResultInfo& info : step.results) {
      if (info.role != ResultRole::kState) names.insert(info.name);
    }
    names.erase(tensor);
    for (const std::string& name : names) {
      if (MatchesGlob(glob, name)) others.push_back(name + pin.substr(cut));
    }
  }
  return others;
}

absl::StatusOr<PinnedTensor> FindParameter(const Plan& plan, std::string_view whose,
                                           const std::string& glob) {
  for (const ParameterPlan& parameter : plan.parameters) {
    if (!MatchesGlob(glob, parameter.name)) continue;
    return PinnedTensor{parameter.name, parameter.shape, parameter.sharding};
  }
  return NotFound("no parameter of {} matches {}", whose, glob);
}

absl::StatusOr<PinnedTensor> FindOperation(const Step& prepared, const Plan& plan,
                                           std::string_view whose, const std::string& glob) {
  for (const TensorOnMesh& tensor : TensorsOfPlan(prepared, plan)) {
    if (tensor.kind != TensorKind::kActivation) continue;
    if (!MatchesGlob(glob, tensor.name) && !MatchesGlob(glob, tensor.path)) continue;
    return PinnedTensor{tensor.name, tensor.shape, tensor.sharding};
  }
  return NotFound("no operation of {} matches {}", whose, glob);
}

std::string ChangeText(double us, double planned_us) {
  const double change = us - planned_us;
  // What rounding leaves of the same.
  if (std::abs(change) < 1e-9 * planned_us) return "+0 us";
  return fmt::format("{}{}", change < 0 ? "-" : "+", FormatTime(std::abs(change)));
}

absl::StatusOr<std::string> TableOfShardings(
    const PinnedTensor& tensor, const Mesh& mesh,
    const std::function<absl::StatusOr<PinnedFigures>(const std::string& pin)>& plan_with) {
  std::vector<Sharding> shardings;
  AddShardings(tensor.shape, mesh, 0, Sharding::Replicated(tensor.shape.rank()), shardings);
  std::vector<absl::StatusOr<PinnedFigures>> figures;
  std::optional<double> planned_us;
  bool has_stages = false;
  for (const Sharding& sharding : shardings) {
    figures.push_back(plan_with(fmt::format("{}={}", tensor.name, ToString(sharding, mesh))));
    if (absl::IsCancelled(figures.back().status())) return figures.back().status();
    if (!figures.back().ok()) continue;
    if (sharding == tensor.sharding) planned_us = figures.back()->step_time_us;
    has_stages = has_stages || figures.back()->stage_time_us.has_value();
  }
  std::vector<Column> columns = {
      {""}, {tensor.name}, {"step time", Align::kRight}, {"change", Align::kRight}};
  if (has_stages) columns.push_back({"of the stage", Align::kRight});
  columns.insert(columns.end(),
                 {{"peak memory", Align::kRight}, {"state", Align::kRight}, {"remark"}});
  Table table(columns);
  for (size_t i = 0; i < shardings.size(); ++i) {
    std::vector<std::string> cells = {shardings[i] == tensor.sharding ? "*" : "",
                                      ToString(shardings[i], mesh)};
    if (!figures[i].ok()) {
      cells.resize(columns.size() - 1, "-");
      cells.push_back(Message(figures[i].status()));
      table.Add(std::move(cells));
      continue;
    }
    const PinnedFigures& of_plan = *figures[i];
    cells.push_back(FormatTime(of_plan.step_time_us));
    cells.push_back(planned_us ? ChangeText(of_plan.step_time_us, *planned_us) : "");
    if (has_stages) cells.push_back(FormatTime(of_plan.stage_time_us.value_or(0)));
    cells.push_back(FormatBytes(of_plan.peak_memory_bytes));
    cells.push_back(FormatBytes(of_plan.state_bytes));
    cells.emplace_back();
    table.Add(std::move(cells));
  }
  return table.ToString();
}

absl::StatusOr<std::string> Explain(const ExplainedPlan& explained, const PlanRequest& request,
                                    const ExplainQuestion& question,
                                    const OnExplained& on_explained) {
  if (question.stage) {
    return InvalidArgument("{} is the plan of one mesh; it has no stage {}", explained.name,
                           *question.stage);
  }
  if (!question.operation.empty()) {
    ASSIGN_OR_RETURN(const PinnedTensor tensor, FindOperation(explained.prepared, explained.plan,
                                                              explained.name, question.operation));
    ASSIGN_OR_RETURN(const std::string text,
                     ExplainSharding(explained, request, tensor, on_explained));
    return OperationsText(explained.prepared, explained.plan, tensor.name) + "\n" + text;
  }
  if (question.tensor.empty()) return ExplainOnEveryMesh(explained, request, on_explained);
  ASSIGN_OR_RETURN(const PinnedTensor tensor,
                   FindParameter(explained.plan, explained.name, question.tensor));
  return ExplainSharding(explained, request, tensor, on_explained);
}

}  // namespace minka
