#include "minka/tensors/checkpoint.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "minka/base/file.h"
#include "minka/base/hash.h"
#include "minka/base/status.h"

namespace minka {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kFileBytes = int64_t{1} << 30;
constexpr const char* kManifestName = "manifest.json";
constexpr std::string_view kPrefix = "step_";
// Of folders that are no checkpoint, or no longer one.
constexpr std::string_view kPartialPrefix = ".partial_", kRemovedPrefix = ".removed_";

std::string CheckpointName(int64_t step) { return fmt::format("{}{:08}", kPrefix, step); }

// nullopt: no checkpoint's name.
std::optional<int64_t> StepOfName(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  uint64_t step = 0;
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kPrefix.size(), end, step);
  if (error != std::errc() || stop != end || step > INT64_MAX) return std::nullopt;
  return static_cast<int64_t>(step);
}

bool IsLeftOver(const std::string& name) {
  return name.starts_with(kPartialPrefix) || name.starts_with(kRemovedPrefix);
}

absl::Status Failed(std::string_view what, const std::string& path, const std::error_code& error) {
  return Unavailable("cannot {} {}: {}", what, path, error.message());
}

absl::Status Rename(const std::string& from, const std::string& to) {
  std::error_code error;
  fs::rename(from, to, error);
  return error ? Failed("make", to, error) : absl::OkStatus();
}

std::vector<std::string> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

// Under a name that nobody takes for a checkpoint, because removing takes a while.
std::string NameOfRemoved(const std::string& path) {
  const fs::path checkpoint(path);
  return (checkpoint.parent_path() /
          fmt::format("{}{}", kRemovedPrefix, checkpoint.filename().string()))
      .string();
}

absl::Status RemoveAll(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  return error ? Failed("remove", path, error) : absl::OkStatus();
}

absl::Status RemoveLeftOvers(const std::string& folder) {
  for (const std::string& name : NamesIn(folder)) {
    if (IsLeftOver(name)) RETURN_IF_ERROR(RemoveAll((fs::path(folder) / name).string()));
  }
  return absl::OkStatus();
}

absl::Status MakeFolder(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  return error ? Failed("make the folder", folder, error) : absl::OkStatus();
}

absl::StatusOr<CheckpointManifest> ReadManifest(const std::string& checkpoint) {
  const std::string path = (fs::path(checkpoint) / kManifestName).string();
  ASSIGN_OR_RETURN(const std::string json, ReadFile(path));
  auto manifest = ParseManifest(json);
  if (!manifest.ok()) return WithContext(manifest.status(), path);
  return manifest;
}

// One whose manifest cannot be read is of no run.
bool IsOfRun(const std::string& checkpoint, const std::string& run) {
  const auto manifest = ReadManifest(checkpoint);
  return manifest.ok() && manifest->run == run;
}

absl::Status Prune(const std::string& folder, const CheckpointManifest& newest, int keep) {
  std::vector<std::string> of_run;
  for (const ListedCheckpoint& listed : ListCheckpoints(folder)) {
    if (listed.step <= newest.step && IsOfRun(listed.path, newest.run)) {
      of_run.push_back(listed.path);
    }
  }
  for (size_t i = 0; i + static_cast<size_t>(keep) < of_run.size(); ++i) {
    const std::string removed = NameOfRemoved(of_run[i]);
    RETURN_IF_ERROR(Rename(of_run[i], removed));
    RETURN_IF_ERROR(RemoveAll(removed));
  }
  return absl::OkStatus();
}

}  // namespace

CheckpointWriter::CheckpointWriter(std::string folder, std::string partial,
                                   CheckpointManifest manifest)
    : folder_(std::move(folder)), partial_(std::move(partial)), manifest_(std::move(manifest)) {}

CheckpointWriter::CheckpointWriter(CheckpointWriter&& other) noexcept
    : folder_(std::move(other.folder_)),
      partial_(std::exchange(other.partial_, std::string())),
      manifest_(std::move(other.manifest_)),
      tensors_(std::move(other.tensors_)),
      num_bytes_(other.num_bytes_) {}

CheckpointWriter::~CheckpointWriter() {
  std::error_code ignored;
  if (!partial_.empty()) fs::remove_all(partial_, ignored);
}

absl::StatusOr<CheckpointWriter> CheckpointWriter::Create(const std::string& folder,
                                                          CheckpointManifest about) {
  RETURN_IF_ERROR(MakeFolder(folder));
  RETURN_IF_ERROR(RemoveLeftOvers(folder));
  const std::string partial =
      (fs::path(folder) / fmt::format("{}{}", kPartialPrefix, CheckpointName(about.step))).string();
  RETURN_IF_ERROR(MakeFolder(partial));
  about.files.clear();
  about.tensors.clear();
  return CheckpointWriter(folder, partial, std::move(about));
}

absl::Status CheckpointWriter::Add(const std::string& name, HostTensor tensor) {
  if (num_bytes_ > 0 && num_bytes_ + tensor.shape.num_bytes() > kFileBytes) {
    RETURN_IF_ERROR(WriteTensorFile());
  }
  num_bytes_ += tensor.shape.num_bytes();
  manifest_.tensors.push_back(
      {.name = name, .shape = tensor.shape, .file = static_cast<int>(manifest_.files.size())});
  tensors_.tensors[name] = std::move(tensor);
  return absl::OkStatus();
}

absl::Status CheckpointWriter::WriteTensorFile() {
  const std::string name = fmt::format("state_{:05}.safetensors", manifest_.files.size());
  const std::string path = (fs::path(partial_) / name).string();
  RETURN_IF_ERROR(WriteTensors(path, tensors_));
  RETURN_IF_ERROR(SyncToDisk(path));
  ASSIGN_OR_RETURN(const std::string contents, ReadFile(path));
  manifest_.files.push_back({.name = name,
                             .num_bytes = static_cast<int64_t>(contents.size()),
                             .hash = HashText(StableHash(contents))});
  tensors_ = {};
  num_bytes_ = 0;
  return absl::OkStatus();
}

absl::StatusOr<std::string> CheckpointWriter::Commit(int keep) {
  RETURN_IF_ERROR(WriteTensorFile());
  const std::string manifest = (fs::path(partial_) / kManifestName).string();
  RETURN_IF_ERROR(WriteFile(manifest, ManifestToJson(manifest_)));
  RETURN_IF_ERROR(SyncToDisk(manifest));
  RETURN_IF_ERROR(SyncToDisk(partial_));
  std::string path = (fs::path(folder_) / CheckpointName(manifest_.step)).string();
  const std::string replaced = NameOfRemoved(path);
  std::error_code error;
  if (fs::exists(path, error)) RETURN_IF_ERROR(Rename(path, replaced));
  RETURN_IF_ERROR(Rename(partial_, path));
  partial_.clear();
  RETURN_IF_ERROR(SyncToDisk(folder_));
  RETURN_IF_ERROR(RemoveAll(replaced));
  RETURN_IF_ERROR(Prune(folder_, manifest_, keep));
  return path;
}

CheckpointReader::CheckpointReader(std::string path, CheckpointManifest manifest)
    : path_(std::move(path)), manifest_(std::move(manifest)) {}

absl::StatusOr<CheckpointReader> CheckpointReader::Open(const std::string& path) {
  std::error_code ignored;
  std::string checkpoint = path;
  if (!fs::exists(fs::path(path) / kManifestName, ignored)) {
    const std::vector<ListedCheckpoint> all = ListCheckpoints(path);
    if (all.empty()) {
      return NotFound("{} is no checkpoint ({} is not there) and holds none (step_...)", path,
                      kManifestName);
    }
    checkpoint = all.back().path;
  }
  ASSIGN_OR_RETURN(CheckpointManifest manifest, ReadManifest(checkpoint));
  return CheckpointReader(checkpoint, std::move(manifest));
}

absl::StatusOr<TensorFile> CheckpointReader::ReadTensorFile(int file) const {
  const CheckpointFile& expected = manifest_.files[file];
  const std::string path = (fs::path(path_) / expected.name).string();
  ASSIGN_OR_RETURN(const std::string contents, ReadFile(path));
  if (static_cast<int64_t>(contents.size()) != expected.num_bytes) {
    return InvalidArgument("{} has {} bytes, its checkpoint's manifest says {}: it is damaged",
                           path, contents.size(), expected.num_bytes);
  }
  if (HashText(StableHash(contents)) != expected.hash) {
    return InvalidArgument("{} is damaged: its contents are not what the manifest has the hash of",
                           path);
  }
  auto tensors = ParseTensors(contents);
  if (!tensors.ok()) return WithContext(tensors.status(), path);
  for (const CheckpointTensor& tensor : manifest_.tensors) {
    if (tensor.file != file) continue;
    const auto found = tensors->tensors.find(tensor.name);
    if (found == tensors->tensors.end() || found->second.shape != tensor.shape) {
      return InvalidArgument("{} has no tensor '{}' of shape {}, as the manifest says", path,
                             tensor.name, ToString(tensor.shape));
    }
  }
  return tensors;
}

absl::Status CheckCanSave(const std::string& folder) {
  RETURN_IF_ERROR(MakeFolder(folder));
  // Named as what the next save removes, should the process die here.
  const std::string probe = (fs::path(folder) / fmt::format("{}probe", kPartialPrefix)).string();
  const absl::Status written = WriteFile(probe, "probe");
  if (!written.ok()) {
    return WithContext(written, fmt::format("no checkpoint can be saved to {}", folder));
  }
  return RemoveAll(probe);
}

std::vector<ListedCheckpoint> ListCheckpoints(const std::string& folder) {
  std::vector<ListedCheckpoint> checkpoints;
  for (const std::string& name : NamesIn(folder)) {
    const std::optional<int64_t> step = StepOfName(name);
    if (step) checkpoints.push_back({(fs::path(folder) / name).string(), *step});
  }
  std::ranges::stable_sort(checkpoints, {}, &ListedCheckpoint::step);
  return checkpoints;
}

}  // namespace minka
