#include "minka/ir/hlo_shape.h"

#include <algorithm>

#include "fmt/ranges.h"
#include "minka/base/status.h"

namespace minka {
namespace {

constexpr int64_t kMaxArrayBytes = int64_t{1} << 62;

bool IsPermutation(const google::protobuf::RepeatedField<int64_t>& list, int rank) {
  if (list.size() != rank) return false;
  std::vector<bool> seen(rank);
  for (const int64_t dim : list) {
    if (dim < 0 || dim >= rank || seen[dim]) return false;
    seen[dim] = true;
  }
  return true;
}

absl::Status CheckArray(const hlo::ShapeProto& shape) {
  const int32_t number = shape.element_type();
  const auto type = static_cast<ElementType>(number);
  if (number <= 0 || number > 0xff || TypeName(type) == "invalid") {
    return InvalidArgument("element type {} is unknown", number);
  }
  int64_t bytes = std::max<int64_t>(1, ElementBytes(type));
  for (const int64_t size : shape.dimensions()) {
    if (size < 0) return InvalidArgument("dimension size {} is negative", size);
    // A zero elsewhere must not hide sizes whose product overflows.
    if (size > 0 && bytes > kMaxArrayBytes / size) {
      return InvalidArgument("{}[{}] has too many elements", TypeName(type),
                             fmt::join(shape.dimensions(), ","));
    }
    bytes *= std::max<int64_t>(1, size);
  }
  for (const bool dynamic : shape.is_dynamic_dimension()) {
    if (dynamic) return InvalidArgument("dimensions of unknown size are not supported");
  }
  if (shape.layout().minor_to_major_size() > 0 &&
      !IsPermutation(shape.layout().minor_to_major(), shape.dimensions_size())) {
    return InvalidArgument("layout {{{}}} is no permutation of {} dimensions",
                           fmt::join(shape.layout().minor_to_major(), ","),
                           shape.dimensions_size());
  }
  return absl::OkStatus();
}

absl::Status CheckShapeAtDepth(const hlo::ShapeProto& shape, int depth) {
  if (!IsTuple(shape)) return CheckArray(shape);
  if (depth >= kMaxTupleDepth) {
    return InvalidArgument("tuples are nested more than {} deep", kMaxTupleDepth);
  }
  for (const hlo::ShapeProto& element : shape.tuple_shapes()) {
    RETURN_IF_ERROR(CheckShapeAtDepth(element, depth + 1));
  }
  return absl::OkStatus();
}

void AppendLeaves(const hlo::ShapeProto& shape, std::vector<Shape>& leaves) {
  if (!IsTuple(shape)) {
    leaves.push_back(ArrayShape(shape));
    return;
  }
  for (const hlo::ShapeProto& element : shape.tuple_shapes()) AppendLeaves(element, leaves);
}

void AppendText(const hlo::ShapeProto& shape, std::string& text) {
  if (!IsTuple(shape)) {
    text += ToString(ArrayShape(shape));
    if (!HasDefaultLayout(shape)) {
      text += fmt::format("{{{}}}", fmt::join(shape.layout().minor_to_major(), ","));
    }
    return;
  }
  text += '(';
  for (int i = 0; i < shape.tuple_shapes_size(); ++i) {
    if (i > 0) text += ", ";
    AppendText(shape.tuple_shapes(i), text);
  }
  text += ')';
}

// Tokens and opaque values must not have a layout.
void SetDefaultLayout(hlo::ShapeProto& array) {
  if (ElementBytes(static_cast<ElementType>(array.element_type())) == 0) return;
  array.mutable_layout()->clear_minor_to_major();
  for (int dim = array.dimensions_size() - 1; dim >= 0; --dim) {
    array.mutable_layout()->add_minor_to_major(dim);
  }
}

// The layout in braces; its tiles and memory space, after ':', are stepped over.
absl::Status ParseLayout(TextCursor& cursor, hlo::ShapeProto& array) {
  array.mutable_layout()->clear_minor_to_major();
  RETURN_IF_ERROR(cursor.Expect("{"));
  while (!cursor.LooksAt("}") && !cursor.LooksAt(":")) {
    ASSIGN_OR_RETURN(const int64_t dim, cursor.Integer());
    array.mutable_layout()->add_minor_to_major(dim);
    if (!cursor.Consume(",")) break;
  }
  if (cursor.Consume(":")) {
    while (!cursor.AtEnd() && !cursor.LooksAt("}")) cursor.set_position(cursor.position() + 1);
  }
  return cursor.Expect("}");
}

absl::StatusOr<hlo::ShapeProto> ParseArray(TextCursor& cursor) {
  ASSIGN_OR_RETURN(const std::string name, cursor.Name());
  const auto type = ParseType(name);
  if (!type) return cursor.Error("'{}' is no element type", name);
  hlo::ShapeProto array;
  array.set_element_type(static_cast<int32_t>(*type));
  RETURN_IF_ERROR(cursor.Expect("["));
  while (!cursor.Consume("]")) {
    ASSIGN_OR_RETURN(const int64_t size, cursor.Integer());
    array.add_dimensions(size);
    if (!cursor.LooksAt("]")) RETURN_IF_ERROR(cursor.Expect(","));
  }
  SetDefaultLayout(array);
  // Only without a blank between: "-> f32[2] {" opens a computation.
  if (cursor.Touches("{")) RETURN_IF_ERROR(ParseLayout(cursor, array));
  if (absl::Status status = CheckArray(array); !status.ok()) {
    return cursor.Error("{}", Message(status));
  }
  return array;
}

absl::StatusOr<hlo::ShapeProto> ParseShapeAtDepth(TextCursor& cursor, int depth) {
  if (!cursor.Consume("(")) return ParseArray(cursor);
  if (depth >= kMaxTupleDepth) {
    return cursor.Error("tuples are nested more than {} deep", kMaxTupleDepth);
  }
  hlo::ShapeProto tuple;
  tuple.set_element_type(kTuplePrimitiveType);
  while (!cursor.Consume(")")) {
    ASSIGN_OR_RETURN(*tuple.add_tuple_shapes(), ParseShapeAtDepth(cursor, depth + 1));
    if (!cursor.LooksAt(")")) RETURN_IF_ERROR(cursor.Expect(","));
  }
  return tuple;
}

}  // namespace

absl::Status CheckShape(const hlo::ShapeProto& shape) { return CheckShapeAtDepth(shape, 0); }

Shape ArrayShape(const hlo::ShapeProto& array) {
  return {static_cast<ElementType>(array.element_type()),
          {array.dimensions().begin(), array.dimensions().end()}};
}

int64_t NumLeaves(const hlo::ShapeProto& shape) {
  if (!IsTuple(shape)) return 1;
  int64_t num_leaves = 0;
  for (const hlo::ShapeProto& element : shape.tuple_shapes()) num_leaves += NumLeaves(element);
  return num_leaves;
}

std::vector<Shape> Leaves(const hlo::ShapeProto& shape) {
  std::vector<Shape> leaves;
  AppendLeaves(shape, leaves);
  return leaves;
}

bool SameShape(const hlo::ShapeProto& a, const hlo::ShapeProto& b) {
  return a.element_type() == b.element_type() &&
         std::ranges::equal(a.dimensions(), b.dimensions()) &&
         std::ranges::equal(a.tuple_shapes(), b.tuple_shapes(), SameShape);
}

bool HasDefaultLayout(const hlo::ShapeProto& array) {
  const auto& order = array.layout().minor_to_major();
  return std::is_sorted(order.begin(), order.end(), std::greater<>());
}

hlo::ShapeProto ArrayShapeProto(const Shape& shape) {
  hlo::ShapeProto proto;
  proto.set_element_type(static_cast<int32_t>(shape.type));
  proto.mutable_dimensions()->Assign(shape.dims.begin(), shape.dims.end());
  SetDefaultLayout(proto);
  return proto;
}

hlo::ShapeProto TupleShapeProto(std::span<const Shape> shapes) {
  hlo::ShapeProto proto;
  proto.set_element_type(kTuplePrimitiveType);
  for (const Shape& shape : shapes) *proto.add_tuple_shapes() = ArrayShapeProto(shape);
  return proto;
}

std::string ShapeText(const hlo::ShapeProto& shape) {
  std::string text;
  AppendText(shape, text);
  return text;
}

absl::StatusOr<hlo::ShapeProto> ParseShape(TextCursor& cursor) {
  return ParseShapeAtDepth(cursor, 0);
}

}  // namespace minka
