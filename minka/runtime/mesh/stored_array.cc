#include "minka/runtime/mesh/stored_array.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "minka/base/hash.h"
#include "minka/base/status.h"
#include "minka/sharding/held_parts.h"

namespace minka {

absl::StatusOr<StoredFile> StoreParts(const std::string& path, std::span<const NamedPart> parts) {
  std::map<std::string, Shape> shapes;
  std::map<std::string, size_t> numbers;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].part->state() != pjrt::BufferState::kAlive) {
      return FailedPrecondition("'{}' was consumed by a step", parts[i].name);
    }
    if (!numbers.emplace(parts[i].name, i).second) {
      return InvalidArgument("two arrays would be '{}' in {}", parts[i].name, path);
    }
    shapes[parts[i].name] = parts[i].part->shape();
  }
  StoredFile stored{.hashes = std::vector<std::string>(parts.size())};
  const auto bytes = [&](const std::string& name) -> absl::StatusOr<std::string> {
    const size_t number = numbers.at(name);
    ASSIGN_OR_RETURN(std::string contents, parts[number].part->ToHost());
    stored.hashes[number] = HashText(StableHash(contents));
    return contents;
  };
  ASSIGN_OR_RETURN(stored.num_bytes, WriteTensorsInTurn(path, shapes, bytes));
  return stored;
}

absl::StatusOr<MeshArray> RestoreArray(const pjrt::Client& client, const ArrayLayout& layout,
                                       CheckpointReader& checkpoint, const std::string& name) {
  const auto& [shape, sharding, mesh, first_device] = layout;
  const std::optional<FoundTensor> tensor = checkpoint.Find(name);
  if (!tensor) return NotFound("{} has no tensor '{}'", checkpoint.path(), name);
  if (tensor->shape != shape) {
    return InvalidArgument("'{}' is {} in {}, not {}", name, ToString(tensor->shape),
                           checkpoint.path(), ToString(shape));
  }
  // Devices that hold the same share its bytes.
  std::vector<Box> boxes;
  std::vector<size_t> box_of_device;
  for (int64_t device = 0; device < mesh.num_devices(); ++device) {
    const Box box = PartOf(shape, sharding, mesh, device);
    const auto found = std::ranges::find(boxes, box);
    box_of_device.push_back(static_cast<size_t>(found - boxes.begin()));
    if (found == boxes.end()) boxes.push_back(box);
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> parts, checkpoint.Read(*tensor, boxes));
  const Shape local = LocalShape(shape, sharding, mesh);
  MeshArray array;
  for (size_t device = 0; device < box_of_device.size(); ++device) {
    ASSIGN_OR_RETURN(pjrt::Buffer part, client.CopyFromHost(first_device + static_cast<int>(device),
                                                            local, parts[box_of_device[device]]));
    array.parts.push_back(std::move(part));
  }
  return array;
}

}  // namespace minka
