#include "minka/planner/intra_op/constraints.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/status.h"

namespace minka {
namespace {

const SearchOptions kAsked = {.memory_limit_bytes = 100,
                              .pins = {"x=[a,-]", "w=[-,a]"},
                              .limits = {.no_all_gather = true,
                                         .batch_axis = "a",
                                         .no_sequence_split = true,
                                         .combine_gathers_bytes = 8},
                              .gap = 0.1};

TEST(Constraints, AreTakenAwayOneByOne) {
  const std::vector<Constraint> constraints = ConstraintsOf(kAsked);
  std::vector<std::string> flags;
  for (const Constraint& constraint : constraints) flags.push_back(constraint.flag);
  EXPECT_THAT(flags, testing::ElementsAre("--pin x=[a,-]", "--pin w=[-,a]", "--no-all-gather",
                                          "--batch-axis a", "--no-sequence-split"));
  SearchOptions without = kAsked;
  without.pins = {"w=[-,a]"};
  EXPECT_EQ(constraints[0].without, without);
  without = kAsked;
  without.limits.batch_axis.clear();
  EXPECT_EQ(constraints[3].without, without);
  EXPECT_THAT(ConstraintsOf({.limits = {.prefer_reduce_scatter = true}}), testing::IsEmpty());
}

bool Pins(const SearchOptions& options, const std::string& pin) {
  return std::ranges::find(options.pins, pin) != options.pins.end();
}

TEST(NameCulprits, NamesEveryConstraintThatIsEnoughByItself) {
  const TrySearch search = [](const SearchOptions& options) -> absl::Status {
    const bool is_free = !Pins(options, "x=[a,-]") || !options.limits.no_all_gather;
    return is_free ? absl::OkStatus() : FailedPrecondition("no");
  };
  EXPECT_EQ(Message(NameCulprits({FailedPrecondition("nothing obeys")}, kAsked, search)),
            "nothing obeys; there is one without --pin x=[a,-] or without --no-all-gather: drop "
            "one of them");
}

TEST(NameCulprits, NamesAllWhereOneIsNotEnough) {
  const TrySearch search = [](const SearchOptions& options) -> absl::Status {
    const bool is_free = options.pins.empty() && options.memory_limit_bytes == 100;
    return is_free ? absl::OkStatus() : FailedPrecondition("no");
  };
  EXPECT_EQ(Message(NameCulprits({FailedPrecondition("nothing obeys")}, kAsked, search)),
            "nothing obeys; there is one without --pin x=[a,-], --pin w=[-,a], --no-all-gather, "
            "--batch-axis a, --no-sequence-split: drop more than one of them");
}

TEST(NameCulprits, ARefusalForWantOfMemoryKeepsTheLimitThatWorks) {
  const Refusal refusal = {.why = ResourceExhausted("nothing fits"), .smallest_limit_bytes = 200};
  const TrySearch search = [](const SearchOptions& options) -> absl::Status {
    return Pins(options, "w=[-,a]") ? ResourceExhausted("no") : absl::OkStatus();
  };
  const Refusal named = NameCulprits(refusal, kAsked, search);
  EXPECT_EQ(Message(named), "nothing fits; one fits without --pin w=[-,a]: drop it");
  EXPECT_EQ(named.why.code(), refusal.why.code());
  EXPECT_EQ(named.smallest_limit_bytes, 200);
}

TEST(NameCulprits, LeavesOtherRefusalsAsTheyAre) {
  const TrySearch never = [](const SearchOptions&) -> absl::Status {
    return FailedPrecondition("no");
  };
  EXPECT_EQ(Message(NameCulprits({FailedPrecondition("nothing obeys")}, kAsked, never)),
            "nothing obeys");
  const TrySearch always = [](const SearchOptions&) { return absl::OkStatus(); };
  EXPECT_EQ(Message(NameCulprits({InvalidArgument("a bad pin")}, kAsked, always)), "a bad pin");
  EXPECT_EQ(Message(NameCulprits({FailedPrecondition("nothing obeys")}, {}, always)),
            "nothing obeys");
}

}  // namespace
}  // namespace minka
