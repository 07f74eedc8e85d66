#include "minka/solver/improve/turns.h"

#include <gtest/gtest.h>

#include <map>

namespace minka {
namespace {

TEST(TurnsTest, NobodyWaitsForEverAndWhoGainsMostComesEveryOtherTime) {
  Turns turns(4);
  std::map<size_t, int> num_turns;
  for (int i = 0; i < 120; ++i) {
    const size_t member = *turns.Next({1, 1, 1, 1});
    ++num_turns[member];
    turns.Note(member, /*work=*/10, /*gained=*/member == 2 ? 5 : 0);
  }
  EXPECT_GE(num_turns[2], 60);
  for (const size_t member : {0, 1, 3}) EXPECT_GE(num_turns[member], 15) << member;
}

TEST(TurnsTest, GainsCountByTheWorkThatTheyTook) {
  Turns turns(2);
  turns.Note(0, /*work=*/1000, /*gained=*/20);
  turns.Note(1, /*work=*/10, /*gained=*/1);
  const size_t first = *turns.Next({1, 1}), second = *turns.Next({1, 1});
  EXPECT_EQ(first, 0);  // has waited longest
  EXPECT_EQ(second, 1);
}

TEST(TurnsTest, WhoMayNotRunHasNoTurn) {
  Turns turns(3);
  EXPECT_EQ(turns.Next({0, 0, 0}), std::nullopt);
  turns.Note(0, 1, 100);
  EXPECT_EQ(turns.Next({0, 0, 1}), 2);
  EXPECT_EQ(turns.Next({0, 0, 1}), 2);
}

}  // namespace
}  // namespace minka
