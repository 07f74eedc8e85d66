#include "minka/ir/literal.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "minka/base/check.h"

namespace minka {
namespace {

enum class Specials : uint8_t {
  kIeee,      // the largest exponent holds infinity and NaN
  kNanOnly,   // all ones is NaN, no infinity ("FN")
  kUnsigned0  // the pattern of -0 is NaN, no infinity ("FNUZ")
};

struct SmallFloat {
  int exponent_bits, mantissa_bits, bias;
  Specials specials;
};

// Formats below 32 bits; those of 8 bits as in "FP8 Formats for Deep Learning" (arXiv:2209.05433)
// and the FNUZ variants of arXiv:2206.02915.
std::optional<SmallFloat> FindSmallFloat(ElementType type) {
  switch (type) {
    case ElementType::kF16:
      return SmallFloat{5, 10, 15, Specials::kIeee};
    case ElementType::kBF16:
      return SmallFloat{8, 7, 127, Specials::kIeee};
    case ElementType::kF8E5M2:
      return SmallFloat{5, 2, 15, Specials::kIeee};
    case ElementType::kF8E4M3:
      return SmallFloat{4, 3, 7, Specials::kIeee};
    case ElementType::kF8E3M4:
      return SmallFloat{3, 4, 3, Specials::kIeee};
    case ElementType::kF8E4M3FN:
      return SmallFloat{4, 3, 7, Specials::kNanOnly};
    case ElementType::kF8E4M3B11FNUZ:
      return SmallFloat{4, 3, 11, Specials::kUnsigned0};
    case ElementType::kF8E5M2FNUZ:
      return SmallFloat{5, 2, 16, Specials::kUnsigned0};
    case ElementType::kF8E4M3FNUZ:
      return SmallFloat{4, 3, 8, Specials::kUnsigned0};
    default:
      return std::nullopt;
  }
}

constexpr int kDoubleBias = 1023, kDoubleMantissaBits = 52;

double DecodeSmallFloat(const SmallFloat& format, uint32_t bits) {
  const int width = format.exponent_bits + format.mantissa_bits;
  const uint32_t magnitude = bits & ((1U << width) - 1);
  const bool negative = ((bits >> width) & 1U) != 0;
  const uint32_t exponent = magnitude >> format.mantissa_bits;
  const uint32_t mantissa = magnitude & ((1U << format.mantissa_bits) - 1);
  const uint32_t max_exponent = (1U << format.exponent_bits) - 1;
  if (exponent > 0 && exponent < max_exponent) {
    const uint64_t wide_exponent = exponent + kDoubleBias - format.bias;
    return std::bit_cast<double>(uint64_t{negative} << 63 | wide_exponent << kDoubleMantissaBits |
                                 uint64_t{mantissa}
                                     << (kDoubleMantissaBits - format.mantissa_bits));
  }
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  switch (format.specials) {
    case Specials::kIeee:
      if (exponent == max_exponent) {
        if (mantissa != 0) return kNan;
        return std::copysign(std::numeric_limits<double>::infinity(), negative ? -1.0 : 1.0);
      }
      break;
    case Specials::kNanOnly:
      if (magnitude == (1U << width) - 1) return kNan;
      break;
    case Specials::kUnsigned0:
      if (negative && magnitude == 0) return kNan;
      break;
  }
  const int scale = (exponent == 0 ? 1 : static_cast<int>(exponent)) - format.bias;
  const uint32_t implicit = exponent == 0 ? 0 : 1U << format.mantissa_bits;
  const double value = std::ldexp(mantissa | implicit, scale - format.mantissa_bits);
  return negative ? -value : value;
}

// Round to nearest, ties to even; what is too large becomes infinity, or NaN without infinities.
uint32_t EncodeSmallFloat(const SmallFloat& format, double value) {
  const int width = format.exponent_bits + format.mantissa_bits;
  const uint32_t sign = std::signbit(value) ? 1U << width : 0;
  const uint32_t max_exponent = (1U << format.exponent_bits) - 1;
  const uint32_t infinity = max_exponent << format.mantissa_bits;
  const auto wide = std::bit_cast<uint64_t>(std::abs(value));
  const int64_t wide_exponent =
      static_cast<int64_t>(wide >> kDoubleMantissaBits) - kDoubleBias + format.bias;
  // Neither below the normal numbers nor beyond the finite ones, even if rounding carries.
  if (wide_exponent >= 1 && wide_exponent + 1 < static_cast<int64_t>(max_exponent)) {
    const int shift = kDoubleMantissaBits - format.mantissa_bits;
    const uint64_t below_half = (uint64_t{1} << (shift - 1)) - 1;
    const uint64_t rounded = (wide + below_half + (wide >> shift & 1)) >> shift;
    const uint64_t rebias = static_cast<uint64_t>(kDoubleBias - format.bias)
                            << format.mantissa_bits;
    return sign | static_cast<uint32_t>(rounded - rebias);
  }
  uint32_t nan = infinity | (1U << (format.mantissa_bits - 1));
  uint32_t overflow = infinity;
  uint32_t max_finite = infinity - 1;
  if (format.specials == Specials::kNanOnly) {
    nan = (1U << width) - 1;
    overflow = nan;
    max_finite = nan - 1;
  } else if (format.specials == Specials::kUnsigned0) {
    nan = 1U << width;
    overflow = nan;
    max_finite = (1U << width) - 1;
  }
  if (std::isnan(value)) return nan;
  if (std::isinf(value)) return overflow == nan ? nan : sign | overflow;
  if (value == 0) return format.specials == Specials::kUnsigned0 ? 0 : sign;
  int exponent = 0;
  std::frexp(std::abs(value), &exponent);  // |value| in [2^(exponent-1), 2^exponent)
  const int scale = std::max(exponent - 1, 1 - format.bias);
  const double scaled = std::ldexp(std::abs(value), format.mantissa_bits - scale);
  const double rounded = std::nearbyint(scaled);  // in [0, 2^(mantissa_bits+1)]
  if (scale + format.bias > static_cast<int>(max_exponent) + 1) {
    return overflow == nan ? nan : sign | overflow;
  }
  // Adding instead of or-ing lets a carry out of the mantissa raise the exponent.
  const int64_t magnitude = static_cast<int64_t>(rounded) +
                            (static_cast<int64_t>(scale + format.bias - 1) << format.mantissa_bits);
  if (magnitude > max_finite) return overflow == nan ? nan : sign | overflow;
  if (magnitude == 0 && format.specials == Specials::kUnsigned0) return 0;
  return sign | static_cast<uint32_t>(magnitude);
}

// e8m0: powers of two from 2^-127, 255 is NaN. Rounds to the nearest power (in the exponent).
uint8_t EncodeScale(double value) {
  if (!(value > 0) || std::isinf(value)) return 255;
  const double exponent = std::nearbyint(std::log2(value)) + 127;
  return exponent > 254 ? 255 : static_cast<uint8_t>(std::max(exponent, 0.0));
}
double DecodeScale(uint8_t bits) {
  return bits == 255 ? std::numeric_limits<double>::quiet_NaN() : std::ldexp(1.0, bits - 127);
}

constexpr double kF4Magnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

uint8_t EncodeF4(double value) {
  uint8_t best = 0;
  for (uint8_t i = 1; i < 8; ++i) {
    const double distance = std::abs(std::abs(value) - kF4Magnitudes[i]);
    const double best_distance = std::abs(std::abs(value) - kF4Magnitudes[best]);
    const bool tie_to_even = distance == best_distance && i % 2 == 0;
    if (distance < best_distance || tie_to_even) best = i;
  }
  return best | (std::signbit(value) ? 8 : 0);
}
double DecodeF4(uint8_t bits) {
  const double magnitude = kF4Magnitudes[bits & 7];
  return (bits & 8) != 0 ? -magnitude : magnitude;
}

template <typename T>
T Load(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

template <typename T>
void Store(T value, char* bytes) {
  std::memcpy(bytes, &value, sizeof(T));
}

// Integers beyond 2^53 lose low bits on the way through double; the ends of the range saturate.
uint64_t EncodeInteger(ElementType type, double value) {
  const int bits = static_cast<int>(ElementBits(type));
  if (std::isnan(value)) return 0;
  const bool is_signed = IsSigned(type);
  const double low = is_signed ? -std::ldexp(1.0, bits - 1) : 0;
  const double high = std::ldexp(1.0, is_signed ? bits - 1 : bits);
  const uint64_t max = is_signed ? (uint64_t{1} << (bits - 1)) - 1
                                 : (bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1);
  if (value >= high) return max;
  value = std::trunc(std::max(value, low));
  return value < 0 ? static_cast<uint64_t>(static_cast<int64_t>(value))
                   : static_cast<uint64_t>(value);
}

// Gives `visit` the function (value, bytes) that writes one element: chosen once for many.
template <typename Visit>
void WithEncoder(ElementType type, const Visit& visit) {
  const auto size = static_cast<size_t>(ElementBytes(type));
  if (const auto format = FindSmallFloat(type)) {
    return visit([&format, size](double value, char* bytes) {
      const uint32_t bits = EncodeSmallFloat(*format, value);
      std::memcpy(bytes, &bits, size);
    });
  }
  switch (type) {
    case ElementType::kPred:
      return visit([](double value, char* bytes) { Store<uint8_t>(value != 0, bytes); });
    case ElementType::kF32:
      return visit([](double value, char* bytes) { Store(static_cast<float>(value), bytes); });
    case ElementType::kF64:
      return visit([](double value, char* bytes) { Store(value, bytes); });
    case ElementType::kC64:
      return visit([](double value, char* bytes) {
        Store(static_cast<float>(value), bytes);
        Store(0.0F, bytes + sizeof(float));
      });
    case ElementType::kC128:
      return visit([](double value, char* bytes) {
        Store(value, bytes);
        Store(0.0, bytes + sizeof(double));
      });
    case ElementType::kF8E8M0FNU:
      return visit([](double value, char* bytes) { Store(EncodeScale(value), bytes); });
    case ElementType::kF4E2M1FN:
      return visit([](double value, char* bytes) { Store(EncodeF4(value), bytes); });
    default:
      MINKA_CHECK(IsInteger(type), "no literals of type {}", TypeName(type));
      return visit([type, size](double value, char* bytes) {
        const uint64_t bits = EncodeInteger(type, value);
        std::memcpy(bytes, &bits, size);
      });
  }
}

double DecodeInteger(ElementType type, const char* bytes) {
  uint64_t raw = 0;
  std::memcpy(&raw, bytes, ElementBytes(type));
  const int unused = 64 - static_cast<int>(ElementBits(type));
  raw <<= unused;
  if (!IsSigned(type)) return static_cast<double>(raw >> unused);
  return static_cast<double>(static_cast<int64_t>(raw) >> unused);
}

// The same with the function that reads one.
template <typename Visit>
void WithDecoder(ElementType type, const Visit& visit) {
  if (const auto format = FindSmallFloat(type)) {
    return visit([&format, size = static_cast<size_t>(ElementBytes(type))](const char* bytes) {
      uint32_t raw = 0;
      std::memcpy(&raw, bytes, size);
      return DecodeSmallFloat(*format, raw);
    });
  }
  switch (type) {
    case ElementType::kPred:
      return visit([](const char* bytes) { return *bytes != 0 ? 1.0 : 0.0; });
    case ElementType::kF32:
      return visit([](const char* bytes) { return static_cast<double>(Load<float>(bytes)); });
    case ElementType::kF64:
      return visit([](const char* bytes) { return Load<double>(bytes); });
    case ElementType::kF8E8M0FNU:
      return visit([](const char* bytes) { return DecodeScale(Load<uint8_t>(bytes)); });
    case ElementType::kF4E2M1FN:
      return visit([](const char* bytes) { return DecodeF4(Load<uint8_t>(bytes)); });
    default:
      MINKA_CHECK(IsInteger(type), "{} is not a real type", TypeName(type));
      return visit([type](const char* bytes) { return DecodeInteger(type, bytes); });
  }
}

}  // namespace

Literal ScalarLiteral(ElementType type, double value) {
  return FilledLiteral(Shape{type, {}}, value);
}

Literal FilledLiteral(const Shape& shape, double value) {
  std::string element(ElementBytes(shape.type), '\0'), bytes;
  WithEncoder(shape.type, [&](const auto& encode) { encode(value, element.data()); });
  bytes.reserve(shape.num_bytes());
  for (int64_t i = 0; i < shape.num_elements(); ++i) bytes += element;
  return {shape, std::make_shared<const std::string>(std::move(bytes))};
}

double Epsilon(ElementType type) {
  if (const auto format = FindSmallFloat(type)) return std::ldexp(1, -format->mantissa_bits);
  switch (type) {
    case ElementType::kF64:
    case ElementType::kC128:
      return std::numeric_limits<double>::epsilon();
    case ElementType::kF32:
    case ElementType::kC64:
      return std::numeric_limits<float>::epsilon();
    case ElementType::kF4E2M1FN:
      return 0.5;
    case ElementType::kF8E8M0FNU:
      return 1;
    default:
      return 0;
  }
}

double ScalarValue(const Literal& literal) {
  MINKA_CHECK(literal.shape.num_elements() == 1, "{} is not one element", ToString(literal.shape));
  return ElementAsDouble(literal, 0);
}

std::optional<int64_t> IntegerValue(const Literal& literal) {
  constexpr double kLargest = 9007199254740992;  // double has all integers up to 2^53
  const double value = ScalarValue(literal);
  if (std::abs(value) > kLargest) return std::nullopt;
  return static_cast<int64_t>(value);
}

double ElementAsDouble(const Literal& literal, int64_t index) {
  MINKA_CHECK(0 <= index && index < literal.shape.num_elements(), "element {} of {}", index,
              ToString(literal.shape));
  const ElementType type = literal.shape.type;
  double value = 0;
  WithDecoder(type, [&](const auto& decode) {
    value = decode(literal.bytes->data() + index * ElementBytes(type));
  });
  return value;
}

std::vector<double> ElementsAsDoubles(const Literal& literal) {
  std::vector<double> elements(literal.shape.num_elements());
  const int64_t size = ElementBytes(literal.shape.type);
  WithDecoder(literal.shape.type, [&](const auto& decode) {
    const char* next = literal.bytes->data();
    for (double& element : elements) {
      element = decode(next);
      next += size;
    }
  });
  return elements;
}

Literal LiteralOf(const Shape& shape, std::span<const double> elements) {
  MINKA_CHECK(static_cast<int64_t>(elements.size()) == shape.num_elements(), "{} elements for {}",
              elements.size(), ToString(shape));
  std::string bytes(shape.num_bytes(), '\0');
  const int64_t size = ElementBytes(shape.type);
  WithEncoder(shape.type, [&](const auto& encode) {
    char* next = bytes.data();
    for (const double element : elements) {
      encode(element, next);
      next += size;
    }
  });
  return {shape, std::make_shared<const std::string>(std::move(bytes))};
}

Literal ConvertLiteral(const Literal& literal, ElementType type) {
  return LiteralOf({type, literal.shape.dims}, ElementsAsDoubles(literal));
}

}  // namespace minka
