// What a checkpoint says of itself: which tensors lie in which files, and where the run stood.
//
// manifest.json: format "minka-checkpoint", schema_version 1, step, seed (decimal text), run (text;
// may be left out), model, options and data (texts by name), files (name, bytes, hash), tensors
// (name, shape, file: a number in files), and last checksum, the hash of the object without it as
// it is printed here. Hashes are those of base/hash.h.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/ir/shape.h"

namespace minka {

struct CheckpointFile {
  std::string name;  // in the checkpoint's folder
  int64_t num_bytes = 0;
  std::string hash;  // of its contents
  bool operator==(const CheckpointFile&) const = default;
};

struct CheckpointTensor {
  std::string name;
  Shape shape;
  int file = 0;
  bool operator==(const CheckpointTensor&) const = default;
};

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
