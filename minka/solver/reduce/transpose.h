// Transposition in blocks, so that neither side strides through the cache.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace minka {

// out[j * rows + i] = in[i * columns + j]
template <typename T>
void Transpose(const T* __restrict in, int32_t rows, int32_t columns, T* __restrict out) {
  constexpr int32_t kBlock = 8;
  for (int32_t i0 = 0; i0 < rows; i0 += kBlock) {
    const int32_t i1 = std::min(rows, i0 + kBlock);
    for (int32_t j0 = 0; j0 < columns; j0 += kBlock) {
      const int32_t j1 = std::min(columns, j0 + kBlock);
      for (int32_t j = j0; j < j1; ++j)
        for (int32_t i = i0; i < i1; ++i)
          out[static_cast<size_t>(j) * rows + i] = in[static_cast<size_t>(i) * columns + j];
    }
  }
}

}  // namespace minka
