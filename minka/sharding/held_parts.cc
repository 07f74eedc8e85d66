#include "minka/sharding/held_parts.h"

#include <map>
#include <utility>

namespace minka {

Box PartOf(const Shape& shape, const Sharding& sharding, const Mesh& mesh, int64_t device) {
  Box box = BoxOf(shape);
  for (int dim = 0; dim < shape.rank(); ++dim) {
    const AxisList& axes = sharding.dims[dim];
    int64_t part = 0;
    for (int i = 0; i < axes.size(); ++i) {
      part = part * mesh.size(axes[i]) + mesh.Coordinate(device, axes[i]);
    }
    const int64_t size = shape.dims[dim] / NumParts(axes, mesh);
    box.begin[dim] = part * size;
    box.end[dim] = box.begin[dim] + size;
  }
  return box;
}

std::vector<HeldPart> HeldParts(const Shape& shape, const Sharding& sharding, const Mesh& mesh) {
  std::map<Box, size_t> numbers;
  std::vector<HeldPart> parts;
  for (int64_t device = 0; device < mesh.num_devices(); ++device) {
    Box box = PartOf(shape, sharding, mesh, device);
    const auto [found, is_new] = numbers.try_emplace(box, parts.size());
    if (is_new) parts.push_back({std::move(box), {}});
    parts[found->second].devices.push_back(device);
  }
  return parts;
}

}  // namespace minka
