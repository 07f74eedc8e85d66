#include "minka/ir/literal.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace minka {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double RoundTrip(ElementType type, double value) { return ScalarValue(ScalarLiteral(type, value)); }

Literal FromBytes(ElementType type, const std::string& bytes, int64_t size) {
  return {{type, {size}}, std::make_shared<const std::string>(bytes)};
}

TEST(Literal, EveryNarrowFloatDecodesAndEncodesToTheSameBits) {
  for (const ElementType type :
       {ElementType::kF16, ElementType::kBF16, ElementType::kF8E5M2, ElementType::kF8E4M3FN,
        ElementType::kF8E4M3, ElementType::kF8E3M4, ElementType::kF8E4M3B11FNUZ,
        ElementType::kF8E5M2FNUZ, ElementType::kF8E4M3FNUZ, ElementType::kF8E8M0FNU}) {
    const int64_t count = ElementBytes(type) == 2 ? 65536 : 256;
    for (int64_t bits = 0; bits < count; ++bits) {
      std::string bytes = {static_cast<char>(bits & 0xff), static_cast<char>(bits >> 8)};
      bytes.resize(ElementBytes(type));
      const double value = ElementAsDouble(FromBytes(type, bytes, 1), 0);
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(RoundTrip(type, value))) << TypeName(type) << " " << bits;
      } else {
        EXPECT_EQ(*ScalarLiteral(type, value).bytes, bytes) << TypeName(type) << " " << bits;
      }
    }
  }
}

// Numbers between two neighbours become the nearer one, in the middle the one whose last bit is 0.
TEST(Literal, NarrowFloatsRoundToTheNearestNeighbour) {
  for (const ElementType type :
       {ElementType::kF16, ElementType::kBF16, ElementType::kF8E5M2, ElementType::kF8E4M3FN,
        ElementType::kF8E4M3, ElementType::kF8E3M4, ElementType::kF8E4M3B11FNUZ,
        ElementType::kF8E5M2FNUZ, ElementType::kF8E4M3FNUZ}) {
    const int64_t size = ElementBytes(type);
    const auto of_bits = [&](int64_t bits) {
      std::string bytes = {static_cast<char>(bits & 0xff), static_cast<char>(bits >> 8)};
      bytes.resize(size);
      return ElementAsDouble(FromBytes(type, bytes, 1), 0);
    };
    const int64_t num_positive = size == 2 ? 32768 : 128;
    for (int64_t bits = 0; bits + 1 < num_positive; ++bits) {
      const double low = of_bits(bits), high = of_bits(bits + 1);
      if (!std::isfinite(low) || !std::isfinite(high)) continue;
      const double middle = (low + high) / 2, even = bits % 2 == 0 ? low : high;
      for (const double sign : {1.0, -1.0}) {
        EXPECT_EQ(RoundTrip(type, sign * middle), sign * even) << TypeName(type) << " " << bits;
        EXPECT_EQ(RoundTrip(type, sign * std::nextafter(middle, 0)), sign * low);
        EXPECT_EQ(RoundTrip(type, sign * std::nextafter(middle, high)), sign * high);
      }
    }
  }
}

// All elements at once are what each is by itself.
TEST(Literal, ManyElementsAreThoseOneByOne) {
  const std::vector<double> values = {0,    -0.0, 1,     -1.5,    0.1,       3e-5, 65504, 448,
                                      1e30, -7,   2.5e9, 5.9e-39, kInfinity, 127,  -128,  255};
  for (const ElementType type :
       {ElementType::kPred, ElementType::kS4, ElementType::kU8, ElementType::kS16,
        ElementType::kS64, ElementType::kF64, ElementType::kF32, ElementType::kF16,
        ElementType::kBF16, ElementType::kF8E5M2, ElementType::kF8E4M3FN, ElementType::kF8E4M3FNUZ,
        ElementType::kF8E8M0FNU, ElementType::kF4E2M1FN}) {
    const Literal literal = LiteralOf({type, {2, 8}}, values);
    const std::vector<double> back = ElementsAsDoubles(literal);
    std::string bytes;
    for (size_t i = 0; i < values.size(); ++i) {
      const Literal one = ScalarLiteral(type, values[i]);
      bytes += *one.bytes;
      const double value = ElementAsDouble(literal, static_cast<int64_t>(i));
      EXPECT_TRUE(back[i] == value || (std::isnan(back[i]) && std::isnan(value)))
          << TypeName(type) << " " << i;
    }
    EXPECT_EQ(*literal.bytes, bytes) << TypeName(type);
    EXPECT_EQ(ConvertLiteral(LiteralOf({ElementType::kF64, {2, 8}}, values), type), literal);
  }
}

TEST(Literal, IntegersBeyondWhatDoubleHoldsHaveNoValue) {
  EXPECT_EQ(IntegerValue(ScalarLiteral(ElementType::kS64, -9007199254740992)), -9007199254740992);
  EXPECT_EQ(IntegerValue(ScalarLiteral(ElementType::kU64, 1.14e19)), std::nullopt);
  EXPECT_EQ(IntegerValue(ScalarLiteral(ElementType::kPred, 1)), 1);
}

TEST(Literal, NarrowFloatsHaveTheirKnownLimits) {
  EXPECT_EQ(RoundTrip(ElementType::kF16, 65504), 65504);
  EXPECT_EQ(RoundTrip(ElementType::kF16, 65520), kInfinity);  // ties to even: beyond the range
  EXPECT_EQ(RoundTrip(ElementType::kF16, 65519.9), 65504);
  EXPECT_EQ(RoundTrip(ElementType::kF8E4M3FN, 448), 448);
  EXPECT_TRUE(std::isnan(RoundTrip(ElementType::kF8E4M3FN, 1e6)));
  EXPECT_EQ(RoundTrip(ElementType::kF8E5M2, 57344), 57344);
  EXPECT_EQ(RoundTrip(ElementType::kF8E4M3FNUZ, 240), 240);
  EXPECT_EQ(RoundTrip(ElementType::kBF16, 1e300), kInfinity);
  EXPECT_EQ(RoundTrip(ElementType::kBF16, -kInfinity), -kInfinity);
}

TEST(Literal, RoundsToNearestEven) {
  EXPECT_EQ(RoundTrip(ElementType::kBF16, 1 + 1.0 / 256), 1);             // tie, even below
  EXPECT_EQ(RoundTrip(ElementType::kBF16, 1 + 3.0 / 256), 1 + 1.0 / 64);  // tie, even above
  EXPECT_EQ(RoundTrip(ElementType::kF16, std::ldexp(1, -25)), 0);         // tie between 0 and 2^-24
  EXPECT_EQ(RoundTrip(ElementType::kF16, std::ldexp(1.5, -25)), std::ldexp(1, -24));
  EXPECT_EQ(RoundTrip(ElementType::kF4E2M1FN, 2.5), 2);
  EXPECT_EQ(RoundTrip(ElementType::kF4E2M1FN, -100), -6);
}

TEST(Literal, EpsilonIsTheDistanceFromOneToTheNextNumber) {
  for (const ElementType type :
       {ElementType::kF64, ElementType::kF32, ElementType::kF16, ElementType::kBF16,
        ElementType::kF8E5M2, ElementType::kF8E4M3FN, ElementType::kF8E4M3, ElementType::kF8E3M4,
        ElementType::kF8E4M3B11FNUZ, ElementType::kF8E5M2FNUZ, ElementType::kF8E4M3FNUZ,
        ElementType::kF8E8M0FNU, ElementType::kF4E2M1FN}) {
    const double next = 1 + Epsilon(type);
    EXPECT_EQ(RoundTrip(type, next), next) << TypeName(type);
    EXPECT_EQ(RoundTrip(type, 1 + Epsilon(type) / 4), 1) << TypeName(type);
  }
  EXPECT_EQ(Epsilon(ElementType::kC64), Epsilon(ElementType::kF32));
  EXPECT_EQ(Epsilon(ElementType::kC128), Epsilon(ElementType::kF64));
  EXPECT_EQ(Epsilon(ElementType::kS32), 0);
}

TEST(Literal, IntegersSaturateAndKeepTheirSign) {
  EXPECT_EQ(RoundTrip(ElementType::kS8, -1), -1);
  EXPECT_EQ(RoundTrip(ElementType::kS8, 300), 127);
  EXPECT_EQ(RoundTrip(ElementType::kU8, -5), 0);
  EXPECT_EQ(RoundTrip(ElementType::kS4, -3), -3);
  EXPECT_EQ(RoundTrip(ElementType::kU4, 15), 15);
  EXPECT_EQ(RoundTrip(ElementType::kS64, -9e18), -9e18);
  EXPECT_EQ(RoundTrip(ElementType::kU64, 1.8e19), 1.8e19);
  EXPECT_EQ(RoundTrip(ElementType::kS32, 2.9), 2);
  EXPECT_EQ(RoundTrip(ElementType::kPred, 7), 1);
}

TEST(Literal, ConvertKeepsShapeAndValues) {
  const Literal ones = FilledLiteral({ElementType::kBF16, {2, 3}}, 1.5);
  const Literal wide = ConvertLiteral(ones, ElementType::kF64);
  EXPECT_EQ(wide, FilledLiteral({ElementType::kF64, {2, 3}}, 1.5));
  EXPECT_EQ(wide.bytes->size(), 48U);
}

TEST(Shape, TextAndTypesParseBack) {
  EXPECT_EQ(ToString({ElementType::kBF16, {8, 128}}), "bf16[8,128]");
  EXPECT_EQ(ToString({ElementType::kPred, {}}), "pred[]");
  for (int number = 1; number <= 33; ++number) {
    const auto type = static_cast<ElementType>(number);
    if (number == 13) continue;  // TUPLE is not a type of minka
    EXPECT_EQ(ParseType(TypeName(type)), type) << number;
  }
  EXPECT_EQ(ParseType("f33"), std::nullopt);
}

// "s4", "bf16" and "f8e5m2" name their bits first; the bytes are the fewest that hold them.
TEST(Shape, TypesHaveTheBitsThatTheirNamesSay) {
  for (int number = 1; number <= 33; ++number) {
    const auto type = static_cast<ElementType>(number);
    const std::string name(TypeName(type));
    const size_t digit = name.find_first_of("0123456789");
    if (digit == std::string::npos) continue;
    const int64_t bits = std::stoi(name.substr(digit));
    EXPECT_EQ(ElementBits(type), bits) << name;
    EXPECT_EQ(ElementBytes(type), std::max<int64_t>(1, bits / 8)) << name;
  }
  EXPECT_EQ(ElementBits(ElementType::kPred), 8);
  EXPECT_EQ(ElementBits(ElementType::kToken), 0);
  EXPECT_EQ(ElementBytes(ElementType::kToken), 0);
}

}  // namespace
}  // namespace minka
