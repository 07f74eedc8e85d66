// Memory in which arrays go between a driver and a worker on the same machine: one copy on either
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

// One end of the memory. The driver takes regions, who reads them lets them go: of what is put the
// worker, of what is fetched the driver itself.
class SharedArena {
 public:
  // Room for the inputs of some steps; what was never used takes no memory, unless devices read and
  // write the arena by themselves (pjrt::Client::RegisterHostMemory).
  static constexpr size_t kDefaultCapacity = size_t{256} << 20;

  static absl::StatusOr<SharedArena> Create(size_t capacity = kDefaultCapacity);
  // Takes the file over; InvalidArgument where it is no arena of this version.
  static absl::StatusOr<SharedArena> Map(FileDescriptor file);

  // To be handed down; closed by exec otherwise.
  int file() const { return memory_->file(); }
  size_t capacity() const;
  // All regions, whoever has them.
  std::span<char> bytes() const;

  // The driver's end; one thread at a time.

  // Nullopt: there is no room until the worker has let other regions go. Low memory comes first, so
  // that no more of it is ever touched than was in use at once.
  std::optional<ArenaRegion> Take(size_t size);
  std::span<char> BytesOf(const ArenaRegion& region) const;
  // Of all regions in use.
  size_t BytesTaken() const;

  // Either end; InvalidArgument: no driver takes such a region.

  // Where the worker writes what is fetched.
  absl::StatusOr<std::span<char>> Destination(const ArenaRegion& region) const;
  // What a region holds. It is let go with the owner, on any thread, which keeps the memory also
  // when this is gone.
  absl::StatusOr<pjrt::LentContents> Lend(const ArenaRegion& region) const;

 private:
  struct Header;

  explicit SharedArena(SharedMemory memory);
  static absl::StatusOr<SharedArena> Check(SharedMemory memory);
  absl::Status CheckRegion(const ArenaRegion& region) const;
  Header& header() const;

  std::shared_ptr<SharedMemory> memory_;
  std::vector<ArenaRegion> taken_;  // by offset; the worker may have let some go
};

// One for each way: however long fetched arrays are kept, what is put has room.
struct SharedArenas {
  SharedArena put, fetched;

  static absl::StatusOr<SharedArenas> Create(size_t capacity_of_each);
  // In a worker: those that its driver has handed down, if there are any. To be called once.
  static absl::StatusOr<std::optional<SharedArenas>> OfThisWorker();
};

// The environment variables that name the arenas' files to a worker.
inline constexpr const char* kPutArenaVariable = "MINKA_WORKER_PUT_ARENA";
inline constexpr const char* kFetchedArenaVariable = "MINKA_WORKER_FETCHED_ARENA";

}  // namespace minka
