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
#include "minka/ir/row_name.h"

namespace minka {
namespace {

namespace fs = std::filesystem;

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

struct ReadManifestResult {
  CheckpointManifest manifest;
  std::string hash;  // of its text
};

absl::StatusOr<ReadManifestResult> ReadManifest(const std::string& checkpoint) {
  const std::string path = (fs::path(checkpoint) / kManifestName).string();
  ASSIGN_OR_RETURN(const std::string json, ReadFile(path));
  auto manifest = ParseManifest(json);
  if (!manifest.ok()) return WithContext(manifest.status(), path);
  return ReadManifestResult{*std::move(manifest), HashText(StableHash(json))};
}

absl::Status CheckIsThere(const std::string& folder, const CheckpointFile& file) {
  const std::string path = (fs::path(folder) / file.name).string();
  std::error_code error;
  if (fs::file_size(path, error) == static_cast<uint64_t>(file.num_bytes)) return absl::OkStatus();
  return FailedPrecondition(
      "{} has not come here with the {} bytes that were written: a checkpoint's folder must be one "
      "that the driver and all workers share",
      path, file.num_bytes);
}

// One whose manifest cannot be read is of no run.
bool IsOfRun(const std::string& checkpoint, const std::string& run) {
  const auto read = ReadManifest(checkpoint);
  return read.ok() && read->manifest.run == run;
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
      manifest_(std::move(other.manifest_)) {}

CheckpointWriter::~CheckpointWriter() {
  std::error_code ignored;
  if (!partial_.empty()) fs::remove_all(partial_, ignored);
}

absl::StatusOr<CheckpointWriter> CheckpointWriter::Create(const std::string& folder,
                                                          CheckpointManifest about) {
  RETURN_IF_ERROR(MakeFolder(folder));
  RETURN_IF_ERROR(RemoveLeftOvers(folder));
  // Other processes write there, too.
  std::error_code error;
  const fs::path absolute = fs::absolute(folder, error);
  if (error) return Failed("find", folder, error);
  const std::string partial =
      (absolute / fmt::format("{}{}", kPartialPrefix, CheckpointName(about.step))).string();
  RETURN_IF_ERROR(MakeFolder(partial));
  return CheckpointWriter(folder, partial, std::move(about));
}

absl::StatusOr<std::string> CheckpointWriter::Commit(std::vector<CheckpointFile> files,
                                                     std::vector<CheckpointTensor> tensors,
                                                     int keep) {
  for (const CheckpointFile& file : files) RETURN_IF_ERROR(CheckIsThere(partial_, file));
  manifest_.files = std::move(files);
  manifest_.tensors = std::move(tensors);
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

CheckpointReader::CheckpointReader(std::string path, CheckpointManifest manifest, std::string hash)
    : path_(std::move(path)), manifest_(std::move(manifest)), hash_(std::move(hash)) {
  for (size_t i = 0; i < manifest_.tensors.size(); ++i) numbers_[manifest_.tensors[i].name] = i;
}

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
  ASSIGN_OR_RETURN(ReadManifestResult read, ReadManifest(checkpoint));
  return CheckpointReader(checkpoint, std::move(read.manifest), std::move(read.hash));
}

const CheckpointTensor* CheckpointReader::Saved(const std::string& name) const {
  const auto found = numbers_.find(name);
  return found == numbers_.end() ? nullptr : &manifest_.tensors[found->second];
}

std::optional<FoundTensor> CheckpointReader::Find(const std::string& name) const {
  if (const CheckpointTensor* const saved = Saved(name)) {
    return FoundTensor{.shape = saved->shape, .saved = {saved}};
  }
  if (const std::optional<NamedRow> row = ParseRowName(name)) {
    const CheckpointTensor* const whole = Saved(row->name);
    if (whole == nullptr || whole->shape.rank() == 0 || row->row >= whole->shape.dims[0]) {
      return std::nullopt;
    }
    FoundTensor stored{.shape = whole->shape, .saved = {whole}, .row = row->row};
    stored.shape.dims[0] = 1;
    return stored;
  }
  FoundTensor stored;
  while (const CheckpointTensor* const row =
             Saved(RowName(name, static_cast<int64_t>(stored.saved.size())))) {
    if (stored.saved.empty()) stored.shape = row->shape;
    if (row->shape != stored.shape || row->shape.rank() == 0 || row->shape.dims[0] != 1) {
      return std::nullopt;
    }
    stored.saved.push_back(row);
  }
  if (stored.saved.empty()) return std::nullopt;
  stored.shape.dims[0] = static_cast<int64_t>(stored.saved.size());
  return stored;
}

absl::StatusOr<std::vector<std::string>> CheckpointReader::Read(const FoundTensor& tensor,
                                                                const std::vector<Box>& boxes) {
  std::vector<Box> moved = boxes;
  if (tensor.saved.size() == 1) {
    for (Box& box : moved) {
      if (!tensor.row) continue;
      box.begin[0] += *tensor.row;
      box.end[0] += *tensor.row;
    }
    return ReadSaved(*tensor.saved.front(), moved);
  }
  std::vector<std::string> parts(boxes.size());
  for (int64_t row = 0; row < tensor.shape.dims[0]; ++row) {
    std::vector<Box> of_row;
    std::vector<size_t> numbers;
    for (size_t i = 0; i < boxes.size(); ++i) {
      if (row < boxes[i].begin[0] || row >= boxes[i].end[0]) continue;
      of_row.push_back(boxes[i]);
      of_row.back().begin[0] = 0;
      of_row.back().end[0] = 1;
      numbers.push_back(i);
    }
    if (of_row.empty()) continue;
    ASSIGN_OR_RETURN(const std::vector<std::string> read, ReadSaved(*tensor.saved[row], of_row));
    for (size_t i = 0; i < read.size(); ++i) parts[numbers[i]] += read[i];
  }
  return parts;
}

absl::StatusOr<std::vector<std::string>> CheckpointReader::ReadSaved(
    const CheckpointTensor& tensor, const std::vector<Box>& boxes) {
  const int64_t element_bytes = ElementBytes(tensor.shape.type);
  std::vector<std::string> parts;
  for (const Box& box : boxes) {
    parts.emplace_back(static_cast<size_t>(box.num_elements() * element_bytes), '\0');
  }
  for (int tile = 0; tile < static_cast<int>(tensor.tiles.size()); ++tile) {
    const Box from = TileBox(tensor, tile);
    const auto overlaps = [&](const Box& box) { return Overlap(from, box).has_value(); };
    if (std::ranges::none_of(boxes, overlaps)) continue;
    ASSIGN_OR_RETURN(const std::string bytes, ReadTile(tensor, tile));
    for (size_t i = 0; i < boxes.size(); ++i) {
      const std::optional<Box> common = Overlap(from, boxes[i]);
      if (!common) continue;
      CopyBox(*common, element_bytes, {bytes.data(), &from}, {parts[i].data(), &boxes[i]});
    }
  }
  return parts;
}

absl::StatusOr<std::string> CheckpointReader::ReadTile(const CheckpointTensor& tensor, int tile) {
  const int number = tensor.tiles[tile].file;
  const CheckpointFile& expected = manifest_.files[number];
  const std::string path = (fs::path(path_) / expected.name).string();
  auto open = files_.find(number);
  if (open == files_.end()) {
    std::error_code error;
    const uint64_t num_bytes = fs::file_size(path, error);
    if (!error && num_bytes != static_cast<uint64_t>(expected.num_bytes)) {
      return InvalidArgument("{} has {} bytes, its checkpoint's manifest says {}: it is damaged",
                             path, num_bytes, expected.num_bytes);
    }
    ASSIGN_OR_RETURN(TensorReader file, TensorReader::Open(path));
    open = files_.emplace(number, std::move(file)).first;
  }
  const TensorReader& file = open->second;
  const std::string name = TileName(tensor, tile);
  const Shape* const shape = file.Find(name);
  if (shape == nullptr || *shape != TileShape(tensor)) {
    return InvalidArgument("{} has no tensor '{}' of shape {}, as the manifest says", path, name,
                           ToString(TileShape(tensor)));
  }
  ASSIGN_OR_RETURN(std::string bytes, file.Read(name));
  if (HashText(StableHash(bytes)) == tensor.tiles[tile].hash) return bytes;
  return InvalidArgument("{} is damaged: its '{}' is not what the manifest has the hash of", path,
                         name);
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
