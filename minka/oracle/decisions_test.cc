#include "minka/oracle/decisions.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/ir/hlo_proto.h"
#include "minka/ir/verifier.h"

namespace minka {
namespace {

using ::testing::ElementsAre;

// A relu, equality with a maximum and with something else, arg-max, a sort that moves numbers.
constexpr char kModule[] = R"(HloModule decisions

max {
  p = f32[] parameter(0)
  q = f32[] parameter(1)
  ROOT m = f32[] maximum(p, q)
}

first_largest {
  a = f32[] parameter(0)
  i = s32[] parameter(1)
  b = f32[] parameter(2)
  j = s32[] parameter(3)
  larger = pred[] compare(a, b), direction=GE
  value = f32[] select(larger, a, b)
  place = s32[] select(larger, i, j)
  ROOT t = (f32[], s32[]) tuple(value, place)
}

descending {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  i = s32[] parameter(2)
  j = s32[] parameter(3)
  ROOT larger = pred[] compare(a, b), direction=GT
}

ENTRY main {
  x = f32[2,3] parameter(0)
  low = f32[] constant(-inf)
  none = s32[] constant(0)
  zeros = f32[2,3] broadcast(low), dimensions={}
  relu = pred[2,3] compare(x, zeros), direction=GT
  same = pred[2,3] compare(x, zeros), direction=EQ
  largest = f32[2] reduce(x, low), dimensions={1}, to_apply=max
  repeated = f32[2,3] broadcast(largest), dimensions={0}
  is_largest = pred[2,3] compare(x, repeated), direction=EQ
  numbers = s32[2,3] iota(), iota_dimension=1
  arg_max = (f32[2], s32[2]) reduce(x, numbers, low, none), dimensions={1}, to_apply=first_largest
  order = (f32[2,3], s32[2,3]) sort(x, numbers), dimensions={1}, to_apply=descending
  top = (f32[2,2], s32[2,2]) topk(x), k=2, largest=true
  arg_max_place = s32[2] get-tuple-element(arg_max), index=1
  places = s32[2,3] get-tuple-element(order), index=1
  top_places = s32[2,2] get-tuple-element(top), index=1
  ROOT results = (pred[2,3], pred[2,3], pred[2,3], s32[2], s32[2,3], s32[2,2]) tuple(relu, same, is_largest, arg_max_place, places, top_places)
}
)";

Module Decisions() { return *ParseHloText(kModule); }

// Result `number` of the module.
Value ResultOf(const Module& module, int number) {
  return module.entry_computation().results[number];
}

template <typename T>
Literal Array(ElementType type, std::vector<int64_t> dims, const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return {{type, std::move(dims)}, std::make_shared<const std::string>(std::move(bytes))};
}

const Literal kKeys = Array<float>(ElementType::kF32, {2, 3}, {1, 4, 3.75F, 8, 7, 6});
const Literal kNumbers = Array<int32_t>(ElementType::kS32, {2, 3}, {0, 1, 2, 0, 1, 2});

TEST(FindPicks, AreEqualityWithAMaximumAndThePlacesOfWhatIsPicked) {
  const Module module = Decisions();
  EXPECT_THAT(FindPicks(module), ElementsAre(ResultOf(module, 2), ResultOf(module, 3),
                                             ResultOf(module, 4), ResultOf(module, 5)));
  EXPECT_TRUE(IsDecision(module, ResultOf(module, 0)));
  EXPECT_TRUE(IsDecision(module, ResultOf(module, 1)));
}

TEST(TurnedElements, OfAnArgMaxLieAsFarAsTheKeysOfBothPicks) {
  const Module module = Decisions();
  const Literal other = Array<int32_t>(ElementType::kS32, {2}, {1, 0});
  const Literal mine = Array<int32_t>(ElementType::kS32, {2}, {2, 0});
  const std::vector<Literal> inputs = {kKeys, kNumbers,
                                       Array<float>(ElementType::kF32, {2}, {4, 8})};
  EXPECT_EQ(InputsOfDecision(module, ResultOf(module, 3)).size(), inputs.size());
  const std::vector<TurnedElement> turned =
      TurnedElements(module, ResultOf(module, 3), inputs, mine, other);
  ASSERT_EQ(turned.size(), 1u);
  EXPECT_EQ(turned[0].element, 0);
  EXPECT_EQ(turned[0].distance, 0.25);
}

// In each row each of the others could have been the largest instead.
TEST(OtherPicks, OfAnEqualityWithTheLargestTakeItsPlace) {
  const Module module = Decisions();
  const Literal decided = Array<char>(ElementType::kPred, {2, 3}, {0, 1, 0, 1, 0, 0});
  const std::vector<Literal> inputs = {kKeys,
                                       Array<float>(ElementType::kF32, {2, 3}, {4, 4, 4, 8, 8, 8})};
  const std::vector<OtherPick> others = OtherPicks(module, ResultOf(module, 2), inputs, decided);
  ASSERT_EQ(others.size(), 4u);
  EXPECT_EQ(others[0].distance, 3);
  EXPECT_THAT(others[0].turned, ElementsAre(1, 0));
  EXPECT_EQ(others[1].distance, 0.25);
  EXPECT_THAT(others[1].turned, ElementsAre(1, 2));
  EXPECT_EQ(others[2].distance, 1);
  EXPECT_THAT(others[2].turned, ElementsAre(3, 4));
  EXPECT_EQ(others[3].distance, 2);
  EXPECT_THAT(others[3].turned, ElementsAre(3, 5));
  EXPECT_TRUE(OtherPicks(module, ResultOf(module, 1), inputs, decided).empty());
}

TEST(TurnedElements, OfASortAndOfTopKAreThoseThatChangedPlaces) {
  const Module module = Decisions();
  const Literal sorted = Array<float>(ElementType::kF32, {2, 3}, {4, 3.75F, 1, 8, 7, 6});
  const Literal other = Array<int32_t>(ElementType::kS32, {2, 3}, {1, 2, 0, 0, 1, 2});
  const Literal mine = Array<int32_t>(ElementType::kS32, {2, 3}, {2, 1, 0, 0, 1, 2});
  const std::vector<TurnedElement> turned = TurnedElements(
      module, ResultOf(module, 4), std::vector<Literal>{kKeys, kNumbers, sorted}, mine, other);
  ASSERT_EQ(turned.size(), 2u);
  EXPECT_EQ(turned[1].element, 1);
  EXPECT_EQ(turned[1].distance, 0.25);

  const Literal best = Array<float>(ElementType::kF32, {2, 2}, {4, 3.75F, 8, 7});
  const std::vector<TurnedElement> of_top =
      TurnedElements(module, ResultOf(module, 5), std::vector<Literal>{kKeys, best},
                     Array<int32_t>(ElementType::kS32, {2, 2}, {1, 2, 0, 2}),
                     Array<int32_t>(ElementType::kS32, {2, 2}, {1, 2, 0, 1}));
  ASSERT_EQ(of_top.size(), 1u);
  EXPECT_EQ(of_top[0].element, 3);
  EXPECT_EQ(of_top[0].distance, 1);
}

TEST(TurnedElements, OfNumbersThatNobodyCouldPickLieNowhere) {
  const Module module = Decisions();
  const std::vector<Literal> inputs = {kKeys, kNumbers,
                                       Array<float>(ElementType::kF32, {2}, {4, 8})};
  const std::vector<TurnedElement> turned = TurnedElements(
      module, ResultOf(module, 3), inputs, Array<int32_t>(ElementType::kS32, {2}, {9, 0}),
      Array<int32_t>(ElementType::kS32, {2}, {1, 0}));
  ASSERT_EQ(turned.size(), 1u);
  EXPECT_TRUE(std::isnan(turned[0].distance));
}

TEST(WithGiven, ReadsTheValuesFromParametersBehindItsOwn) {
  const Module module = Decisions();
  const Step step{.module = module, .parameters = {{}}, .results = std::vector<ResultInfo>(6)};
  const std::vector<Value> picks = FindPicks(module);
  const Step given = WithGiven(step, picks);
  EXPECT_TRUE(Verify(given.module).ok());
  const Computation& entry = given.module.entry_computation();
  ASSERT_EQ(entry.parameters.size(), 1 + picks.size());
  ASSERT_EQ(given.parameters.size(), 1 + picks.size());
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(entry.results[2 + i].instruction, entry.parameters[1 + i]);
  }
  EXPECT_EQ(entry.instruction(entry.results[0]).opcode, Opcode::kCompare);
}

TEST(WithGiven, ReadsChoicesFromParametersWhereTheirFlagSaysSo) {
  const Module module = Decisions();
  const Step step{.module = module, .parameters = {{}}, .results = std::vector<ResultInfo>(6)};
  const Value compare = module.entry_computation().results[0];
  const std::vector<Value> picks = FindPicks(module);
  const Step given = WithGiven(step, {{picks[0]}}, {{compare}});
  ASSERT_TRUE(Verify(given.module).ok());
  const Computation& entry = given.module.entry_computation();
  ASSERT_EQ(entry.parameters.size(), 4);
  const Instruction& chosen = entry.instruction(entry.results[0]);
  ASSERT_EQ(chosen.opcode, Opcode::kSelect);
  EXPECT_EQ(entry.instruction(chosen.operands[0]).operands[0].instruction, entry.parameters[2]);
  EXPECT_EQ(chosen.operands[1].instruction, entry.parameters[3]);
  EXPECT_EQ(entry.instruction(chosen.operands[2]).opcode, Opcode::kCompare);
  EXPECT_EQ(entry.results[2].instruction, entry.parameters[1]);
}

}  // namespace
}  // namespace minka
