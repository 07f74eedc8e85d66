// Checkpoints on disk: FOLDER/step_00000100/ with manifest.json and safetensors files of whole
// tensors, so that any mesh and any other tool can read them.
//
// A checkpoint is written beside its place and renamed when all of it is on the disk: what has the
// name of a checkpoint is complete, whenever the process or the machine dies. What an interrupted
// save leaves behind has a name that begins with a dot; the next save to the folder removes it.
// One process saves to a folder at a time.
#pragma once

#include <cstdint>
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

  // Tensors are held until a file is full (1 GiB).
  absl::Status Add(const std::string& name, HostTensor tensor);
  // Gives the checkpoint its name; returns its folder. A checkpoint of the same step is replaced.
  // Then the run's oldest checkpoints in the folder are removed, so that at most `keep` remain of
  // those up to this one; precondition: keep > 0. Other runs' stay, and those with more steps.
  absl::StatusOr<std::string> Commit(int keep);

 private:
  CheckpointWriter(std::string folder, std::string partial, CheckpointManifest manifest);
  absl::Status WriteTensorFile();

  std::string folder_, partial_;
  CheckpointManifest manifest_;
  TensorFile tensors_;
  int64_t num_bytes_ = 0;
};

class CheckpointReader {
 public:
  // `path`: a checkpoint, or a folder of checkpoints, of which the newest is taken. NotFound if
  // there is none; InvalidArgument names the manifest if it is damaged.
  static absl::StatusOr<CheckpointReader> Open(const std::string& path);

  const std::string& path() const { return path_; }
  const CheckpointManifest& manifest() const { return manifest_; }
  // The tensors of a file, once size, hash and contents are what the manifest says; errors name the
  // file.
  absl::StatusOr<TensorFile> ReadTensorFile(int file) const;

 private:
  CheckpointReader(std::string path, CheckpointManifest manifest);

  std::string path_;
  CheckpointManifest manifest_;
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
