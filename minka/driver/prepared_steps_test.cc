#include "minka/driver/prepared_steps.h"

#include <array>

#include "gtest/gtest.h"
#include "minka/base/check.h"
#include "minka/base/parallel.h"
#include "minka/base/status.h"
#include "minka/driver/prepare.h"
#include "minka/models/registry.h"

namespace minka {
namespace {

Step SimplifiedGpt() {
  const absl::StatusOr<TracedStep> traced = TraceModel("gpt-tiny", {.num_layers = 2});
  MINKA_CHECK(traced.ok(), "{}", Message(traced.status()));
  auto simplified = Simplify(traced->step, MarkedLayers{}, /*unrolls_loops=*/true);
  MINKA_CHECK(simplified.ok(), "{}", Message(simplified.status()));
  return *std::move(simplified);
}

TEST(PreparedSteps, ThreadsThatAskForOneGetTheSame) {
  PreparedSteps steps(SimplifiedGpt());
  std::array<absl::StatusOr<const Step*>, 8> found;
  ForEachInParallel(8, 4, [&](int i) {
    found[i] = steps.With({i % 2 == 0 ? RematPolicy::kNone : RematPolicy::kAll},
                          {.num_micro_batches = 1 + i / 4});
  });
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(found[i].ok()) << Message(found[i].status());
    EXPECT_EQ(*found[i], *found[i / 4 * 4 + i % 2]);
    EXPECT_EQ((*found[i])->module.num_micro_batches, 1 + i / 4);
  }
  EXPECT_NE(*found[0], *found[1]);
}

TEST(PreparedSteps, WhatCannotBePreparedSaysSoAgain) {
  PreparedSteps steps(SimplifiedGpt());
  const absl::Status refused = steps.With({}, {.num_micro_batches = 7}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(steps.With({}, {.num_micro_batches = 7}).status(), refused);
}

}  // namespace
}  // namespace minka
