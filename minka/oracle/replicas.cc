#include "minka/oracle/replicas.h"

#include <string_view>

namespace minka {

int64_t FirstHolder(int64_t device, const Sharding& sharding, const Mesh& mesh) {
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    if (sharding.split_axes().contains(axis)) continue;
    device -= mesh.Coordinate(device, axis) * mesh.stride(axis);
  }
  return device;
}

std::optional<ReplicaDifference> FindReplicaDifference(std::span<const std::string> parts,
                                                       const Shape& shape, const Sharding& sharding,
                                                       const Mesh& mesh) {
  const auto width = static_cast<size_t>(ElementBytes(shape.type));
  for (int64_t device = 0; device < mesh.num_devices(); ++device) {
    const int64_t other = FirstHolder(device, sharding, mesh);
    if (parts[device] == parts[other]) continue;
    ReplicaDifference difference{.device = device, .other = other};
    const std::string_view mine = parts[device], first = parts[other];
    for (size_t at = mine.size(); at > 0; at -= width) {
      if (mine.substr(at - width, width) == first.substr(at - width, width)) continue;
      ++difference.num_elements;
      difference.element = static_cast<int64_t>((at - width) / width);
    }
    return difference;
  }
  return std::nullopt;
}

}  // namespace minka
