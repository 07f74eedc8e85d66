#include "minka/runtime/mesh/split_array.h"

#include "minka/base/check.h"
#include "minka/ir/box.h"
#include "minka/sharding/held_parts.h"

namespace minka {

std::string TakePart(std::string_view whole, const Shape& shape, const Sharding& sharding,
                     const Mesh& mesh, int64_t device) {
  MINKA_CHECK(static_cast<int64_t>(whole.size()) == shape.num_bytes(), "{} bytes for {}",
              whole.size(), ToString(shape));
  const Box all = BoxOf(shape), held = PartOf(shape, sharding, mesh, device);
  const int64_t element_bytes = ElementBytes(shape.type);
  std::string part(static_cast<size_t>(held.num_elements() * element_bytes), '\0');
  const std::span<const char> bytes = whole;
  CopyBox(held, element_bytes, {bytes.data(), &all}, {part.data(), &held});
  return part;
}

void PutPart(std::string_view part, const Shape& shape, const Sharding& sharding, const Mesh& mesh,
             int64_t device, std::span<char> whole) {
  const Box all = BoxOf(shape), held = PartOf(shape, sharding, mesh, device);
  const std::span<const char> bytes = part;
  CopyBox(held, ElementBytes(shape.type), {bytes.data(), &held}, {whole.data(), &all});
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
