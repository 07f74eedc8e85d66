// What the benchmark's rows say together.
#pragma once

#include <string>

#include "nlohmann/json.hpp"

namespace minka {

// predicted / measured - 1, what was measured taken for a machine as fast as it was when it was
// profiled.
double TimeErrorOf(const nlohmann::ordered_json& row);

// `rows` as measurement.h lists their fields. `before`: name -> predicted / measured - 1 of an
// earlier version, for a column of its own; empty: none.
std::string PredictionTable(const nlohmann::ordered_json& rows,
                            const nlohmann::ordered_json& before);

// What was estimated and what was compiled, for rows with or without times.
std::string MemoryTable(const nlohmann::ordered_json& rows);

// name -> TimeErrorOf.
nlohmann::ordered_json ErrorsOf(const nlohmann::ordered_json& rows);

}  // namespace minka
