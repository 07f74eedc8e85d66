// Memory for programs that run steps: jemalloc, which keeps what was freed.
//
// XLA's CPU backend allocates the temporaries and new results of every launch anew. The C library
// gives blocks of that size back to the system and gets them again page by page, each filled with
// zeros: a fifth to a quarter of the time of steps whose weights fill memory (docs/design/0012).

// Read by jemalloc before main; the environment's MALLOC_CONF may say otherwise.
extern "C" {
extern const char* malloc_conf;  // NOLINT(readability-identifier-naming): jemalloc's name
const char* malloc_conf = "dirty_decay_ms:-1,muzzy_decay_ms:-1";
}
