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

std::span<char> SharedArena::bytes() const { return {memory_->data() + kHeaderBytes, capacity()}; }

absl::StatusOr<SharedArena> SharedArena::Create(size_t capacity) {
  ASSIGN_OR_RETURN(SharedMemory memory, SharedMemory::Create(kArenaName, kHeaderBytes + capacity));
  new (memory.data()) Header;
  return Check(std::move(memory));
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

size_t SharedArena::BytesTaken() const {
  size_t bytes = 0;
  for (const ArenaRegion& region : taken_) {
    const bool is_taken = header().is_taken[region.number].load(std::memory_order_acquire) != 0;
    if (is_taken) bytes += region.size;
  }
  return bytes;
}

std::span<char> SharedArena::BytesOf(const ArenaRegion& region) const {
  return {memory_->data() + kHeaderBytes + region.offset, region.size};
}

absl::Status SharedArena::CheckRegion(const ArenaRegion& region) const {
  if (region.number < kMostRegions && region.offset <= capacity() &&
      region.size <= capacity() - region.offset) {
    return absl::OkStatus();
  }
  return InvalidArgument("region {} of {} bytes at {} lies outside of an arena of {} bytes",
                         region.number, region.size, region.offset, capacity());
}

absl::StatusOr<std::span<char>> SharedArena::Destination(const ArenaRegion& region) const {
  RETURN_IF_ERROR(CheckRegion(region));
  return BytesOf(region);
}

absl::StatusOr<pjrt::LentContents> SharedArena::Lend(const ArenaRegion& region) const {
  RETURN_IF_ERROR(CheckRegion(region));
  const std::span<char> bytes = BytesOf(region);
  std::atomic<uint32_t>& is_taken = header().is_taken[region.number];
  return pjrt::LentContents{.bytes = bytes,
                            .owner = std::shared_ptr<const void>(
                                bytes.data(), [memory = memory_, &is_taken](const void*) {
                                  is_taken.store(0, std::memory_order_release);
                                })};
}

absl::StatusOr<SharedArenas> SharedArenas::Create(size_t capacity_of_each) {
  ASSIGN_OR_RETURN(SharedArena put, SharedArena::Create(capacity_of_each));
  ASSIGN_OR_RETURN(SharedArena fetched, SharedArena::Create(capacity_of_each));
  return SharedArenas{std::move(put), std::move(fetched)};
}

absl::StatusOr<std::optional<SharedArenas>> SharedArenas::OfThisWorker() {
  ASSIGN_OR_RETURN(FileDescriptor put_file, SharedMemory::HandedDown(kPutArenaVariable));
  ASSIGN_OR_RETURN(FileDescriptor fetched_file, SharedMemory::HandedDown(kFetchedArenaVariable));
  if (put_file.number() < 0 || fetched_file.number() < 0) return std::nullopt;
  ASSIGN_OR_RETURN(SharedArena put, SharedArena::Map(std::move(put_file)));
  ASSIGN_OR_RETURN(SharedArena fetched, SharedArena::Map(std::move(fetched_file)));
  return SharedArenas{std::move(put), std::move(fetched)};
}

}  // namespace minka
