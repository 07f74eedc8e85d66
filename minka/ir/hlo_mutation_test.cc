// Modules with random damage: import and text must refuse or accept, never crash, and what they
// accept must survive a round trip.
#include <random>

#include "gtest/gtest.h"
#include "minka/base/file.h"
#include "minka/base/status.h"
#include "minka/ir/hlo_proto.h"
#include "minka/ir/module_equality.h"
#include "tests/support/mutation.h"

namespace minka {
namespace {

std::string Read(const std::string& path) {
  auto bytes = ReadFile(path);
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  return bytes.ok() ? *bytes : "";
}

struct Outcome {
  int accepted = 0, refused = 0;
};

template <typename Read, typename Write>
Outcome RunMutations(const std::string& original, int count, Read read, Write write) {
  std::mt19937_64 random(count);
  Outcome outcome;
  for (int i = 0; i < count; ++i) {
    std::string bytes = original;
    const auto num_mutations = 1 + random() % 3;
    for (size_t k = 0; k < num_mutations; ++k) MutateBytes(random, bytes);
    const auto module = read(bytes);
    ++(module.ok() ? outcome.accepted : outcome.refused);
    if (!module.ok()) {
      EXPECT_FALSE(Message(module.status()).empty());
      continue;
    }
    // Names may collide after damage; the first export makes them unique.
    const auto first = read(write(*module));
    EXPECT_TRUE(first.ok()) << "mutation " << i << ": " << first.status();
    if (!first.ok()) continue;
    const auto second = read(write(*first));
    EXPECT_TRUE(second.ok()) << "mutation " << i << ": " << second.status();
    if (second.ok()) {
      EXPECT_EQ(Difference(*first, *second), "") << "mutation " << i;
    }
  }
  return outcome;
}

TEST(HloMutation, ProtosOfEveryOpcode) {
  const auto module = ParseHloText(Read(MINKA_TESTDATA "/opcodes.hlo"));
  ASSERT_TRUE(module.ok()) << module.status();
  const Outcome outcome = RunMutations(ExportHlo(*module), 3000, ImportHlo, ExportHlo);
  EXPECT_GT(outcome.accepted, 100);
  EXPECT_GT(outcome.refused, 1000);
}

TEST(HloMutation, TextOfEveryOpcode) {
  const Outcome outcome =
      RunMutations(Read(MINKA_TESTDATA "/opcodes.hlo"), 3000, ParseHloText, HloText);
  EXPECT_GT(outcome.accepted, 100);
  EXPECT_GT(outcome.refused, 1000);
}

TEST(HloMutation, SmallJaxModule) {
  const std::string bytes = Read(MINKA_TESTDATA "/../../../tests/testdata/jax/small_embedding.pb");
  const Outcome outcome = RunMutations(bytes, 3000, ImportHlo, ExportHlo);
  EXPECT_GT(outcome.accepted, 100);
  EXPECT_GT(outcome.refused, 1000);
}

}  // namespace
}  // namespace minka
