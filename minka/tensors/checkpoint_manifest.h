// What a checkpoint says of itself: which tensors lie in which files, and where the run stood.
//
// manifest.json: format "minka-checkpoint", schema_version 2, step, seed (decimal text), run
// (text), model, options and data (texts by name), files (name, bytes), tensors (name, shape, grid:
// parts along each dimension; tiles: by their place in the grid, row-major, the number of the file
// that holds it and the hash of its bytes), and last checksum, the hash of the object without it as
// it is printed here. Hashes are those of base/hash.h.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/ir/box.h"
#include "minka/ir/shape.h"

namespace minka {

struct CheckpointFile {
  std::string name;  // in the checkpoint's folder
  int64_t num_bytes = 0;
  bool operator==(const CheckpointFile&) const = default;
};

struct CheckpointTile {
  int file = 0;
  std::string hash;  // of its bytes
  bool operator==(const CheckpointTile&) const = default;
};

// A tensor as equal tiles, each in one file.
struct CheckpointTensor {
  std::string name;
  Shape shape;
  std::vector<int64_t> grid;          // tiles along each dimension, which they divide
  std::vector<CheckpointTile> tiles;  // row-major over the grid
  bool operator==(const CheckpointTensor&) const = default;
};

Shape TileShape(const CheckpointTensor& tensor);
Box TileBox(const CheckpointTensor& tensor, int tile);
// The other way. Precondition: it is a tile's.
int TileNumber(const CheckpointTensor& tensor, const Box& box);
// In its file: the tensor's own name where that is whole, else "w[3]".
std::string TileName(const CheckpointTensor& tensor, int tile);

struct CheckpointManifest {
  int64_t step = 0;   // steps done; the next one reads the data at this position
  uint64_t seed = 0;  // of batches and random keys
  // Equal in the checkpoints that one run, however often resumed, saves to one folder; those
  // in which it is empty count as of one run.
  std::string run;
  std::string model;
  std::map<std::string, std::string> options, data;
  std::vector<CheckpointFile> files;
  std::vector<CheckpointTensor> tensors;
  bool operator==(const CheckpointManifest&) const = default;
};

std::string ManifestToJson(const CheckpointManifest& manifest);
// InvalidArgument says which field is missing or wrong, or that the checksum does not fit.
absl::StatusOr<CheckpointManifest> ParseManifest(std::string_view json);

}  // namespace minka
