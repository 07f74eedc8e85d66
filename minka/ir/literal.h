// A constant's bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "minka/ir/shape.h"

namespace minka {

// Dense row-major little-endian bytes, shared because modules are copied. pred takes one byte,
// sub-byte types one each.
struct Literal {
  Shape shape;
  std::shared_ptr<const std::string> bytes;

  bool operator==(const Literal& other) const {
    return shape == other.shape &&
           (bytes == other.bytes || (bytes && other.bytes && *bytes == *other.bytes));
  }
};

// One value converted to the type (real types; complex types take it as real part).
Literal ScalarLiteral(ElementType type, double value);
// Every element the same.
Literal FilledLiteral(const Shape& shape, double value);
// The value of a one-element literal of any real type as double.
double ScalarValue(const Literal& literal);
// The value of a one-element literal of an integer type or pred; nullopt beyond 2^53 on either side
// of 0.
std::optional<int64_t> IntegerValue(const Literal& literal);
// Element `index` (row-major) of any real type as double.
double ElementAsDouble(const Literal& literal, int64_t index);
// All of them.
std::vector<double> ElementsAsDoubles(const Literal& literal);
// The elements, row-major, as ConvertLiteral converts them.
Literal LiteralOf(const Shape& shape, std::span<const double> elements);
// The distance from 1 to the next larger number of a float type, or of a complex type's parts; 0
// for other types.
double Epsilon(ElementType type);
// The elements converted to another real type, through double: round to nearest even, integers
// towards zero and saturating.
Literal ConvertLiteral(const Literal& literal, ElementType type);

}  // namespace minka
