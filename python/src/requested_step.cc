#include "requested_step.h"

#include <algorithm>
#include <utility>

#include "jax_step.h"
#include "minka/base/status.h"

namespace minka {
namespace {

absl::StatusOr<bool> IsPipeline(const ParallelizeRequest& request) {
  if (request.plan_path.empty()) return request.method == "pipeline";
  ASSIGN_OR_RETURN(const std::string json, ReadFile(request.plan_path));
  ASSIGN_OR_RETURN(const PlannedPreparation planned, PlannedPreparationOf(json));
  return !planned.stage_of_layer.empty();
}

// What a glob on names of the given step matches of the planned one, too, and what it does not.
struct Matches {
  bool same = false;          // parameters, or rows of some
  bool without_rows = false;  // of stacked parameters whose rows it does not match
};

Matches MatchesOf(std::string_view glob, const Step& given, const StepRows& rows) {
  Matches matches;
  for (size_t i = 0; i < given.parameters.size(); ++i) {
    const std::string& name = given.parameters[i].name;
    if (!MatchesGlob(glob, name)) continue;
    const bool has_rows = rows.parameters[i].size() > 1;
    (has_rows && !MatchesGlob(glob, RowName(name, 0)) ? matches.without_rows : matches.same) = true;
  }
  return matches;
}

std::vector<std::string> PinsOfRows(const std::vector<std::string>& pins, const Step& given,
                                    const StepRows& rows) {
  std::vector<std::string> of_rows;
  for (const std::string& pin : pins) {
    const size_t end = std::min(pin.rfind('='), pin.size());  // without one it is refused later
    const std::string glob = pin.substr(0, end);
    const Matches matches = MatchesOf(glob, given, rows);
    if (matches.same || !matches.without_rows) of_rows.push_back(pin);
    if (matches.without_rows) of_rows.push_back(RowGlob(glob) + pin.substr(end));
  }
  return of_rows;
}

}  // namespace

std::string GlobOfRows(const std::string& glob, const Step& given, const StepRows& rows) {
  const Matches matches = MatchesOf(glob, given, rows);
  return matches.without_rows && !matches.same ? RowGlob(glob) : glob;
}

absl::StatusOr<RequestedStep> StepOfRequest(const ParallelizeRequest& request) {
  RequestedStep step{.request = request};
  ASSIGN_OR_RETURN(step.given, StepOfJax(request.hlo, request.description));
  ASSIGN_OR_RETURN(const bool is_pipeline, IsPipeline(request));
  if (!is_pipeline) {
    step.planned = {step.given, WholeRows(step.given)};
    return step;
  }
  ASSIGN_OR_RETURN(step.planned, SplitStacks(step.given));
  step.request.pins = PinsOfRows(request.pins, step.given, step.planned.rows);
  for (std::string& start : step.request.layer_starts) {
    start = GlobOfRows(start, step.given, step.planned.rows);
  }
  return step;
}

}  // namespace minka
