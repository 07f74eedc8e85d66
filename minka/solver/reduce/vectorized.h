// The attribute of inner loops over table cells that gain from wide vectors.
#pragma once

// Compiled for several instruction sets, of which the loader takes the best that the processor has.
// Not with clang and sanitizers, which cannot resolve such functions.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define MINKA_VECTORIZED __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define MINKA_VECTORIZED
#endif
