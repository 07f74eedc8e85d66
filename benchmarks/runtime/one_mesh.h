// What it costs that one mesh runs in a worker: its step time there, against that of the same
// program in this process.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace minka {

std::vector<std::string> OneMeshNames();  // "one mesh, gpt-tiny"

// A row. `binary`: of minka.
absl::StatusOr<nlohmann::ordered_json> MeasureOneMesh(const std::string& name,
                                                      const std::string& binary, int num_rounds);

std::string OneMeshTableRow(const nlohmann::ordered_json& row);

inline constexpr char kOneMeshHeader[] =
    "| program | in process | in a worker | over in process |\n|---|---|---|---|\n";

}  // namespace minka
