#include "minka/driver/request_in_rows.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "minka/base/status.h"
#include "minka/ir/row_name.h"

namespace minka {
namespace {

// What a glob on names of the given step matches of the one with rows, too, and what it does not.
struct Matches {
  bool same = false;          // parameters, or rows of some
  bool without_rows = false;  // of stacked parameters whose rows it does not match
  std::string stack;          // the first that is stacked; empty: none
};

Matches MatchesOf(std::string_view glob, const Step& given, const StepRows& rows) {
  Matches matches;
  for (size_t i = 0; i < given.parameters.size(); ++i) {
    const std::string& name = given.parameters[i].name;
    if (!MatchesGlob(glob, name)) continue;
    const bool has_rows = rows.parameters[i].size() > 1;
    if (has_rows && matches.stack.empty()) matches.stack = name;
    (has_rows && !MatchesGlob(glob, RowName(name, 0)) ? matches.without_rows : matches.same) = true;
  }
  return matches;
}

// Where the first dimension of "=[data,-]" ends.
size_t EndOfFirst(std::string_view sharding) {
  return std::min(sharding.find_first_of(",]"), sharding.size());
}

bool SplitsRows(std::string_view sharding) {
  return sharding.substr(0, EndOfFirst(sharding)).find_first_not_of("=[- ") !=
         std::string_view::npos;
}

absl::StatusOr<std::vector<std::string>> PinsInRows(const std::vector<std::string>& pins,
                                                    const Step& given, const StepRows& rows) {
  std::vector<std::string> in_rows;
  for (const std::string& pin : pins) {
    const size_t end = std::min(pin.rfind('='), pin.size());  // without one it is refused later
    const std::string glob = pin.substr(0, end), sharding = pin.substr(end);
    const Matches matches = MatchesOf(glob, given, rows);
    if (!matches.stack.empty() && SplitsRows(sharding)) {
      return InvalidArgument(
          "pin \"{}\" splits dimension 0 of {}, which counts its layers; in a pipeline each layer "
          "lies on its stage: pin {}=[-{}",
          pin, matches.stack, glob, sharding.substr(EndOfFirst(sharding)));
    }
    if (matches.same || !matches.without_rows) in_rows.push_back(pin);
    if (matches.without_rows) in_rows.push_back(RowGlob(glob) + sharding);
  }
  return in_rows;
}

}  // namespace

absl::StatusOr<PlanRequest> RequestInRows(PlanRequest request, const Step& given,
                                          const StepRows& rows) {
  ASSIGN_OR_RETURN(request.search.pins, PinsInRows(request.search.pins, given, rows));
  if (!request.pipeline) return request;
  for (StageSearchOptions& stage : request.pipeline->stage_search) {
    ASSIGN_OR_RETURN(stage.pins, PinsInRows(stage.pins, given, rows));
  }
  if (auto* const layers = std::get_if<ManualLayers>(&request.pipeline->layers)) {
    for (std::string& start : layers->starts) start = GlobInRows(start, given, rows);
  }
  return request;
}

std::string GlobInRows(const std::string& glob, const Step& given, const StepRows& rows) {
  const Matches matches = MatchesOf(glob, given, rows);
  return matches.without_rows && !matches.same ? RowGlob(glob) : glob;
}

}  // namespace minka
