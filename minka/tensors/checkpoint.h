// Checkpoints on disk: FOLDER/step_00000100/ with manifest.json and safetensors files of whole
// tensors or of their tiles, so that any mesh and any other tool can read them.
//
// A checkpoint is written beside its place, by as many processes as hold parts of it, and renamed
// when all of it is on the disk: what has the name of a checkpoint is complete, whenever a process
// or a machine dies. What an interrupted save leaves behind has a name that begins with a dot; the
// next save to the folder removes it. One process saves to a folder at a time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "minka/tensors/checkpoint_manifest.h"
#include "minka/tensors/safetensors.h"

namespace minka {

class CheckpointWriter {
 public:
  // Makes the folder where needed. `about` gives all of the manifest but files and tensors.
  static absl::StatusOr<CheckpointWriter> Create(const std::string& folder,
                                                 CheckpointManifest about);
  CheckpointWriter(CheckpointWriter&& other) noexcept;
  CheckpointWriter& operator=(CheckpointWriter&&) = delete;
  // Removes what was written unless it was committed.
  ~CheckpointWriter();

  // Where its files are to be written before Commit; absolute.
  const std::string& path() const { return partial_; }
  // Gives the checkpoint its name; returns its folder. A checkpoint of the same step is replaced.
  // Then the run's oldest checkpoints in the folder are removed, so that at most `keep` remain of
  // those up to this one; precondition: keep > 0. Other runs' stay, and those with more steps.
  // FailedPrecondition for a file that is not there as it was written.
  absl::StatusOr<std::string> Commit(std::vector<CheckpointFile> files,
                                     std::vector<CheckpointTensor> tensors, int keep);

 private:
  CheckpointWriter(std::string folder, std::string partial, CheckpointManifest manifest);

  std::string folder_, partial_;
  CheckpointManifest manifest_;
};

// A tensor of a checkpoint as it is asked for: as it was saved; a row of it; or of rows that were
// saved one by one (ir/row_name.h), whoever asks.
struct FoundTensor {
  Shape shape;
  std::vector<const CheckpointTensor*> saved;  // one, or all rows
  std::optional<int64_t> row;                  // of the one
};

// Not thread-safe.
class CheckpointReader {
 public:
  // `path`: a checkpoint, or a folder of checkpoints, of which the newest is taken. NotFound if
  // there is none; InvalidArgument names the manifest if it is damaged.
  static absl::StatusOr<CheckpointReader> Open(const std::string& path);

  const std::string& path() const { return path_; }
  const CheckpointManifest& manifest() const { return manifest_; }
  // Equal for checkpoints that are equal.
  const std::string& hash() const { return hash_; }
  // nullopt: there is no such tensor.
  std::optional<FoundTensor> Find(const std::string& name) const;
  // What lies in the boxes, of the tiles that overlap with them each read once, and only those;
  // errors name the file whose size or contents are not what the manifest says.
  absl::StatusOr<std::vector<std::string>> Read(const FoundTensor& tensor,
                                                const std::vector<Box>& boxes);

 private:
  CheckpointReader(std::string path, CheckpointManifest manifest, std::string hash);
  const CheckpointTensor* Saved(const std::string& name) const;
  absl::StatusOr<std::vector<std::string>> ReadSaved(const CheckpointTensor& tensor,
                                                     const std::vector<Box>& boxes);
  absl::StatusOr<std::string> ReadTile(const CheckpointTensor& tensor, int tile);

  std::string path_;
  CheckpointManifest manifest_;
  std::string hash_;
  std::map<std::string, size_t> numbers_;  // of tensors, by name
  std::map<int, TensorReader> files_;      // those opened, by number
};

// Makes the folder where needed, and a file in it that it removes again: Unavailable names the
// folder where a save to it would fail.
absl::Status CheckCanSave(const std::string& folder);

struct ListedCheckpoint {
  std::string path;
  int64_t step = 0;  // as its name says
};
// The checkpoints of a folder by step; none if there is no such folder.
std::vector<ListedCheckpoint> ListCheckpoints(const std::string& folder);

}  // namespace minka
