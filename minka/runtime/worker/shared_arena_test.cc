#include "minka/runtime/worker/shared_arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "gtest/gtest.h"
#include "minka/base/status.h"

namespace minka {
namespace {

SharedArena OtherEnd(const SharedArena& arena) {
  return SharedArena::Map(FileDescriptor(::dup(arena.file()))).value();
}

TEST(SharedArena, TheWorkerReadsWhatTheDriverWrites) {
  SharedArena driver = SharedArena::Create(1000).value();
  const SharedArena worker = OtherEnd(driver);
  EXPECT_EQ(worker.capacity(), 1000U);
  const std::string text = "an array";
  const ArenaRegion region = driver.Take(text.size()).value();
  std::ranges::copy(text, driver.BytesOf(region).begin());
  const pjrt::LentContents lent = worker.Lend(region).value();
  EXPECT_EQ(std::string(lent.bytes.begin(), lent.bytes.end()), text);
}

TEST(SharedArena, ARegionIsTakenAgainOnceItIsLetGo) {
  SharedArena driver = SharedArena::Create(300).value();
  const SharedArena worker = OtherEnd(driver);
  const ArenaRegion first = driver.Take(100).value(), second = driver.Take(100).value();
  EXPECT_EQ(first.offset, 0U);
  EXPECT_EQ(second.offset, 128U);  // aligned
  EXPECT_NE(first.number, second.number);
  EXPECT_FALSE(driver.Take(100));
  EXPECT_TRUE(driver.Take(20));  // behind the second
  pjrt::LentContents lent = worker.Lend(first).value();
  EXPECT_FALSE(driver.Take(100));
  pjrt::LentContents copy = lent;
  lent = {};
  EXPECT_FALSE(driver.Take(100));
  copy = {};
  EXPECT_EQ(driver.Take(100).value().offset, 0U);
  worker.Lend(second).value();  // let go at once, before others
  EXPECT_EQ(driver.Take(90).value().offset, 128U);
}

TEST(SharedArena, ThereIsAnEndOfRegions) {
  SharedArena driver = SharedArena::Create(1 << 20).value();
  int num_regions = 0;
  while (driver.Take(1)) ++num_regions;
  EXPECT_EQ(num_regions, 1000);
  EXPECT_FALSE(SharedArena::Create(100).value().Take(101));
  EXPECT_TRUE(SharedArena::Create(100).value().Take(100));
}

TEST(SharedArena, WhatIsLentOutlivesTheArena) {
  SharedArena driver = SharedArena::Create(100).value();
  const ArenaRegion region = driver.Take(1).value();
  driver.BytesOf(region)[0] = 'x';
  std::optional<SharedArena> worker = OtherEnd(driver);
  pjrt::LentContents lent = worker->Lend(region).value();
  worker.reset();
  EXPECT_EQ(lent.bytes[0], 'x');
  lent = {};
  EXPECT_TRUE(driver.Take(100));
}

TEST(SharedArena, RegionsOutsideAreRefused) {
  const SharedArena arena = SharedArena::Create(100).value();
  const auto is_lent = [&](uint32_t number, uint64_t offset, uint64_t size) {
    return arena.Lend({number, offset, size}).ok();
  };
  EXPECT_TRUE(is_lent(999, 0, 100));
  EXPECT_TRUE(is_lent(0, 100, 0));
  EXPECT_FALSE(is_lent(1000, 0, 1));
  EXPECT_FALSE(is_lent(0, 1, 100));
  EXPECT_FALSE(is_lent(0, 101, 0));
  EXPECT_FALSE(is_lent(0, 50, ~uint64_t{0}));
  EXPECT_EQ(Message(arena.Lend({0, 90, 20}).status()),
            "region 0 of 20 bytes at 90 lies outside of an arena of 100 bytes");
}

TEST(SharedArena, OtherFilesAreRefused) {
  const auto error = [](off_t bytes) {
    const int file = ::memfd_create("test", MFD_CLOEXEC);
    EXPECT_EQ(::ftruncate(file, bytes), 0);
    return Message(SharedArena::Map(FileDescriptor(file)).status());
  };
  EXPECT_EQ(error(8), "the arena has 8 bytes only");
  EXPECT_EQ(error(8192), "the arena is that of another version of minka");
}

TEST(SharedArena, TheDriverReadsWhatTheWorkerWrites) {
  SharedArena driver = SharedArena::Create(1000).value();
  const SharedArena worker = OtherEnd(driver);
  const ArenaRegion region = driver.Take(5).value();
  std::ranges::copy(std::string("array"), worker.Destination(region).value().begin());
  {
    const pjrt::LentContents lent = driver.Lend(region).value();
    EXPECT_EQ(std::string(lent.bytes.begin(), lent.bytes.end()), "array");
    EXPECT_FALSE(driver.Take(1000));
    EXPECT_EQ(driver.BytesTaken(), 5U);
  }
  EXPECT_EQ(driver.BytesTaken(), 0U);
  EXPECT_TRUE(driver.Take(1000));
  EXPECT_EQ(Message(worker.Destination({0, 990, 20}).status()),
            "region 0 of 20 bytes at 990 lies outside of an arena of 1000 bytes");
}

TEST(SharedArenas, AWorkerTakesTheFilesThatTheVariablesName) {
  EXPECT_FALSE(SharedArenas::OfThisWorker().value());
  const SharedArenas driver = SharedArenas::Create(100).value();
  const auto hand_down = [](const char* variable, int file) {
    ASSERT_EQ(::setenv(variable, std::to_string(::dup(file)).c_str(), 1), 0);
  };
  hand_down(kPutArenaVariable, driver.put.file());
  hand_down(kFetchedArenaVariable, driver.fetched.file());
  const std::optional<SharedArenas> worker = SharedArenas::OfThisWorker().value();
  ASSERT_EQ(::unsetenv(kPutArenaVariable), 0);
  ASSERT_EQ(::unsetenv(kFetchedArenaVariable), 0);
  ASSERT_TRUE(worker);
  for (const SharedArena* const arena : {&worker->put, &worker->fetched}) {
    EXPECT_NE(::fcntl(arena->file(), F_GETFD) & FD_CLOEXEC, 0);
    EXPECT_EQ(arena->capacity(), 100U);
  }
  driver.put.Destination({0, 0, 1}).value()[0] = 'p';
  EXPECT_EQ(worker->put.Destination({0, 0, 1}).value()[0], 'p');
  EXPECT_EQ(worker->fetched.Destination({0, 0, 1}).value()[0], '\0');
}

}  // namespace
}  // namespace minka
