#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/core_distance.h"
#include "minka/base/file.h"
#include "minka/base/gzip.h"
#include "minka/base/hash.h"
#include "minka/base/json.h"
#include "minka/base/parallel.h"
#include "minka/base/processor_time.h"
#include "minka/base/status.h"

namespace minka {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<int> Half(int value) {
  if (value % 2 != 0) return InvalidArgument("{} is odd", value);
  return value / 2;
}

absl::StatusOr<int> Quarter(int value) {
  ASSIGN_OR_RETURN(const int half, Half(value));
  return Half(half);
}

TEST(Status, AssignOrReturnPassesTheFirstErrorOn) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_EQ(Message(Quarter(6).status()), "3 is odd");
}

TEST(Status, ContextGoesInFrontAndKeepsTheCode) {
  const absl::Status status = WithContext(NotFound("no plug"), "x.so");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Message(status), "x.so: no plug");
}

TEST(Hash, IsTheSameEverywhere) {
  EXPECT_EQ(HashText(StableHash("minka")), HashText(StableHash("minka")));
}

TEST(ParseJson, RefusesWhatReadersCouldTripOver) {
  const auto refusal = [](const std::string& text) { return Message(ParseJson(text).status()); };
  EXPECT_THAT(refusal("{"), HasSubstr("not JSON: "));
  EXPECT_THAT(refusal("[1e999]"), HasSubstr("not JSON: "));
  EXPECT_EQ(refusal(R"({"a": {"b": 1}, "c": [{"b": 1, "b": 2}]})"), "JSON that gives 'b' twice");
  const auto nested = [](size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_EQ(ParseJson(nested(kMaxJsonDepth))->size(), 1);
  EXPECT_EQ(refusal(nested(kMaxJsonDepth + 1)), "JSON that nests more than 100 deep");
  EXPECT_EQ(refusal(nested(1'000'000)), "JSON that nests more than 100 deep");
}

TEST(ParseJson, TheSameKeyInTwoObjectsIsNoTwin) {
  EXPECT_EQ((*ParseJson(R"([{"a": {"a": 1}}, {"a": 2}])"))[1]["a"], 2);
}

TEST(File, RoundTripsAndNamesWhatCannotBeWritten) {
  const std::string path =
      (std::filesystem::temp_directory_path() / fmt::format("minka_file_{}", ::getpid())).string();
  ASSERT_TRUE(WriteFile(path, std::string_view("a\0b", 3)).ok());
  EXPECT_EQ(*ReadFile(path), std::string("a\0b", 3));
  const std::vector<std::string_view> pieces = {"one", "", "two"};
  ASSERT_TRUE(WriteFile(path, pieces).ok());
  EXPECT_EQ(*ReadFile(path), "onetwo");
  std::filesystem::remove(path);
  EXPECT_EQ(Message(ReadFile(path).status()),
            "cannot open " + path + ": No such file or directory");
  EXPECT_EQ(Message(WriteFile("/nowhere/x", "")),
            "cannot write /nowhere/x: No such file or directory");
}

TEST(ProcessorTime, OthersAndTheHostTakeTheirShares) {
  const ProcessorTime before = {.all_s = 100, .own_s = 1, .stolen_s = 7};
  EXPECT_DOUBLE_EQ(OthersShare(before, {.all_s = 104, .own_s = 2, .stolen_s = 7}), 0.75);
  EXPECT_DOUBLE_EQ(StolenShare(before, {.all_s = 104, .own_s = 5, .stolen_s = 8}), 0.2);
  EXPECT_EQ(OthersShare(before, before), 0);
  EXPECT_EQ(StolenShare(before, before), 0);
}

TEST(ProcessorTime, CountsWhatThisProcessDoes) {
  const ProcessorTime before = ProcessorTimeNow();
  ProcessorTime after = before;
  while (after.own_s < before.own_s + 0.05) after = ProcessorTimeNow();
  EXPECT_GE(after.all_s, before.all_s + 0.02);  // in hundredths of a second
  EXPECT_GE(after.stolen_s, before.stolen_s);
}

TEST(CoreDistance, IsMeasuredWhereThereAreTwoCores) {
  const double ns = CoreRoundTripNs();
  if (NumHardwareThreads() < 2) EXPECT_EQ(ns, 0);
  // 0 where others have the cores, or threads may not be kept on theirs.
  if (ns > 0) EXPECT_GT(ns, 5);
  EXPECT_LT(ns, 1e8);
}

TEST(CoreDistance, NearAndFarCoresAreToldApart) {
  EXPECT_TRUE(IsSameCoreDistance(80, 95));
  EXPECT_FALSE(IsSameCoreDistance(80, 230));
  EXPECT_FALSE(IsSameCoreDistance(340, 90));
  EXPECT_TRUE(IsSameCoreDistance(0, 340));
  EXPECT_TRUE((CoreDistances{.before_ns = 90, .behind_ns = 84}.AreAt(80)));
  EXPECT_FALSE((CoreDistances{.before_ns = 90, .behind_ns = 240}.AreAt(80)));
}

TEST(CoreDistance, TheUsualOneIsThatOfMostWhateverLiesBetween) {
  const std::vector<CoreDistances> distances = {{90, 84},   {145, 150}, {230, 260}, {84, 240},
                                                {240, 230}, {80, 88},   {250, 0},   {300, 270}};
  EXPECT_EQ(UsualCoreDistance(distances), 240);
  EXPECT_EQ(UsualCoreDistance(std::vector<CoreDistances>(3)), 0);
  EXPECT_EQ(UsualCoreDistance({}), 0);
}

TEST(CoreDistance, NobodyWaitsForCoresLongerThanAllowed) {
  std::chrono::duration<double> left(0);
  EXPECT_TRUE(AwaitCoreDistance(/*core_ns=*/0, left));
  // Cores are never so far apart; where others have them, it is not known how far they are.
  AwaitCoreDistance(/*core_ns=*/1e12, left);
  EXPECT_EQ(left.count(), 0);
}

TEST(Gzip, UnpacksToTheSameBytesAndIsSmaller) {
  std::string bytes;
  for (int i = 0; i < 100'000; ++i) bytes += static_cast<char>(int64_t{i} * i % 251);
  for (const std::string& contents : {bytes, std::string(), std::string(1, '\0')}) {
    const std::string packed = Gzip(contents);
    EXPECT_EQ(*Gunzip(packed), contents);
    EXPECT_EQ(packed, Gzip(contents));
  }
  EXPECT_LT(Gzip(bytes).size(), bytes.size() / 10);
}

TEST(ForEachInParallel, EveryNumberOnceAndOnSoManyThreadsAtMost) {
  for (const int num_threads : {0, 1, 3, 200}) {
    std::vector<std::atomic<int>> calls(100);
    std::vector<std::thread::id> threads(calls.size());
    ForEachInParallel(static_cast<int>(calls.size()), num_threads, [&](int i) {
      ++calls[i];
      threads[i] = std::this_thread::get_id();
    });
    for (const std::atomic<int>& number : calls) EXPECT_EQ(number, 1);
    std::ranges::sort(threads);
    const auto num_different = std::ranges::unique(threads).begin() - threads.begin();
    EXPECT_LE(num_different, std::max(1, num_threads));
  }
  ForEachInParallel(0, 4, [](int) { FAIL(); });
}

}  // namespace
}  // namespace minka
