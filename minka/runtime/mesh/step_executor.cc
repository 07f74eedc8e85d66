#include "minka/runtime/mesh/step_executor.h"

#include "minka/base/status.h"

namespace minka {

absl::StatusOr<std::vector<StoredFile>> StepExecutor::Store(std::span<const FileOfTiles> files) {
  std::vector<StoredFile> stored;
  for (const FileOfTiles& file : files) {
    std::vector<NamedPart> parts;
    for (const NamedTile& tile : file.tiles) {
      const MeshArray& array = *LocalStorageOf(*tile.array).places.front();
      parts.push_back({tile.name, &array.parts[tile.device]});
    }
    ASSIGN_OR_RETURN(stored.emplace_back(), StoreParts(file.path, parts));
  }
  return stored;
}

}  // namespace minka
