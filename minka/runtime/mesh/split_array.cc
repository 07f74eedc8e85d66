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

std::optional<ArrayPiece> PartInOnePiece(const Shape& shape, const Sharding& sharding,
                                         const Mesh& mesh, int64_t device) {
  const Box held = PartOf(shape, sharding, mesh, device);
  int64_t begin = 0;
  // Of every dimension before one that is cut there may be one position only.
  bool is_cut = false;
  for (int dim = shape.rank() - 1; dim >= 0; --dim) {
    if (is_cut && held.size(dim) != 1) return std::nullopt;
    is_cut = is_cut || held.size(dim) != shape.dims[dim];
  }
  for (int dim = 0; dim < shape.rank(); ++dim) begin = begin * shape.dims[dim] + held.begin[dim];
  const int64_t element_bytes = ElementBytes(shape.type);
  return ArrayPiece{.begin = static_cast<size_t>(begin * element_bytes),
                    .size = static_cast<size_t>(held.num_elements() * element_bytes)};
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
