// Memory in which arrays come from a driver to a worker on the same machine: one copy on either
// side, and no socket between them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/base/file_descriptor.h"
#include "minka/runtime/pjrt/buffer.h"
#include "minka/runtime/worker/shared_memory.h"

namespace minka {

// A part of an arena, as the driver names it to the worker.
struct ArenaRegion {
  uint32_t number = 0;  // tells it from others that are in use
  uint64_t offset = 0;
  uint64_t size = 0;
};

// One end of the memory. The driver takes regions, the worker lets them go.
class SharedArena {
 public:
  // Room for the inputs of some steps; what was never used takes no memory.
  static constexpr size_t kDefaultCapacity = size_t{256} << 20;

  static absl::StatusOr<SharedArena> Create(size_t capacity = kDefaultCapacity);
  // In a worker: the arena that its driver has handed down, if there is one. To be called once.
  static absl::StatusOr<std::optional<SharedArena>> OfThisWorker();
  // Takes the file over; InvalidArgument where it is no arena of this version.
  static absl::StatusOr<SharedArena> Map(FileDescriptor file);

  // To be handed down; closed by exec otherwise.
  int file() const { return memory_->file(); }
  size_t capacity() const;

  // The driver's end; one thread at a time.

  // Nullopt: there is no room until the worker has let other regions go. Low memory comes first, so
  // that no more of it is ever touched than was in use at once.
  std::optional<ArenaRegion> Take(size_t size);
  std::span<char> BytesOf(const ArenaRegion& region) const;

  // The worker's end.

  // What a region holds. It is let go with the owner, on any thread, which keeps the memory also
  // when this is gone. InvalidArgument: no driver takes such a region.
  absl::StatusOr<pjrt::LentContents> Lend(const ArenaRegion& region) const;

 private:
  struct Header;

  explicit SharedArena(SharedMemory memory);
  static absl::StatusOr<SharedArena> Check(SharedMemory memory);
  Header& header() const;

  std::shared_ptr<SharedMemory> memory_;
  std::vector<ArenaRegion> taken_;  // by offset; the worker may have let some go
};

// The environment variable that names the arena's file to a worker.
inline constexpr const char* kSharedArenaVariable = "MINKA_WORKER_ARENA";

}  // namespace minka
