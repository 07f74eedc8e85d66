// Element types and array shapes. Values of minka are arrays (or tokens); tuples exist only at the
// border to HLO protos.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace minka {

// XLA's PrimitiveType with its numbers.
enum class ElementType : uint8_t {
  kInvalid = 0,
  kPred = 1,
  kS8 = 2,
  kS16 = 3,
  kS32 = 4,
  kS64 = 5,
  kU8 = 6,
  kU16 = 7,
  kU32 = 8,
  kU64 = 9,
  kF16 = 10,
  kF32 = 11,
  kF64 = 12,
  kOpaque = 14,
  kC64 = 15,
  kBF16 = 16,
  kToken = 17,
  kC128 = 18,
  kF8E5M2 = 19,
  kF8E4M3FN = 20,
  kS4 = 21,
  kU4 = 22,
  kF8E4M3B11FNUZ = 23,
  kF8E5M2FNUZ = 24,
  kF8E4M3FNUZ = 25,
  kS2 = 26,
  kU2 = 27,
  kF8E4M3 = 28,
  kF8E3M4 = 29,
  kS1 = 30,
  kU1 = 31,
  kF4E2M1FN = 32,
  kF8E8M0FNU = 33,
};

bool IsFloat(ElementType type);        // any real floating-point type, f8 and f4 included
bool IsNarrowFloat(ElementType type);  // bf16 or f16
bool IsInteger(ElementType type);      // signed or unsigned, pred excluded
bool IsSigned(ElementType type);       // signed integers
bool IsComplex(ElementType type);
// Bytes that one element takes in memory (sub-byte types take one); 0 for tokens and opaque values.
int64_t ElementBytes(ElementType type);
// Bits of it that hold the value: fewer than those bytes have for sub-byte types alone.
int64_t ElementBits(ElementType type);
// HLO's names: "f32", "pred", "bf16".
std::string_view TypeName(ElementType type);
std::optional<ElementType> ParseType(std::string_view name);

// A dense array, row-major. A scalar has no dimensions.
struct Shape {
  ElementType type = ElementType::kInvalid;
  std::vector<int64_t> dims;

  int rank() const { return static_cast<int>(dims.size()); }
  int64_t num_elements() const;
  int64_t num_bytes() const { return num_elements() * ElementBytes(type); }
  bool operator==(const Shape&) const = default;
};

// "f32[8,128]", "pred[]".
std::string ToString(const Shape& shape);

}  // namespace minka
