#include "minka/solver/model/way.h"

namespace minka {
namespace {

constexpr std::array<std::string_view, kNumWays> kWayNames = {
    "sweeps",  "decoding", "least_memory", "trees",   "neighbourhoods", "whole_core", "elimination",
    "regions", "pruning",  "likely",       "probing", "branching",      "shortening"};

}  // namespace

std::string_view WayName(Way way) { return kWayNames[static_cast<int>(way)]; }

std::optional<Way> WayOfName(std::string_view name) {
  for (int i = 0; i < kNumWays; ++i) {
    if (kWayNames[i] == name) return static_cast<Way>(i);
  }
  return std::nullopt;
}

WayRecord& WayRecord::operator+=(const WayRecord& other) {
  num_runs += other.num_runs;
  work += other.work;
  num_gains += other.num_gains;
  gained += other.gained;
  return *this;
}

WayRecords& WayRecords::operator+=(const WayRecords& other) {
  for (int i = 0; i < kNumWays; ++i) records_[i] += other.records_[i];
  return *this;
}

}  // namespace minka
