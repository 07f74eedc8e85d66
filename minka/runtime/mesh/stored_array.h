// Arrays of this process's devices to and from the files of checkpoints, without the array as a
// whole in memory.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/runtime/mesh/mesh_array.h"
#include "minka/tensors/checkpoint.h"

namespace minka {

// What a device holds, under a name in a file.
struct NamedPart {
  std::string name;
  const pjrt::Buffer* part = nullptr;
};

struct StoredFile {
  int64_t num_bytes = 0;
  std::vector<std::string> hashes;  // of the parts' bytes
};

// Writes a new safetensors file and waits until it is on the disk; see WriteTensorsInTurn.
absl::StatusOr<StoredFile> StoreParts(const std::string& path, std::span<const NamedPart> parts);

// The tensor as it is laid out here; reads what the devices hold. NotFound where the checkpoint has
// none of the name, InvalidArgument where it has another shape.
absl::StatusOr<MeshArray> RestoreArray(const pjrt::Client& client, const ArrayLayout& layout,
                                       CheckpointReader& checkpoint, const std::string& name);

}  // namespace minka
