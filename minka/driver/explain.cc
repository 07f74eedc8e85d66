#include "minka/driver/explain.h"

#include <set>
#include <utility>
#include <vector>

#include "minka/base/status.h"
#include "minka/driver/prepare.h"
#include "minka/report/format.h"
#include "minka/report/table.h"

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

// The pins on everything but the parameter: one that names others, too, is written out.
std::vector<std::string> PinsOnOthers(const Step& step, const std::string& parameter,
                                      const std::vector<std::string>& pins) {
  std::vector<std::string> others;
  for (const std::string& pin : pins) {
    const size_t cut = pin.rfind('=');
    const std::string glob = pin.substr(0, cut);
    if (!MatchesGlob(glob, parameter)) {
      others.push_back(pin);
      continue;
    }
    std::set<std::string> names;
    for (const ParameterInfo& info : step.parameters) names.insert(info.name);
    for (const ResultInfo& info : step.results) {
      if (info.role != ResultRole::kState) names.insert(info.name);
    }
    names.erase(parameter);
    for (const std::string& name : names) {
      if (MatchesGlob(glob, name)) others.push_back(name + pin.substr(cut));
    }
  }
  return others;
}

}  // namespace

absl::StatusOr<int> FindParameter(const Plan& plan, std::string_view whose,
                                  const std::string& glob) {
  for (size_t i = 0; i < plan.parameters.size(); ++i) {
    if (MatchesGlob(glob, plan.parameters[i].name)) return static_cast<int>(i);
  }
  return NotFound("no parameter of {} matches {}", whose, glob);
}

absl::StatusOr<std::string> ExplainParameter(
    const Step& step, PlanRequest request, const Plan& plan, int parameter,
    const std::function<void(const std::string& pin)>& on_plan) {
  const ParameterPlan& explained = plan.parameters[parameter];
  const Mesh& mesh = plan.stage.mesh;
  request.meshes = {mesh};
  const std::vector<std::string> other_pins =
      PinsOnOthers(step, explained.name, request.search.pins);
  std::vector<Sharding> shardings;
  AddShardings(explained.shape, mesh, 0, Sharding::Replicated(explained.shape.rank()), shardings);
  Table table({{""},
               {explained.name},
               {"step time", Align::kRight},
               {"peak memory", Align::kRight},
               {"state", Align::kRight},
               {"remark"}});
  for (const Sharding& sharding : shardings) {
    RETURN_IF_ERROR(CheckNotCancelled(request));
    const std::string text = ToString(sharding, mesh);
    request.search.pins = other_pins;
    request.search.pins.push_back(fmt::format("{}={}", explained.name, text));
    on_plan(fmt::format("{} = {}", explained.name, text));
    const auto result = PlanStep(step, request);
    const std::string mark = sharding == explained.sharding ? "*" : "";
    if (!result.ok()) {
      table.Add({mark, text, "-", "-", "-", Message(result.status())});
      continue;
    }
    const Plan& best = result->candidates[result->best].plan;
    table.Add({mark, text, FormatTime(best.step_time_us), FormatBytes(best.peak_memory_bytes),
               FormatBytes(best.state_bytes_per_device), ""});
  }
  return table.ToString();
}

}  // namespace minka
