#include "minka/runtime/mesh/split_array.h"

#include <cstring>
#include <functional>

#include "minka/base/check.h"

namespace minka {
namespace {

// Calls with the byte offset in the whole and in the part, and the number of bytes, of every run
// that is contiguous in both.
void ForEachRun(const Shape& shape, const Sharding& sharding, const Mesh& mesh, int64_t device,
                const std::function<void(size_t whole, size_t part, size_t bytes)>& run) {
  const Shape local = LocalShape(shape, sharding, mesh);
  int64_t whole_offset = 0, run_elements = 1, whole_stride = 1;
  int outer_rank = 0;  // dims before these are walked, those behind make up a run
  std::vector<int64_t> strides(shape.rank());
  for (int dim = shape.rank() - 1; dim >= 0; --dim) {
    int64_t part = 0;
    for (int i = 0; i < sharding.dims[dim].size(); ++i) {
      const int axis = sharding.dims[dim][i];
      part = part * mesh.size(axis) + mesh.Coordinate(device, axis);
    }
    whole_offset += part * local.dims[dim] * whole_stride;
    strides[dim] = whole_stride;
    whole_stride *= shape.dims[dim];
    if (outer_rank == 0) {
      run_elements *= local.dims[dim];
      if (local.dims[dim] != shape.dims[dim]) outer_rank = dim;
    }
  }
  const auto width = static_cast<size_t>(ElementBytes(shape.type));
  std::vector<int64_t> index(outer_rank, 0);
  for (int64_t done = 0; done < local.num_elements(); done += run_elements) {
    int64_t at = whole_offset;
    for (int dim = 0; dim < outer_rank; ++dim) at += index[dim] * strides[dim];
    run(static_cast<size_t>(at) * width, static_cast<size_t>(done) * width,
        static_cast<size_t>(run_elements) * width);
    for (int dim = outer_rank - 1; dim >= 0 && ++index[dim] == local.dims[dim]; --dim) {
      index[dim] = 0;
    }
  }
}

}  // namespace

std::string TakePart(std::string_view whole, const Shape& shape, const Sharding& sharding,
                     const Mesh& mesh, int64_t device) {
  MINKA_CHECK(static_cast<int64_t>(whole.size()) == shape.num_bytes(), "{} bytes for {}",
              whole.size(), ToString(shape));
  std::string part(static_cast<size_t>(LocalBytes(shape, sharding, mesh)), '\0');
  ForEachRun(shape, sharding, mesh, device, [&](size_t from, size_t to, size_t bytes) {
    std::memcpy(part.data() + to, whole.data() + from, bytes);
  });
  return part;
}

void PutPart(std::string_view part, const Shape& shape, const Sharding& sharding, const Mesh& mesh,
             int64_t device, std::span<char> whole) {
  ForEachRun(shape, sharding, mesh, device, [&](size_t to, size_t from, size_t bytes) {
    std::memcpy(whole.data() + to, part.data() + from, bytes);
  });
}

std::vector<int64_t> CoveringDevices(const Sharding& sharding, const Mesh& mesh) {
  std::vector<int64_t> devices;
  for (int64_t device = 0; device < mesh.num_devices(); ++device) {
    bool first = true;
    for (int axis = 0; axis < mesh.num_axes(); ++axis) {
      const bool splits = sharding.split_axes().contains(axis);
      first = first && (splits || mesh.Coordinate(device, axis) == 0);
    }
    if (first) devices.push_back(device);
  }
  return devices;
}

}  // namespace minka
