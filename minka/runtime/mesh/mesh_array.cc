#include "minka/runtime/mesh/mesh_array.h"

#include <utility>

#include "minka/base/status.h"
#include "minka/runtime/mesh/split_array.h"

namespace minka {
namespace {

// Is `cut` the shape with one dimension written as two? The bytes are the same.
bool IsCut(const Shape& shape, const Shape& cut) {
  if (shape.type != cut.type || cut.rank() != shape.rank() + 1) return false;
  for (int dim = 0; dim < shape.rank(); ++dim) {
    std::vector<int64_t> joined = cut.dims;
    joined[dim] *= joined[dim + 1];
    joined.erase(joined.begin() + dim + 1);
    if (joined == shape.dims) return true;
  }
  return false;
}

}  // namespace

absl::Status CheckShape(const Shape& wanted, const Shape& given) {
  if (given == wanted || IsCut(given, wanted)) return absl::OkStatus();
  return InvalidArgument("it is {}, given is {}", ToString(wanted), ToString(given));
}

absl::StatusOr<MeshArray> PutArray(const pjrt::Client& client, const ArrayLayout& layout,
                                   const Literal& value) {
  const auto& [shape, sharding, mesh, first_device] = layout;
  RETURN_IF_ERROR(CheckShape(shape, value.shape));
  const Shape local = LocalShape(shape, sharding, mesh);
  const bool is_whole = sharding.is_replicated();
  MeshArray array;
  for (int device = 0; device < mesh.num_devices(); ++device) {
    const std::string part =
        is_whole ? std::string() : TakePart(*value.bytes, shape, sharding, mesh, device);
    ASSIGN_OR_RETURN(pjrt::Buffer buffer, client.CopyFromHost(first_device + device, local,
                                                              is_whole ? *value.bytes : part));
    array.parts.push_back(std::move(buffer));
  }
  return array;
}

absl::StatusOr<Literal> GetArray(const ArrayLayout& layout, const MeshArray& array) {
  const auto& [shape, sharding, mesh, first_device] = layout;
  std::string whole(static_cast<size_t>(shape.num_bytes()), '\0');
  for (const int64_t device : CoveringDevices(sharding, mesh)) {
    ASSIGN_OR_RETURN(const std::string part, array.parts[device].ToHost());
    PutPart(part, shape, sharding, mesh, device, whole);
  }
  return Literal{shape, std::make_shared<const std::string>(std::move(whole))};
}

}  // namespace minka
