// How near two workers with a core each come to what the schedule allows: the step time of a GPT
// whose halves are equal, against that which the schedule would take if every task took as long as
// it does when its worker runs nothing else.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/cost/calibration.h"
#include "nlohmann/json.hpp"

namespace minka {

std::vector<std::string> BubbleNames();  // "1f1b, 8 micro-batches"

// A row, to which AddSlowdown adds; `calibration` is for the predicted time. `binary`: of minka.
absl::StatusOr<nlohmann::ordered_json> MeasureBubble(const std::string& name,
                                                     const std::string& binary,
                                                     const Calibration& calibration,
                                                     int num_rounds);

// The cores are slower than when they were profiled by this factor.
void AddSlowdown(double slowdown, nlohmann::ordered_json& row);

std::string BubbleTableRow(const nlohmann::ordered_json& row);

inline constexpr char kBubbleHeader[] =
    "| schedule | step | schedule alone | of it | predicted | slowdown | over measured | bubble | "
    "stage 1 / 0 |\n|---|---|---|---|---|---|---|---|---|\n";

}  // namespace minka
