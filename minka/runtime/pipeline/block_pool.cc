#include "minka/runtime/pipeline/block_pool.h"

#include <algorithm>
#include <cstdlib>

#include "minka/base/check.h"
#include "minka/runtime/pjrt/client.h"

namespace minka {

BlockPool::~BlockPool() {
  for (const auto& [num_bytes, blocks] : idle_) {
    for (char* const block : blocks) std::free(block);
  }
}

std::shared_ptr<char> BlockPool::Take(size_t num_bytes) {
  constexpr size_t kLine = pjrt::Client::kAlignment;
  num_bytes = std::max<size_t>((num_bytes + kLine - 1) / kLine, 1) * kLine;
  char* block = nullptr;
  {
    const std::lock_guard lock(mutex_);
    std::vector<char*>& idle = idle_[num_bytes];
    if (!idle.empty()) {
      block = idle.back();
      idle.pop_back();
    }
  }
  if (block == nullptr) {
    block = static_cast<char*>(std::aligned_alloc(kLine, num_bytes));
    MINKA_CHECK(block != nullptr, "no memory for {} bytes", num_bytes);
  }
  return {block,
          [pool = shared_from_this(), num_bytes](char* back) { pool->TakeBack(num_bytes, back); }};
}

void BlockPool::TakeBack(size_t num_bytes, char* block) {
  const std::lock_guard lock(mutex_);
  idle_[num_bytes].push_back(block);
}

}  // namespace minka
