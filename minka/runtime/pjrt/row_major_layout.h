// The layout of dense row-major arrays, as PJRT wants it said. For the sources of this folder only.
#pragma once

#include <pjrt_c_api.h>

#include <cstdint>
#include <numeric>
#include <vector>

namespace minka::pjrt {

// Holds what the plugin's struct points to.
class RowMajorLayout {
 public:
  explicit RowMajorLayout(int rank) : minor_to_major_(rank) {
    std::iota(minor_to_major_.rbegin(), minor_to_major_.rend(), 0);
    layout_.struct_size = PJRT_Buffer_MemoryLayout_STRUCT_SIZE;
    layout_.type = PJRT_Buffer_MemoryLayout_Type_Tiled;
    layout_.tiled.struct_size = PJRT_Buffer_MemoryLayout_Tiled_STRUCT_SIZE;
    layout_.tiled.minor_to_major = minor_to_major_.data();
    layout_.tiled.minor_to_major_size = minor_to_major_.size();
  }
  RowMajorLayout(const RowMajorLayout&) = delete;
  RowMajorLayout& operator=(const RowMajorLayout&) = delete;

  PJRT_Buffer_MemoryLayout* get() { return &layout_; }
  // Last dimension first.
  const std::vector<int64_t>& minor_to_major() const { return minor_to_major_; }

 private:
  std::vector<int64_t> minor_to_major_;
  PJRT_Buffer_MemoryLayout layout_ = {};
};

}  // namespace minka::pjrt
