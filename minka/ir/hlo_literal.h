// Constants at the border: XLA's LiteralProto and its text form.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "minka/ir/hlo.pb.h"
#include "minka/ir/literal.h"
#include "minka/ir/text_cursor.h"

namespace minka {

// An array literal whose shape was checked (hlo_shape.h); in any layout. Sizes of data and shape
// are compared. `proto` keeps its value; it is mutable for uniform access to its fields.
absl::StatusOr<Literal> LiteralFromProto(hlo::LiteralProto& proto);
hlo::LiteralProto LiteralToProto(const Literal& literal);

// "{ { 1, 2 }, { 3, nan } }"; floats with as many digits as they need to parse back.
std::string LiteralText(const Literal& literal);
absl::StatusOr<Literal> ParseLiteral(TextCursor& cursor, const Shape& shape);

}  // namespace minka
