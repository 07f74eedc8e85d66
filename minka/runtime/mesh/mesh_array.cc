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

Literal WholeOf(const ArrayLayout& layout, std::span<const pjrt::LentContents> parts) {
  const auto& [shape, sharding, mesh, first_device] = layout;
  const auto text = [](const pjrt::LentContents& part) {
    return std::string_view(part.bytes.data(), part.bytes.size());
  };
  std::string whole;
  if (parts.size() == 1) {
    whole = text(parts.front());
  } else {
    const std::vector<int64_t> devices = CoveringDevices(sharding, mesh);
    whole.resize(static_cast<size_t>(shape.num_bytes()));
    for (size_t i = 0; i < devices.size(); ++i) {
      PutPart(text(parts[i]), shape, sharding, mesh, devices[i], whole);
    }
  }
  return {shape, std::make_shared<const std::string>(std::move(whole))};
}

absl::StatusOr<std::vector<pjrt::LentContents>> LendParts(const MeshArray& array,
                                                          std::span<const int64_t> devices) {
  std::vector<pjrt::LentContents> parts;
  for (const int64_t device : devices) {
    ASSIGN_OR_RETURN(parts.emplace_back(), array.parts[device].Lend());
  }
  return parts;
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
  ASSIGN_OR_RETURN(const std::vector<pjrt::LentContents> parts,
                   LendParts(array, CoveringDevices(layout.sharding, layout.mesh)));
  return WholeOf(layout, parts);
}

}  // namespace minka
