// Marks as modules carry them: opt-barriers with an attribute.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "minka/ir/step.h"

namespace minka {

// Of the opt-barrier that is a mark: its kind and number, "gradient 3". All of its operands have
// it, but of a loss's the first alone.
inline constexpr char kMarkAttribute[] = "minka.mark";

std::string MarkText(const Mark& mark);
// "loss" alone is "loss 0", too.
absl::StatusOr<Mark> ParseMark(std::string_view text);

}  // namespace minka
