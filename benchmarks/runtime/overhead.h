// What the runtime itself costs: pipelines whose programs are as good as empty, on workers and in
// one process.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace minka {

// "run, 4 workers": lists of one kind, and "1f1b, 4 workers", a small training step.
std::vector<std::string> OverheadNames();

// A row; see kOverheadHeader for what it has. `binary`: of minka.
absl::StatusOr<nlohmann::ordered_json> MeasureOverhead(const std::string& name,
                                                       const std::string& binary, int num_rounds);

std::string OverheadTableRow(const nlohmann::ordered_json& row);

inline constexpr char kOverheadHeader[] =
    "| lists | per instruction: workers | one process | bare launch | CPU | per step: workers | "
    "one "
    "process |\n|---|---|---|---|---|---|---|\n";

}  // namespace minka
