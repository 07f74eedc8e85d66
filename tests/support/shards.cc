#include "tests/support/shards.h"

#include "minka/base/status.h"

namespace minka {
namespace {

// First index of the device's part along every dimension.
std::vector<int64_t> Origin(const Shape& local, const Sharding& sharding, const Mesh& mesh,
                            int64_t device) {
  std::vector<int64_t> origin;
  for (size_t dim = 0; dim < local.dims.size(); ++dim) {
    int64_t part = 0;
    const AxisList& axes = sharding.dims[dim];
    for (int i = 0; i < axes.size(); ++i) {
      part = part * mesh.size(axes[i]) + mesh.Coordinate(device, axes[i]);
    }
    origin.push_back(part * local.dims[dim]);
  }
  return origin;
}

// Row-major position in the whole of every element of the part, in order.
std::vector<int64_t> Positions(const Shape& shape, const Sharding& sharding, const Mesh& mesh,
                               int64_t device) {
  const Shape local = LocalShape(shape, sharding, mesh);
  const std::vector<int64_t> origin = Origin(local, sharding, mesh, device);
  std::vector<int64_t> positions;
  for (int64_t element = 0; element < local.num_elements(); ++element) {
    int64_t position = 0, rest = element, stride = 1;
    for (int dim = local.rank() - 1; dim >= 0; --dim) {
      position += (rest % local.dims[dim] + origin[dim]) * stride;
      rest /= local.dims[dim];
      stride *= shape.dims[dim];
    }
    positions.push_back(position);
  }
  return positions;
}

}  // namespace

std::string PartOf(std::string_view whole, const Shape& shape, const Sharding& sharding,
                   const Mesh& mesh, int64_t device) {
  const size_t width = static_cast<size_t>(ElementBytes(shape.type));
  std::string part;
  for (const int64_t position : Positions(shape, sharding, mesh, device)) {
    part += whole.substr(static_cast<size_t>(position) * width, width);
  }
  return part;
}

absl::StatusOr<std::string> Assemble(const std::vector<std::string>& parts, const Shape& shape,
                                     const Sharding& sharding, const Mesh& mesh) {
  const size_t width = static_cast<size_t>(ElementBytes(shape.type));
  std::string whole(static_cast<size_t>(shape.num_bytes()), '\0');
  std::vector<bool> known(static_cast<size_t>(shape.num_elements()));
  for (size_t device = 0; device < parts.size(); ++device) {
    size_t offset = 0;
    for (const int64_t position : Positions(shape, sharding, mesh, static_cast<int64_t>(device))) {
      const std::string_view element = std::string_view(parts[device]).substr(offset, width);
      offset += width;
      const std::string_view before =
          std::string_view(whole).substr(static_cast<size_t>(position) * width, width);
      if (known[position] && before != element) {
        return InvalidArgument("element {} differs on device {}", position, device);
      }
      known[position] = true;
      whole.replace(static_cast<size_t>(position) * width, width, element);
    }
  }
  return whole;
}

}  // namespace minka
