#include "minka/ir/hlo_literal.h"

#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <span>

#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/ir/hlo_shape.h"

namespace minka {
namespace {

// Bits of an element's bytes that hold nothing.
int UnusedBits(ElementType type) {
  return static_cast<int>(8 * ElementBytes(type) - ElementBits(type));
}

// The field of types that XLA stores as bytes; nullptr for the others.
std::string* BytesField(hlo::LiteralProto& proto, ElementType type) {
  switch (type) {
    case ElementType::kU8:
      return proto.mutable_u8s();
    case ElementType::kF16:
      return proto.mutable_f16s();
    case ElementType::kBF16:
      return proto.mutable_bf16s();
    case ElementType::kS8:
      return proto.mutable_s8s();
    case ElementType::kU16:
      return proto.mutable_u16s();
    case ElementType::kS16:
      return proto.mutable_s16s();
    case ElementType::kF8E5M2:
      return proto.mutable_f8e5m2s();
    case ElementType::kF8E4M3FN:
      return proto.mutable_f8e4m3fns();
    case ElementType::kS4:
      return proto.mutable_s4s();
    case ElementType::kU4:
      return proto.mutable_u4s();
    case ElementType::kF8E4M3B11FNUZ:
      return proto.mutable_f8e4m3b11fnuzs();
    case ElementType::kF8E5M2FNUZ:
      return proto.mutable_f8e5m2fnuzs();
    case ElementType::kF8E4M3FNUZ:
      return proto.mutable_f8e4m3fnuzs();
    case ElementType::kS2:
      return proto.mutable_s2s();
    case ElementType::kU2:
      return proto.mutable_u2s();
    case ElementType::kF8E4M3:
      return proto.mutable_f8e4m3s();
    case ElementType::kF8E3M4:
      return proto.mutable_f8e3m4s();
    case ElementType::kS1:
      return proto.mutable_s1s();
    case ElementType::kU1:
      return proto.mutable_u1s();
    case ElementType::kF4E2M1FN:
      return proto.mutable_f4e2m1fns();
    case ElementType::kF8E8M0FNU:
      return proto.mutable_f8e8m0fnus();
    default:
      return nullptr;
  }
}

// Calls visit(repeated field) with the field of types that XLA stores element by element; false for
// types that no literal has. Complex numbers are two elements.
template <typename Proto, typename Visit>
bool VisitRepeatedField(Proto& proto, ElementType type, Visit visit) {
  switch (type) {
    case ElementType::kPred:
      visit(*proto.mutable_preds());
      return true;
    case ElementType::kS32:
      visit(*proto.mutable_s32s());
      return true;
    case ElementType::kS64:
      visit(*proto.mutable_s64s());
      return true;
    case ElementType::kU32:
      visit(*proto.mutable_u32s());
      return true;
    case ElementType::kU64:
      visit(*proto.mutable_u64s());
      return true;
    case ElementType::kF32:
      visit(*proto.mutable_f32s());
      return true;
    case ElementType::kF64:
      visit(*proto.mutable_f64s());
      return true;
    case ElementType::kC64:
      visit(*proto.mutable_c64s());
      return true;
    case ElementType::kC128:
      visit(*proto.mutable_c128s());
      return true;
    default:
      return false;
  }
}

// XLA masks the sign bits of sub-byte integers; in memory they are extended.
void ExtendSigns(ElementType type, std::string& bytes) {
  const int unused = UnusedBits(type);
  if (unused == 0) return;
  for (char& c : bytes) {
    const auto shifted = static_cast<uint8_t>(static_cast<uint8_t>(c) << unused);
    c = IsSigned(type) ? static_cast<char>(static_cast<int8_t>(shifted) >> unused)
                       : static_cast<char>(shifted >> unused);
  }
}

void MaskSigns(ElementType type, std::string& bytes) {
  const int unused = UnusedBits(type);
  for (char& c : bytes) c = static_cast<char>(static_cast<uint8_t>(c) & (0xff >> unused));
}

// Elements stored in the order of the layout, moved to row-major order.
std::string InRowMajorOrder(const std::string& bytes, const hlo::ShapeProto& shape,
                            int64_t element_bytes) {
  const int rank = shape.dimensions_size();
  std::vector<int64_t> strides(rank);
  int64_t stride = element_bytes;
  for (const int64_t dim : shape.layout().minor_to_major()) {
    strides[dim] = stride;
    stride *= shape.dimensions(static_cast<int>(dim));
  }
  std::string ordered;
  ordered.reserve(bytes.size());
  std::vector<int64_t> index(rank);
  int64_t offset = 0;
  while (ordered.size() < bytes.size()) {
    ordered.append(bytes, offset, element_bytes);
    for (int dim = rank - 1; dim >= 0; --dim) {
      offset += strides[dim];
      if (++index[dim] < shape.dimensions(dim)) break;
      offset -= strides[dim] * index[dim];
      index[dim] = 0;
    }
  }
  return ordered;
}

}  // namespace

absl::StatusOr<Literal> LiteralFromProto(hlo::LiteralProto& proto) {
  const Shape shape = ArrayShape(proto.shape());
  std::string bytes;
  if (const std::string* field = BytesField(proto, shape.type)) {
    bytes = *field;
    ExtendSigns(shape.type, bytes);
  } else if (!VisitRepeatedField(proto, shape.type, [&](const auto& elements) {
               bytes.assign(reinterpret_cast<const char*>(elements.data()),
                            elements.size() * sizeof(*elements.data()));
             })) {
    return InvalidArgument("there are no constants of type {}", TypeName(shape.type));
  }
  if (static_cast<int64_t>(bytes.size()) != shape.num_bytes()) {
    return InvalidArgument("the literal has {} bytes, its shape {} needs {}", bytes.size(),
                           ToString(shape), shape.num_bytes());
  }
  if (!HasDefaultLayout(proto.shape())) {
    bytes = InRowMajorOrder(bytes, proto.shape(), ElementBytes(shape.type));
  }
  return Literal{shape, std::make_shared<const std::string>(std::move(bytes))};
}

hlo::LiteralProto LiteralToProto(const Literal& literal) {
  hlo::LiteralProto proto;
  *proto.mutable_shape() = ArrayShapeProto(literal.shape);
  const ElementType type = literal.shape.type;
  if (std::string* field = BytesField(proto, type)) {
    *field = *literal.bytes;
    MaskSigns(type, *field);
    return proto;
  }
  const bool known = VisitRepeatedField(proto, type, [&](auto& elements) {
    using Element = std::decay_t<decltype(*elements.data())>;
    elements.Resize(static_cast<int>(literal.bytes->size() / sizeof(Element)), Element());
    if (elements.empty()) return;  // no array to copy to
    std::memcpy(elements.mutable_data(), literal.bytes->data(), literal.bytes->size());
  });
  MINKA_CHECK(known, "no literals of type {}", TypeName(type));
  return proto;
}

namespace {

template <typename T>
T Load(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

template <typename T>
void Store(T value, std::string& bytes) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

// Mantissa bits of types whose NaN has a payload that the text keeps; 0 for the others.
int PayloadBits(ElementType type) {
  switch (type) {
    case ElementType::kF64:
      return 52;
    case ElementType::kF32:
      return 23;
    case ElementType::kF16:
      return 10;
    case ElementType::kBF16:
      return 7;
    case ElementType::kF8E4M3:
      return 3;
    case ElementType::kF8E3M4:
      return 4;
    case ElementType::kF8E5M2:
      return 2;
    default:
      return 0;
  }
}

// Types whose NaN has a sign but no payload.
bool HasSignedNan(ElementType type) {
  return PayloadBits(type) > 0 || type == ElementType::kF8E4M3FN;
}

uint64_t LoadBits(ElementType type, const char* bytes) {
  uint64_t bits = 0;
  std::memcpy(&bits, bytes, ElementBytes(type));
  return bits;
}

uint64_t SignBit(ElementType type) { return uint64_t{1} << (8 * ElementBytes(type) - 1); }
uint64_t PayloadMask(ElementType type) { return (uint64_t{1} << PayloadBits(type)) - 1; }

// The quiet NaN that "nan" stands for.
uint64_t DefaultNan(ElementType type) {
  const Literal nan = ScalarLiteral(type, std::numeric_limits<double>::quiet_NaN());
  const uint64_t bits = LoadBits(type, nan.bytes->data());
  return HasSignedNan(type) ? bits & ~SignBit(type) : bits;
}

std::string NanText(ElementType type, const char* bytes) {
  const uint64_t bits = LoadBits(type, bytes);
  const bool negative = HasSignedNan(type) && (bits & SignBit(type)) != 0;
  const bool quiet = (bits & PayloadMask(type)) == (DefaultNan(type) & PayloadMask(type));
  std::string text = negative ? "-nan" : "nan";
  if (!quiet) text += fmt::format("({:#x})", bits & PayloadMask(type));
  return text;
}

std::string FloatText(ElementType type, const char* bytes) {
  const Literal element = {{type, {}},
                           std::make_shared<const std::string>(bytes, ElementBytes(type))};
  const double value = ElementAsDouble(element, 0);
  if (std::isnan(value)) return NanText(type, bytes);
  if (value == 0 && std::signbit(value)) return "-0.0";  // XLA reads -0 as an integer
  // Types narrower than f32 are exact in f32, whose shortest form is shorter.
  return type == ElementType::kF64 ? fmt::format("{}", value)
                                   : fmt::format("{}", static_cast<float>(value));
}

std::string ElementText(ElementType type, const char* bytes) {
  if (IsFloat(type)) return FloatText(type, bytes);
  switch (type) {
    case ElementType::kC64:
      return fmt::format("({}, {})", FloatText(ElementType::kF32, bytes),
                         FloatText(ElementType::kF32, bytes + sizeof(float)));
    case ElementType::kC128:
      return fmt::format("({}, {})", FloatText(ElementType::kF64, bytes),
                         FloatText(ElementType::kF64, bytes + sizeof(double)));
    case ElementType::kU64:
      return fmt::format("{}", Load<uint64_t>(bytes));
    case ElementType::kS64:
      return fmt::format("{}", Load<int64_t>(bytes));
    default: {
      const Literal element = {{type, {}},
                               std::make_shared<const std::string>(bytes, ElementBytes(type))};
      return fmt::format("{}", static_cast<int64_t>(ElementAsDouble(element, 0)));
    }
  }
}

template <typename T>
absl::StatusOr<T> ParseNumber(TextCursor& cursor, std::string_view word) {
  T value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size()) {
    return cursor.Error("'{}' is no number of the constant's type", word);
  }
  return value;
}

absl::Status ParseNan(TextCursor& cursor, ElementType type, bool negative, std::string& bytes) {
  uint64_t bits = DefaultNan(type);
  if (PayloadBits(type) > 0 && cursor.Consume("(0x")) {
    const std::string_view digits = cursor.Word();
    uint64_t payload = 0;
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), payload, 16);
    if (error != std::errc() || end != digits.data() + digits.size() || payload == 0 ||
        payload > PayloadMask(type)) {
      return cursor.Error("'{}' is no payload of a {} NaN", digits, TypeName(type));
    }
    RETURN_IF_ERROR(cursor.Expect(")"));
    bits = (bits & ~PayloadMask(type)) | payload;
  }
  if (negative && HasSignedNan(type)) bits |= SignBit(type);
  bytes.append(reinterpret_cast<const char*>(&bits), ElementBytes(type));
  return absl::OkStatus();
}

absl::Status ParseFloat(TextCursor& cursor, ElementType type, std::string& bytes) {
  std::string_view word = cursor.Word();
  if (word == "nan" || word == "-nan") return ParseNan(cursor, type, word[0] == '-', bytes);
  if (word.ends_with('e') && cursor.Consume("+")) {  // 1e+10
    const std::string mantissa(word);
    const std::string whole = mantissa + std::string(cursor.Word());
    ASSIGN_OR_RETURN(const double value, ParseNumber<double>(cursor, whole));
    bytes += *ScalarLiteral(type, value).bytes;
    return absl::OkStatus();
  }
  if (type == ElementType::kF32) {
    ASSIGN_OR_RETURN(const float value, ParseNumber<float>(cursor, word));
    Store(value, bytes);
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const double value, ParseNumber<double>(cursor, word));
  bytes += *ScalarLiteral(type, value).bytes;
  return absl::OkStatus();
}

absl::Status ParseComplex(TextCursor& cursor, ElementType part, std::string& bytes) {
  RETURN_IF_ERROR(cursor.Expect("("));
  RETURN_IF_ERROR(ParseFloat(cursor, part, bytes));
  RETURN_IF_ERROR(cursor.Expect(","));
  RETURN_IF_ERROR(ParseFloat(cursor, part, bytes));
  return cursor.Expect(")");
}

absl::Status ParseInteger(TextCursor& cursor, ElementType type, std::string& bytes) {
  const std::string_view word = cursor.Word();
  if (type == ElementType::kU64) {
    ASSIGN_OR_RETURN(const auto value, ParseNumber<uint64_t>(cursor, word));
    Store(value, bytes);
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const auto value, ParseNumber<int64_t>(cursor, word));
  if (type == ElementType::kS64) {
    Store(value, bytes);
    return absl::OkStatus();
  }
  const Literal element = ScalarLiteral(type, static_cast<double>(value));
  if (ScalarValue(element) != static_cast<double>(value)) {
    return cursor.Error("{} does not fit into {}", value, TypeName(type));
  }
  bytes += *element.bytes;
  return absl::OkStatus();
}

absl::Status ParseElement(TextCursor& cursor, ElementType type, std::string& bytes) {
  switch (type) {
    case ElementType::kPred: {
      const std::string_view word = cursor.Word();
      const bool value = word == "true" || word == "1";
      if (!value && word != "false" && word != "0") {
        return cursor.Error("'{}' is no predicate", word);
      }
      bytes.push_back(value ? 1 : 0);
      return absl::OkStatus();
    }
    case ElementType::kC64:
      return ParseComplex(cursor, ElementType::kF32, bytes);
    case ElementType::kC128:
      return ParseComplex(cursor, ElementType::kF64, bytes);
    default:
      return IsFloat(type) ? ParseFloat(cursor, type, bytes) : ParseInteger(cursor, type, bytes);
  }
}

}  // namespace

std::string LiteralText(const Literal& literal) {
  const Shape& shape = literal.shape;
  const int64_t element_bytes = ElementBytes(shape.type);
  if (shape.rank() == 0 && shape.type == ElementType::kPred) {
    return literal.bytes->at(0) != 0 ? "true" : "false";
  }
  if (shape.num_elements() == 0) return "{}";
  std::string text;
  std::vector<int64_t> index(shape.rank());
  int num_closed = shape.rank();  // braces that the last element closed
  const char* element = literal.bytes->data();
  for (int64_t i = 0; i < shape.num_elements(); ++i, element += element_bytes) {
    if (i > 0) text += ", ";
    for (int k = 0; k < num_closed; ++k) text += '{';
    text += ElementText(shape.type, element);
    num_closed = 0;
    for (int dim = shape.rank() - 1; dim >= 0 && ++index[dim] == shape.dims[dim]; --dim) {
      index[dim] = 0;
      ++num_closed;
    }
    for (int k = 0; k < num_closed; ++k) text += '}';
  }
  return text;
}

// Braces only group: the elements come in row-major order whatever the braces say.
absl::StatusOr<Literal> ParseLiteral(TextCursor& cursor, const Shape& shape) {
  if (ElementBytes(shape.type) == 0) {
    return cursor.Error("there are no constants of type {}", TypeName(shape.type));
  }
  std::string bytes;
  int64_t depth = 0;
  do {
    if (cursor.Consume("{")) {
      ++depth;
    } else if (cursor.Consume("}")) {
      --depth;
    } else if (!cursor.Consume(",")) {
      if (cursor.AtEnd()) return cursor.Error("the constant has no end");
      if (cursor.LooksAt("...")) return cursor.Error("the constant is elided");
      RETURN_IF_ERROR(ParseElement(cursor, shape.type, bytes));
      if (static_cast<int64_t>(bytes.size()) > shape.num_bytes()) {
        return cursor.Error("the constant has more elements than {}", ToString(shape));
      }
    }
  } while (depth > 0);
  if (static_cast<int64_t>(bytes.size()) != shape.num_bytes()) {
    return cursor.Error("the constant has {} bytes, its shape {} needs {}", bytes.size(),
                        ToString(shape), shape.num_bytes());
  }
  return Literal{shape, std::make_shared<const std::string>(std::move(bytes))};
}

}  // namespace minka
