#include "minka/ir/shape.h"

#include <array>

#include "fmt/format.h"
#include "fmt/ranges.h"

namespace minka {
namespace {

enum class Kind : uint8_t { kNone, kPred, kSigned, kUnsigned, kFloat, kComplex };

struct TypeTraits {
  ElementType type;
  std::string_view name;
  Kind kind;
  int16_t bits;
};

constexpr std::array kTypes = {
    TypeTraits{ElementType::kPred, "pred", Kind::kPred, 8},
    TypeTraits{ElementType::kS8, "s8", Kind::kSigned, 8},
    TypeTraits{ElementType::kS16, "s16", Kind::kSigned, 16},
    TypeTraits{ElementType::kS32, "s32", Kind::kSigned, 32},
    TypeTraits{ElementType::kS64, "s64", Kind::kSigned, 64},
    TypeTraits{ElementType::kU8, "u8", Kind::kUnsigned, 8},
    TypeTraits{ElementType::kU16, "u16", Kind::kUnsigned, 16},
    TypeTraits{ElementType::kU32, "u32", Kind::kUnsigned, 32},
    TypeTraits{ElementType::kU64, "u64", Kind::kUnsigned, 64},
    TypeTraits{ElementType::kF16, "f16", Kind::kFloat, 16},
    TypeTraits{ElementType::kF32, "f32", Kind::kFloat, 32},
    TypeTraits{ElementType::kF64, "f64", Kind::kFloat, 64},
    TypeTraits{ElementType::kOpaque, "opaque", Kind::kNone, 0},
    TypeTraits{ElementType::kC64, "c64", Kind::kComplex, 64},
    TypeTraits{ElementType::kBF16, "bf16", Kind::kFloat, 16},
    TypeTraits{ElementType::kToken, "token", Kind::kNone, 0},
    TypeTraits{ElementType::kC128, "c128", Kind::kComplex, 128},
    TypeTraits{ElementType::kF8E5M2, "f8e5m2", Kind::kFloat, 8},
    TypeTraits{ElementType::kF8E4M3FN, "f8e4m3fn", Kind::kFloat, 8},
    TypeTraits{ElementType::kS4, "s4", Kind::kSigned, 4},
    TypeTraits{ElementType::kU4, "u4", Kind::kUnsigned, 4},
    TypeTraits{ElementType::kF8E4M3B11FNUZ, "f8e4m3b11fnuz", Kind::kFloat, 8},
    TypeTraits{ElementType::kF8E5M2FNUZ, "f8e5m2fnuz", Kind::kFloat, 8},
    TypeTraits{ElementType::kF8E4M3FNUZ, "f8e4m3fnuz", Kind::kFloat, 8},
    TypeTraits{ElementType::kS2, "s2", Kind::kSigned, 2},
    TypeTraits{ElementType::kU2, "u2", Kind::kUnsigned, 2},
    TypeTraits{ElementType::kF8E4M3, "f8e4m3", Kind::kFloat, 8},
    TypeTraits{ElementType::kF8E3M4, "f8e3m4", Kind::kFloat, 8},
    TypeTraits{ElementType::kS1, "s1", Kind::kSigned, 1},
    TypeTraits{ElementType::kU1, "u1", Kind::kUnsigned, 1},
    TypeTraits{ElementType::kF4E2M1FN, "f4e2m1fn", Kind::kFloat, 4},
    TypeTraits{ElementType::kF8E8M0FNU, "f8e8m0fnu", Kind::kFloat, 8},
};

const TypeTraits& Traits(ElementType type) {
  static constexpr TypeTraits kInvalidTraits = {ElementType::kInvalid, "invalid", Kind::kNone, 0};
  for (const TypeTraits& traits : kTypes) {
    if (traits.type == type) return traits;
  }
  return kInvalidTraits;
}

}  // namespace

bool IsFloat(ElementType type) { return Traits(type).kind == Kind::kFloat; }
bool IsNarrowFloat(ElementType type) {
  return type == ElementType::kBF16 || type == ElementType::kF16;
}
bool IsInteger(ElementType type) {
  return Traits(type).kind == Kind::kSigned || Traits(type).kind == Kind::kUnsigned;
}
bool IsSigned(ElementType type) { return Traits(type).kind == Kind::kSigned; }
bool IsComplex(ElementType type) { return Traits(type).kind == Kind::kComplex; }
int64_t ElementBytes(ElementType type) { return (ElementBits(type) + 7) / 8; }
int64_t ElementBits(ElementType type) { return Traits(type).bits; }
std::string_view TypeName(ElementType type) { return Traits(type).name; }

std::optional<ElementType> ParseType(std::string_view name) {
  for (const TypeTraits& traits : kTypes) {
    if (traits.name == name) return traits.type;
  }
  return std::nullopt;
}

int64_t Shape::num_elements() const {
  int64_t count = 1;
  for (int64_t dim : dims) count *= dim;
  return count;
}

std::string ToString(const Shape& shape) {
  return fmt::format("{}[{}]", TypeName(shape.type), fmt::join(shape.dims, ","));
}

}  // namespace minka
