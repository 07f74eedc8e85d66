#include "minka/oracle/comparison.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "gtest/gtest.h"

namespace minka {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
using ElementType::kF32, ElementType::kF64;
constexpr double kF32Epsilon = 0x1p-23, kBf16Epsilon = 0x1p-7;

Literal Filled(ElementType type, double value, int64_t count = 4) {
  return FilledLiteral({type, {count}}, value);
}

Literal OfElements(const std::vector<double>& elements, ElementType type = kF32) {
  std::string bytes(elements.size() * sizeof(double), '\0');
  std::memcpy(bytes.data(), elements.data(), bytes.size());
  const Literal wide{{kF64, {static_cast<int64_t>(elements.size())}},
                     std::make_shared<const std::string>(std::move(bytes))};
  return ConvertLiteral(wide, type);
}

// An f32 result that is no state, 1 in exact arithmetic.
OutputComparison Compare(double minka, double single, double nudged) {
  return CompareResult({.minka = Filled(kF32, minka),
                        .single = Filled(kF32, single),
                        .reference = Filled(kF64, 1),
                        .nudged = {Filled(kF32, nudged)}},
                       {.own_epsilon = kF32Epsilon, .path_epsilon = kF32Epsilon});
}

TEST(CompareResult, AllowsFourTimesTheErrorOfOneDevice) {
  EXPECT_TRUE(Compare(0.997, 1.001, 1.001).ok());
  EXPECT_FALSE(Compare(0.995, 1.001, 1.001).ok());
  // One device is exact: a few roundings are allowed.
  EXPECT_TRUE(Compare(1.0000005, 1, 1).ok());
  EXPECT_FALSE(Compare(1.00001, 1, 1).ok());
}

TEST(CompareResult, AllowsFourTimesWhatARoundingOfTheInputsDoes) {
  EXPECT_TRUE(Compare(0.997, 1, 1.001).ok());
  EXPECT_FALSE(Compare(0.995, 1, 1.001).ok());
}

TEST(CompareResult, TheLargestOfSeveralDrawsCounts) {
  const auto ok = [](double minka) {
    return CompareResult({.minka = Filled(kF32, minka),
                          .single = Filled(kF32, 1),
                          .reference = Filled(kF64, 1),
                          .nudged = {Filled(kF32, 1), Filled(kF32, 1.001), Filled(kF32, 1)}},
                         {.own_epsilon = kF32Epsilon, .path_epsilon = kF32Epsilon})
        .ok();
  };
  EXPECT_TRUE(ok(0.997));
  EXPECT_FALSE(ok(0.995));
}

// The square of a gradient that is zero in exact arithmetic.
TEST(CompareResult, WhatIsNothingButNoiseMayBeItsSquare) {
  const auto ok = [](double minka, double reference) {
    return CompareResult({.minka = Filled(kF32, minka),
                          .single = Filled(kF32, reference + 1e-18),
                          .reference = Filled(kF64, reference)},
                         {.own_epsilon = kF32Epsilon, .path_epsilon = kF32Epsilon})
        .ok();
  };
  EXPECT_TRUE(ok(15e-18, 1e-36));
  EXPECT_FALSE(ok(17e-18, 1e-36));
  EXPECT_FALSE(ok(15e-18, 2e-18));
}

// f32 state of 1000 elements, computed from bf16, that the step takes from 1000 to 999, or to
// `minka` in the last `num_off` elements.
OutputComparison CompareState(double minka, int num_off, double nudged = 999,
                              double nudged_before = 1000) {
  std::vector<double> elements(1000, 999);
  std::fill(elements.end() - num_off, elements.end(), minka);
  const Literal before = Filled(kF32, 1000, 1000), after = Filled(kF32, 999, 1000);
  PartsOfResult parts{.of_elements = std::vector<int32_t>(1000), .devices = {0, 5}};
  std::fill(parts.of_elements.begin() + 500, parts.of_elements.end(), 1);
  return CompareResult({.minka = OfElements(elements),
                        .single = after,
                        .reference = ConvertLiteral(after, kF64),
                        .nudged = {Filled(kF32, nudged, 1000)},
                        .before = before,
                        .nudged_before = {Filled(kF32, nudged_before, 1000)}},
                       {.own_epsilon = kF32Epsilon, .path_epsilon = kBf16Epsilon, .is_state = true},
                       parts);
}

TEST(CompareResult, NarrowTypesOnTheWayTurnAFewSignsOfAnUpdate) {
  EXPECT_TRUE(CompareState(1001, 3).ok());
  const OutputComparison too_many = CompareState(1001, 100);
  EXPECT_EQ(too_many.fault, Fault::kValue);
  EXPECT_EQ(too_many.device, 5) << "its part has most of them";
}

TEST(CompareResult, NudgedStateIsComparedByWhatTheStepAddsToIt) {
  EXPECT_FALSE(CompareState(999.4, 1000, 1007, 1008).ok());
  EXPECT_TRUE(CompareState(999.4, 1000, 1007.1, 1008).ok());
}

TEST(CompareResult, StateThatStaysAsItWasOnOneDeviceIsRefused) {
  const OutputComparison skipped = CompareState(1000, 500);
  EXPECT_EQ(skipped.fault, Fault::kNotApplied);
  EXPECT_EQ(skipped.device, 5);
  EXPECT_EQ(CompareState(1000, 1000).fault, Fault::kNotApplied);
}

TEST(CompareResult, NarrowStateThatRoundsItsChangeAwayMayStay) {
  // One device's run keeps half of the elements, too.
  const Literal before = Filled(ElementType::kBF16, 1, 2);
  const OutputComparison out =
      CompareResult({.minka = before,
                     .single = OfElements({1, 1.0078125}, ElementType::kBF16),
                     .reference = Filled(kF64, 1.004, 2),
                     .nudged = {before},
                     .before = before,
                     .nudged_before = {before}},
                    {.own_epsilon = kBf16Epsilon, .path_epsilon = kBf16Epsilon, .is_state = true});
  EXPECT_TRUE(out.ok());
}

TEST(CompareResult, IntegersMustBeEqual) {
  const Literal one = Filled(ElementType::kS32, 1), two = Filled(ElementType::kS32, 2);
  EXPECT_TRUE(CompareResult({.minka = one, .single = one, .reference = one}, {}).ok());
  const OutputComparison different =
      CompareResult({.minka = two, .single = one, .reference = one}, {});
  EXPECT_FALSE(different.ok());
  EXPECT_EQ(different.largest_difference, 1);
}

// f32 on one device and in exact arithmetic.
Fault FaultOf(double minka, double single, double reference) {
  return CompareResult({.minka = OfElements({minka, 1}),
                        .single = OfElements({single, 1}),
                        .reference = OfElements({reference, 1}, kF64)},
                       {.own_epsilon = kF32Epsilon, .path_epsilon = kF32Epsilon})
      .fault;
}

TEST(CompareResult, WhatIsNotFiniteMustBeSoOnOneDevice) {
  EXPECT_EQ(FaultOf(INFINITY, 1, 1), Fault::kNotFinite);
  EXPECT_EQ(FaultOf(kNan, 1, 1), Fault::kNotFinite);
  EXPECT_EQ(FaultOf(1, kNan, kNan), Fault::kNotFinite);
  EXPECT_EQ(FaultOf(1, INFINITY, INFINITY), Fault::kNotFinite);
  EXPECT_EQ(FaultOf(-INFINITY, INFINITY, INFINITY), Fault::kNotFinite);
  EXPECT_EQ(FaultOf(INFINITY, kNan, kNan), Fault::kNotFinite);
  EXPECT_EQ(FaultOf(INFINITY, INFINITY, INFINITY), Fault::kNone);
  EXPECT_EQ(FaultOf(kNan, kNan, kNan), Fault::kNone);
  // Overflow of the narrow type: another order of the sum may have none, or no number.
  EXPECT_EQ(FaultOf(1, INFINITY, 1), Fault::kNone);
  EXPECT_EQ(FaultOf(kNan, INFINITY, 1), Fault::kNone);
}

TEST(CompareResult, CountsAndNamesWhatIsNotFinite) {
  const OutputComparison out = CompareResult({.minka = OfElements({1, kNan, kNan}),
                                              .single = OfElements({1, kNan, 2}),
                                              .reference = OfElements({1, kNan, 2}, kF64)},
                                             {});
  EXPECT_EQ(out.num_not_finite, 1);
  EXPECT_EQ(out.detail, "1 of 3 elements; element 2 is nan and 2 on one device");
}

TEST(CompareResult, RandomResultsOnlyKeepTheirRange) {
  const auto fault = [](double minka) {
    const Literal half = Filled(kF32, 0.5);
    return CompareResult(
               {.minka = Filled(kF32, minka), .single = half, .reference = Filled(kF64, 0.5)},
               {.is_random = true})
        .fault;
  };
  EXPECT_EQ(fault(0.5), Fault::kNone);
  EXPECT_EQ(fault(7), Fault::kValue);
  EXPECT_EQ(fault(kNan), Fault::kValue);
}

TEST(CompareResult, AnotherShapeIsAFault) {
  EXPECT_EQ(CompareResult({.minka = Filled(kF32, 1, 3), .single = Filled(kF32, 1)}, {}).fault,
            Fault::kShape);
}

// Ten arrays of three elements in f32 behind bf16; of so many the change has the wrong sign.
std::vector<OutputComparison> SmallState(int num_wrong) {
  const ResultRounding rounding{
      .own_epsilon = kF32Epsilon, .path_epsilon = kBf16Epsilon, .is_state = true};
  std::vector<OutputComparison> outputs;
  for (int i = 0; i < 10; ++i) {
    const Literal before = Filled(kF32, 0, 3), after = Filled(kF32, 1, 3);
    outputs.push_back(CompareResult({.minka = Filled(kF32, i < num_wrong ? -1 : 1, 3),
                                     .single = after,
                                     .reference = Filled(kF64, 1, 3),
                                     .nudged = {after},
                                     .before = before,
                                     .nudged_before = {before}},
                                    rounding));
  }
  CompareStateTogether(std::vector<ResultRounding>(10, rounding), outputs);
  return outputs;
}

TEST(CompareStateTogether, AllowsFourElementsOfAllArrays) {
  const auto num_faults = [](int num_wrong) {
    return std::ranges::count_if(SmallState(num_wrong), [](const OutputComparison& output) {
      return output.fault == Fault::kTogether;
    });
  };
  EXPECT_EQ(num_faults(0), 0);
  EXPECT_EQ(num_faults(1), 0);
  EXPECT_EQ(num_faults(2), 1);
  EXPECT_EQ(SmallState(2)[0].detail,
            "the error of all state together is 0.894 of its change, allowed 0.73, and most of it "
            "here: 3.46 of 1.73");
}

}  // namespace
}  // namespace minka
