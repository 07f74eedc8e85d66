// JSON from outside: every reader takes its text through here.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace minka {

// Deep enough for every document of minka; what recurses over a value (copies, dump) has stack for
// it.
inline constexpr int kMaxJsonDepth = 100;

// The value that `text` spells. Refused, with the reason and without an exception: text that is not
// JSON, numbers beyond a double, a key given twice in one object (the last would win unseen), and
// values nested deeper than kMaxJsonDepth.
absl::StatusOr<nlohmann::ordered_json> ParseJson(std::string_view text);

}  // namespace minka
