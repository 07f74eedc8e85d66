#include "minka/report/chrome_trace.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "fmt/format.h"
#include "minka/base/status.h"
#include "nlohmann/json.hpp"

namespace minka {
namespace {

using Json = nlohmann::ordered_json;

// Numbers of processes in the trace.
constexpr int kPredicted = 0, kMeasured = 1;
// Rows that a trace may have: more than there are meshes anywhere.
constexpr int64_t kMaxRows = 4096;

bool IsMeasured(const Json& event) {
  return event.is_object() && event.value("ph", Json()) == "X" &&
         event.value("pid", Json()) == kMeasured;
}

absl::StatusOr<double> TimeOf(const Json& event, const char* field) {
  const Json value = event.value(field, Json());
  if (value.is_number() && value.get<double>() >= 0 && std::isfinite(value.get<double>())) {
    return value.get<double>();
  }
  return InvalidArgument("an event of the trace has \"{}\": {}, which is no time in microseconds",
                         field, value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

absl::StatusOr<std::string> TextOf(const Json& event, const char* field) {
  const Json value = event.value(field, Json());
  if (value.is_string()) return value.get<std::string>();
  return InvalidArgument("an event of the trace has no \"{}\"", field);
}

}  // namespace

std::string ChromeTrace(const Timeline& timeline,
                        const std::vector<std::vector<TracedEvent>>& measured) {
  auto events = nlohmann::ordered_json::array();
  const auto name_row = [&](const char* kind, int process, size_t thread, const std::string& name) {
    events.push_back({{"name", kind},
                      {"ph", "M"},
                      {"pid", process},
                      {"tid", thread},
                      {"args", {{"name", name}}}});
  };
  const auto add = [&](int process, size_t thread, const TracedEvent& event) {
    events.push_back({{"name", event.name},
                      {"cat", event.category},
                      {"ph", "X"},
                      {"ts", event.begin_us},
                      {"dur", event.end_us - event.begin_us},
                      {"pid", process},
                      {"tid", thread}});
  };
  if (!measured.empty()) {
    name_row("process_name", kPredicted, 0, "predicted");
    name_row("process_name", kMeasured, 0, "measured");
  }
  for (size_t mesh = 0; mesh < timeline.meshes.size(); ++mesh) {
    name_row("thread_name", kPredicted, mesh, fmt::format("mesh {}", mesh));
    for (const TimedTask& timed : timeline.meshes[mesh]) {
      add(kPredicted, mesh,
          {ToString(timed.task), std::string(TaskKindName(timed.task.kind)), timed.begin,
           timed.end});
    }
  }
  double start = std::numeric_limits<double>::infinity();
  for (const std::vector<TracedEvent>& of_mesh : measured) {
    for (const TracedEvent& event : of_mesh) start = std::min(start, event.begin_us);
  }
  for (size_t mesh = 0; mesh < measured.size(); ++mesh) {
    name_row("thread_name", kMeasured, mesh, fmt::format("mesh {}", mesh));
    for (TracedEvent event : measured[mesh]) {
      event.begin_us -= start;
      event.end_us -= start;
      add(kMeasured, mesh, event);
    }
  }
  return nlohmann::ordered_json{{"traceEvents", std::move(events)}}.dump() + "\n";
}

absl::StatusOr<std::vector<std::vector<TracedEvent>>> MeasuredEvents(
    std::string_view chrome_trace) {
  const Json trace = Json::parse(chrome_trace, /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (!trace.is_object() || !trace.contains("traceEvents") || !trace["traceEvents"].is_array()) {
    return InvalidArgument("this is no trace: a JSON object with \"traceEvents\" is wanted");
  }
  std::vector<std::vector<TracedEvent>> meshes;
  for (const Json& event : trace["traceEvents"]) {
    if (!IsMeasured(event)) continue;
    const Json row = event.value("tid", Json());
    if (!row.is_number_integer() || row.get<int64_t>() < 0 || row.get<int64_t>() >= kMaxRows) {
      return InvalidArgument("an event of the trace has no mesh (\"tid\")");
    }
    TracedEvent out;
    ASSIGN_OR_RETURN(out.name, TextOf(event, "name"));
    ASSIGN_OR_RETURN(out.category, TextOf(event, "cat"));
    ASSIGN_OR_RETURN(out.begin_us, TimeOf(event, "ts"));
    ASSIGN_OR_RETURN(const double us, TimeOf(event, "dur"));
    out.end_us = out.begin_us + us;
    if (!std::isfinite(out.end_us)) return InvalidArgument("an event of the trace never ends");
    const auto mesh = static_cast<size_t>(row.get<int64_t>());
    if (mesh >= meshes.size()) meshes.resize(mesh + 1);
    meshes[mesh].push_back(std::move(out));
  }
  if (meshes.empty()) {
    return InvalidArgument(
        "nothing in the trace was measured: `minka run --trace` writes one that was");
  }
  return meshes;
}

}  // namespace minka
