// Shapes at the border: XLA's ShapeProto, in which tuples nest, and its text form.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "minka/ir/hlo.pb.h"
#include "minka/ir/shape.h"
#include "minka/ir/text_cursor.h"

namespace minka {

constexpr int32_t kTuplePrimitiveType = 13;
constexpr int kMaxTupleDepth = 32;

inline bool IsTuple(const hlo::ShapeProto& shape) {
  return shape.element_type() == kTuplePrimitiveType;
}

// Known types, sizes that are not negative and whose product in bytes fits into 62 bits, layouts
// that are permutations, tuples no deeper than kMaxTupleDepth. What follows trusts this.
absl::Status CheckShape(const hlo::ShapeProto& shape);

Shape ArrayShape(const hlo::ShapeProto& array);
int64_t NumLeaves(const hlo::ShapeProto& shape);
// The arrays of a shape, depth first.
std::vector<Shape> Leaves(const hlo::ShapeProto& shape);
// Equal up to layouts.
bool SameShape(const hlo::ShapeProto& a, const hlo::ShapeProto& b);
// Row-major, or without layout at all.
bool HasDefaultLayout(const hlo::ShapeProto& array);

hlo::ShapeProto ArrayShapeProto(const Shape& shape);
hlo::ShapeProto TupleShapeProto(std::span<const Shape> shapes);

// "(f32[2,3]{0,1}, s32[])": layouts only where they are not the default.
std::string ShapeText(const hlo::ShapeProto& shape);
// Reads it, with checks as CheckShape and the default layout where none is said.
absl::StatusOr<hlo::ShapeProto> ParseShape(TextCursor& cursor);

}  // namespace minka
