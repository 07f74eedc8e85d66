// Memory that arrays are received in, used again and again: what is touched for the first time
// costs more than the copy into it.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace minka {

// Keeps the most blocks of each size that were ever needed at once. Thread-safe; blocks may outlive
// who made the pool.
class BlockPool : public std::enable_shared_from_this<BlockPool> {
 public:
  static std::shared_ptr<BlockPool> Create() { return std::shared_ptr<BlockPool>(new BlockPool()); }
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;
  ~BlockPool();

  // Aligned as pjrt::Client::Adopt wants it, with any contents; comes back when it is dropped.
  std::shared_ptr<char> Take(size_t num_bytes);

 private:
  BlockPool() = default;
  void TakeBack(size_t num_bytes, char* block);

  std::mutex mutex_;
  std::map<size_t, std::vector<char*>> idle_;  // by bytes; guarded by mutex_
};

}  // namespace minka
