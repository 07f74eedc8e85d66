#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "gtest/gtest.h"

namespace minka {
namespace {

// In turns, so that blocks are allocated that others freed.
TEST(Allocator, BlocksAreAligned) {
  for (int round = 0; round < 3; ++round) {
    for (size_t alignment = sizeof(void*); alignment <= size_t{2} << 20; alignment *= 2) {
      for (const size_t size :
           {size_t{1}, size_t{100}, size_t{16} << 10, size_t{300} << 10, size_t{5} << 20}) {
        void* block = nullptr;
        ASSERT_EQ(posix_memalign(&block, alignment, size), 0);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % alignment, 0) << alignment << " " << size;
        std::memset(block, 1, size);
        void* const other = std::aligned_alloc(alignment, (size + alignment - 1) & -alignment);
        ASSERT_NE(other, nullptr);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(other) % alignment, 0) << alignment << " " << size;
        std::memset(other, 2, size);
        EXPECT_EQ(*static_cast<char*>(block), 1);
        std::free(block);
        std::free(other);
      }
    }
  }
}

// jemalloc alone keeps what was freed by thread, but not for who asks for an alignment.
TEST(Allocator, AThreadKeepsLargeBlocksForAnyAlignment) {
  constexpr size_t kBytes = size_t{1} << 20;
  void* const first = std::malloc(kBytes);
  const auto freed = reinterpret_cast<uintptr_t>(first);
  std::free(first);
  void* second = nullptr;
  ASSERT_EQ(posix_memalign(&second, 4096, kBytes), 0);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(second), freed);
  std::free(second);
}

TEST(Allocator, AlignmentsArePowersOfTwo) {
  for (volatile size_t alignment : {size_t{0}, sizeof(void*) / 2, size_t{96}}) {
    void* block = nullptr;
    EXPECT_EQ(posix_memalign(&block, alignment, 64), EINVAL) << alignment;
    EXPECT_EQ(block, nullptr);
  }
}

}  // namespace
}  // namespace minka
