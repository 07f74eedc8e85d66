// Memory for programs that run steps: jemalloc, which keeps what was freed.
//
// XLA's CPU backend allocates the temporaries and new results of every launch anew. The C library
// gives blocks of that size back to the system and gets them again page by page, each filled with
// zeros: a fifth to a quarter of the time of steps whose weights fill memory (docs/design/0012).
//
// The matrix library allocates memory to work in for every product, page by page as well. jemalloc
// keeps blocks of that size by thread only where no alignment is asked for; else all threads wait
// for each other at its lists of free pages.

#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

extern "C" {

// Read by jemalloc before main; the environment's MALLOC_CONF may say otherwise. Threads keep
// blocks of up to 4 MiB, few of each size.
extern const char* malloc_conf;  // NOLINT(readability-identifier-naming): jemalloc's name
const char* malloc_conf =
    "dirty_decay_ms:-1,muzzy_decay_ms:-1,tcache_max:4194304,tcache_nslots_large:4";

// jemalloc's, which keeps nothing by thread.
void* memalign(size_t alignment, size_t size) noexcept;
}

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kLeastLarge = 16 << 10;

void* AlignedBlock(size_t alignment, size_t size) {
  if (alignment <= kPage && size >= kLeastLarge) {
    // It begins with a page, unless jemalloc was built to be oblivious of caches.
    void* const block = std::malloc(size);
    if (reinterpret_cast<uintptr_t>(block) % alignment == 0) return block;
    std::free(block);
  }
  return memalign(alignment, size);
}

}  // namespace

extern "C" {

int posix_memalign(void** result, size_t alignment, size_t size) noexcept {
  if (!std::has_single_bit(alignment) || alignment < sizeof(void*)) return EINVAL;
  void* const block = AlignedBlock(alignment, size);
  if (block == nullptr) return ENOMEM;
  *result = block;
  return 0;
}

void* aligned_alloc(size_t alignment, size_t size) noexcept {
  if (!std::has_single_bit(alignment)) {
    errno = EINVAL;
    return nullptr;
  }
  return AlignedBlock(alignment, size);
}
}
