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

// What a device gets of a whole array: in place where its part lies in one piece.
pjrt::LentContents PartOfContents(const pjrt::LentContents& whole, const ArrayLayout& layout,
                                  int device) {
  const auto& [shape, sharding, mesh, first_device] = layout;
  if (const auto piece = PartInOnePiece(shape, sharding, mesh, device)) {
    return {whole.bytes.subspan(piece->begin, piece->size), whole.owner};
  }
  auto part = std::make_shared<const std::string>(
      TakePart({whole.bytes.data(), whole.bytes.size()}, shape, sharding, mesh, device));
  return {*part, part};
}

}  // namespace

absl::Status CheckShape(const Shape& wanted, const Shape& given) {
  if (given == wanted || IsCut(given, wanted)) return absl::OkStatus();
  return InvalidArgument("it is {}, given is {}", ToString(wanted), ToString(given));
}

Literal WholeOf(const ArrayLayout& layout, std::span<const int64_t> devices,
                std::vector<std::string> parts) {
  const auto& [shape, sharding, mesh, first_device] = layout;
  const auto num_bytes = static_cast<size_t>(shape.num_bytes());
  std::string whole;
  if (parts.size() == 1 && parts.front().size() == num_bytes) {
    whole = std::move(parts.front());
  } else {
    whole.resize(num_bytes);
    for (size_t i = 0; i < devices.size(); ++i) {
      PutPart(parts[i], shape, sharding, mesh, devices[i], whole);
    }
  }
  return {shape, std::make_shared<const std::string>(std::move(whole))};
}

absl::StatusOr<MeshArray> PutArray(const pjrt::Client& client, const ArrayLayout& layout,
                                   const HostArray& value) {
  const auto& [shape, sharding, mesh, first_device] = layout;
  RETURN_IF_ERROR(CheckShape(shape, value.shape));
  const Shape local = LocalShape(shape, sharding, mesh);
  MeshArray array;
  for (int device = 0; device < mesh.num_devices(); ++device) {
    ASSIGN_OR_RETURN(pjrt::Buffer buffer,
                     client.CopyFromHost(first_device + device, local,
                                         PartOfContents(value.contents, layout, device)));
    array.parts.push_back(std::move(buffer));
  }
  return array;
}

absl::StatusOr<Literal> GetArray(const ArrayLayout& layout, const MeshArray& array) {
  const auto& [shape, sharding, mesh, first_device] = layout;
  const std::vector<int64_t> devices = CoveringDevices(sharding, mesh);
  std::vector<std::string> parts;
  for (const int64_t device : devices) {
    ASSIGN_OR_RETURN(parts.emplace_back(), array.parts[device].ToHost());
  }
  return WholeOf(layout, devices, std::move(parts));
}

}  // namespace minka
