// Arrays on the devices of a mesh, and their way to the host and back.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/ir/literal.h"
#include "minka/ir/shape.h"
#include "minka/runtime/mesh/host_array.h"
#include "minka/runtime/pjrt/client.h"
#include "minka/sharding/mesh.h"
#include "minka/sharding/sharding.h"

namespace minka {

// One array over the devices of a mesh, a part on each; move-only.
struct MeshArray {
  std::vector<pjrt::Buffer> parts;  // by device of the mesh
};

// How an array lies on a mesh.
struct ArrayLayout {
  Shape shape;  // whole
  Sharding sharding;
  Mesh mesh;
  int first_device = 0;  // of the mesh, among those of the client (or of the job)
  bool operator==(const ArrayLayout&) const = default;
};

// InvalidArgument for another shape than the one wanted, unless it only has the batch in one
// dimension where the other has micro-batches and their examples: the bytes are the same.
absl::Status CheckShape(const Shape& wanted, const Shape& given);
// The array of what its covering devices (CoveringDevices) hold, copied.
Literal WholeOf(const ArrayLayout& layout, std::span<const pjrt::LentContents> parts);
// What devices hold, see Buffer::Lend.
absl::StatusOr<std::vector<pjrt::LentContents>> LendParts(const MeshArray& array,
                                                          std::span<const int64_t> devices);
// Copies a whole array to the devices; InvalidArgument as CheckShape.
absl::StatusOr<MeshArray> PutArray(const pjrt::Client& client, const ArrayLayout& layout,
                                   const HostArray& value);
// The whole array.
absl::StatusOr<Literal> GetArray(const ArrayLayout& layout, const MeshArray& array);

}  // namespace minka
