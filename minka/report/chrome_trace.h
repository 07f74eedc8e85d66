// A step as chrome://tracing and Perfetto show it, and back.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/simulator/timeline.h"

namespace minka {

// What a mesh did in a measured step, in microseconds.
struct TracedEvent {
  std::string name, category;
  double begin_us = 0, end_us = 0;
  bool operator==(const TracedEvent&) const = default;
};

// A row per mesh, an event per task as it is predicted. `measured`, by mesh: the same of a step
// that ran, below it; it begins at 0.
std::string ChromeTrace(const Timeline& timeline,
                        const std::vector<std::vector<TracedEvent>>& measured = {});

// The measured events of a ChromeTrace, by mesh. InvalidArgument says what is wrong with the text,
// or that nothing in it was measured.
absl::StatusOr<std::vector<std::vector<TracedEvent>>> MeasuredEvents(std::string_view chrome_trace);

}  // namespace minka
