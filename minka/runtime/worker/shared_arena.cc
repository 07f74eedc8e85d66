#include "minka/runtime/worker/shared_arena.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <new>
#include <utility>

#include "minka/base/status.h"
#include "minka/runtime/pjrt/client.h"

namespace minka {
namespace {

constexpr const char* kArenaName = "arena";
constexpr uint64_t kArenaMagic =
    0x31616e65726b6e6d;  // "mnkrena1"; another layout is another number
constexpr size_t kHeaderBytes = 4096;
constexpr size_t kMostRegions = 1000;  // in use at once

}  // namespace

struct SharedArena::Header {
  uint64_t magic = kArenaMagic;
  std::array<std::atomic<uint32_t>, kMostRegions> is_taken = {};  // by number
};

SharedArena::SharedArena(SharedMemory memory)
    : memory_(std::make_shared<SharedMemory>(std::move(memory))) {}

SharedArena::Header& SharedArena::header() const {
  static_assert(sizeof(Header) <= kHeaderBytes && std::atomic<uint32_t>::is_always_lock_free);
  return *std::launder(reinterpret_cast<Header*>(memory_->data()));
}

size_t SharedArena::capacity() const { return memory_->size() - kHeaderBytes; }

absl::StatusOr<SharedArena> SharedArena::Create(size_t capacity) {
  ASSIGN_OR_RETURN(SharedMemory memory, SharedMemory::Create(kArenaName, kHeaderBytes + capacity));
  new (memory.data()) Header;
  return Check(std::move(memory));
}

absl::StatusOr<std::optional<SharedArena>> SharedArena::OfThisWorker() {
  ASSIGN_OR_RETURN(FileDescriptor file, SharedMemory::HandedDown(kSharedArenaVariable));
  if (file.number() < 0) return std::nullopt;
  return Map(std::move(file));
}

absl::StatusOr<SharedArena> SharedArena::Map(FileDescriptor file) {
  ASSIGN_OR_RETURN(SharedMemory memory, SharedMemory::Map(std::move(file), kArenaName));
  return Check(std::move(memory));
}

absl::StatusOr<SharedArena> SharedArena::Check(SharedMemory memory) {
  if (memory.size() < kHeaderBytes) {
    return InvalidArgument("the {} has {} bytes only", kArenaName, memory.size());
  }
  SharedArena arena(std::move(memory));
  if (arena.header().magic == kArenaMagic) return arena;
  return InvalidArgument("the {} is that of another version of minka", kArenaName);
}

std::optional<ArenaRegion> SharedArena::Take(size_t size) {
  Header& header = this->header();
  std::array<bool, kMostRegions> is_taken = {};
  std::erase_if(taken_, [&](const ArenaRegion& region) {
    is_taken[region.number] = header.is_taken[region.number].load(std::memory_order_acquire) != 0;
    return !is_taken[region.number];
  });
  const auto* const number = std::ranges::find(is_taken, false);
  if (number == is_taken.end()) return std::nullopt;
  ArenaRegion region{.number = static_cast<uint32_t>(number - is_taken.begin()), .size = size};
  auto behind = taken_.begin();
  for (; behind != taken_.end() && behind->offset < region.offset + size; ++behind) {
    const size_t end = behind->offset + behind->size;
    region.offset =
        (end + pjrt::Client::kAlignment - 1) / pjrt::Client::kAlignment * pjrt::Client::kAlignment;
  }
  if (region.offset > capacity() || size > capacity() - region.offset) return std::nullopt;
  header.is_taken[region.number].store(1, std::memory_order_relaxed);
  taken_.insert(behind, region);
  return region;
}

std::span<char> SharedArena::BytesOf(const ArenaRegion& region) const {
  return {memory_->data() + kHeaderBytes + region.offset, region.size};
}

absl::StatusOr<pjrt::LentContents> SharedArena::Lend(const ArenaRegion& region) const {
  if (region.number >= kMostRegions || region.offset > capacity() ||
      region.size > capacity() - region.offset) {
    return InvalidArgument("region {} of {} bytes at {} lies outside of an arena of {} bytes",
                           region.number, region.size, region.offset, capacity());
  }
  const std::span<char> bytes = BytesOf(region);
  std::atomic<uint32_t>& is_taken = header().is_taken[region.number];
  return pjrt::LentContents{.bytes = bytes,
                            .owner = std::shared_ptr<const void>(
                                bytes.data(), [memory = memory_, &is_taken](const void*) {
                                  is_taken.store(0, std::memory_order_release);
                                })};
}

}  // namespace minka
