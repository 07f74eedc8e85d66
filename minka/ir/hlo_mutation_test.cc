// Modules with random damage: import and text must refuse or accept, never crash, and what they
// accept must survive a round trip.
#include <cstring>
#include <random>

#include "gtest/gtest.h"
#include "minka/base/file.h"
#include "minka/base/status.h"
#include "minka/ir/hlo_proto.h"
#include "minka/ir/module_equality.h"

namespace minka {
namespace {

const std::string kTestdata = MINKA_TESTDATA;

std::string Read(const std::string& path) {
  auto bytes = ReadFile(path);
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  return bytes.ok() ? *bytes : "";
}

size_t Position(std::mt19937_64& random, const std::string& bytes) {
  return bytes.empty() ? 0 : random() % bytes.size();
}

void Mutate(std::mt19937_64& random, std::string& bytes) {
  const size_t position = Position(random, bytes);
  switch (random() % 5) {
    case 0:  // flip a bit
      bytes[position] = static_cast<char>(bytes[position] ^ (1 << random() % 8));
      break;
    case 1:  // a small or an extreme number
      bytes[position] = static_cast<char>(random() % 2 == 0 ? random() % 20 : 255);
      break;
    case 2:  // copy a piece elsewhere, over what is there
      for (size_t i = 0, from = Position(random, bytes); i < 1 + random() % 16; ++i) {
        if (position + i < bytes.size() && from + i < bytes.size()) {
          bytes[position + i] = bytes[from + i];
        }
      }
      break;
    case 3:  // insert a piece
      bytes.insert(position, bytes.substr(Position(random, bytes), random() % 16));
      break;
    default:  // remove a piece
      bytes.erase(position, random() % 4);
      break;
  }
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
    for (size_t k = 0; k < num_mutations; ++k) Mutate(random, bytes);
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
  const auto module = ParseHloText(Read(kTestdata + "/opcodes.hlo"));
  ASSERT_TRUE(module.ok()) << module.status();
  const Outcome outcome = RunMutations(ExportHlo(*module), 3000, ImportHlo, ExportHlo);
  EXPECT_GT(outcome.accepted, 100);
  EXPECT_GT(outcome.refused, 1000);
}

TEST(HloMutation, TextOfEveryOpcode) {
  const Outcome outcome =
      RunMutations(Read(kTestdata + "/opcodes.hlo"), 3000, ParseHloText, HloText);
  EXPECT_GT(outcome.accepted, 100);
  EXPECT_GT(outcome.refused, 1000);
}

TEST(HloMutation, SmallJaxModule) {
  const std::string bytes = Read(kTestdata + "/../../../tests/testdata/jax/small_embedding.pb");
  const Outcome outcome = RunMutations(bytes, 3000, ImportHlo, ExportHlo);
  EXPECT_GT(outcome.accepted, 100);
  EXPECT_GT(outcome.refused, 1000);
}

}  // namespace
}  // namespace minka
