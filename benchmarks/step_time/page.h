// The benchmark's table for people.
#pragma once

#include <string>

#include "nlohmann/json.hpp"

namespace minka {

// "24 programs, 20 at most as slow as the fastest of JAX, 23 within 5 %, worst gpt 2x256: 1.07".
std::string Summary(const nlohmann::ordered_json& rows);

// results.md of all rows.
std::string Page(const nlohmann::ordered_json& rows);

}  // namespace minka
