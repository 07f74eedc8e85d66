#include "minka/oracle/replicas.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace minka {
namespace {

// Bytes as elements; rows of a [4,2] array are split over b on a mesh a=2,b=2, so devices 0 and 2
// hold the same part, and so do 1 and 3.
std::optional<ReplicaDifference> Find(const std::vector<std::string>& parts,
                                      const char* sharding = "[b,-]") {
  const Mesh mesh = *Mesh::Parse("a=2,b=2");
  return FindReplicaDifference(parts, {ElementType::kU8, {4, 2}}, *ParseSharding(sharding, mesh),
                               mesh);
}

TEST(FindReplicaDifference, EqualReplicasHaveNone) {
  EXPECT_FALSE(Find({"abcd", "efgh", "abcd", "efgh"}).has_value());
  EXPECT_FALSE(Find({"ab", "cd", "ef", "gh"}, "[a+b,-]").has_value()) << "there are no replicas";
}

TEST(FindReplicaDifference, NamesDevicesAndTheFirstElement) {
  const auto difference = Find({"abcd", "efgh", "abcd", "eXgX"});
  ASSERT_TRUE(difference.has_value());
  EXPECT_EQ(difference->device, 3);
  EXPECT_EQ(difference->other, 1);
  EXPECT_EQ(difference->num_elements, 2);
  EXPECT_EQ(difference->element, 1);
}

TEST(FindReplicaDifference, ElementsOfSeveralBytesCountOnce) {
  const Mesh mesh = *Mesh::Parse("2");
  const auto difference =
      FindReplicaDifference(std::vector<std::string>{"aaaabbbb", "aaaaBBBb"},
                            {ElementType::kF32, {2}}, Sharding::Replicated(1), mesh);
  ASSERT_TRUE(difference.has_value());
  EXPECT_EQ(difference->num_elements, 1);
  EXPECT_EQ(difference->element, 1);
}

}  // namespace
}  // namespace minka
