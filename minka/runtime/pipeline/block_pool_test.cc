#include "minka/runtime/pipeline/block_pool.h"

#include <cstdint>

#include "gtest/gtest.h"
#include "minka/runtime/pjrt/client.h"

namespace minka {
namespace {

TEST(BlockPool, BlocksAreAlignedAndComeBack) {
  const auto pool = BlockPool::Create();
  const char* first = nullptr;
  {
    const std::shared_ptr<char> one = pool->Take(100), other = pool->Take(100);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(one.get()) % pjrt::Client::kAlignment, 0u);
    EXPECT_NE(one.get(), other.get());
    first = one.get();
  }
  const std::shared_ptr<char> again = pool->Take(100), other = pool->Take(1000);
  EXPECT_EQ(again.get(), first);
  EXPECT_NE(other.get(), first);
}

TEST(BlockPool, BlocksOutliveWhoMadeThePool) {
  std::shared_ptr<char> block;
  {
    const auto pool = BlockPool::Create();
    block = pool->Take(0);
  }
  ASSERT_NE(block, nullptr);
  *block = 'x';
}

}  // namespace
}  // namespace minka
