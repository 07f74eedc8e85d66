#include "minka/solver/reduce/binding_times.h"

#include <algorithm>

namespace minka {
namespace {

struct Event {
  int64_t time;
  bool starts;
  int64_t bytes;  // change of the largest total
};

}  // namespace

std::vector<int64_t> BindingTimes(std::span<const UsageBounds> usages, int64_t limit_bytes) {
  std::vector<Event> events;
  for (const UsageBounds& usage : usages) {
    if (usage.interval.end <= usage.interval.begin || usage.largest_bytes == 0) continue;
    events.push_back({usage.interval.begin, true, usage.largest_bytes});
    events.push_back({usage.interval.end, false, -usage.largest_bytes});
  }
  std::ranges::sort(events, {}, &Event::time);
  std::vector<int64_t> times;
  int64_t largest = 0;
  bool grown = false;
  for (size_t i = 0; i < events.size();) {
    const int64_t time = events[i].time;
    const int64_t largest_before = largest;
    bool starts = false;
    bool ends = false;
    for (; i < events.size() && events[i].time == time; ++i) {
      largest += events[i].bytes;
      starts |= events[i].starts;
      ends |= !events[i].starts;
    }
    // The live set just before an end is maximal if something started since the last end.
    if (ends && grown && largest_before > limit_bytes) times.push_back(time - 1);
    if (ends) grown = false;
    grown |= starts;
  }
  return times;
}

TimeRange RangeOfTimes(std::span<const int64_t> times, TimeInterval interval) {
  const auto position = [&](int64_t time) {
    return static_cast<int32_t>(std::ranges::lower_bound(times, time) - times.begin());
  };
  return {position(interval.begin), std::max(position(interval.begin), position(interval.end))};
}

}  // namespace minka
