#include "minka/driver/checkpoint.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "minka/base/status.h"
#include "minka/runtime/mesh/split_array.h"
#include "minka/sharding/held_parts.h"

namespace minka {
namespace {

// So many bytes, or one array, are written by a worker, and read by all together, between looks at
// whether to stop.
constexpr int64_t kAtOnceBytes = int64_t{1} << 30;

// What goes to files: the tensors, and who writes which of their tiles.
class TilesToSave {
 public:
  TilesToSave(std::string folder, std::span<const NamedArray> arrays) : folder_(std::move(folder)) {
    for (const NamedArray& array : arrays) Add(array);
  }

  // Of each worker the next file; none: all are written.
  std::vector<int> NextFiles() {
    std::vector<int> numbers;
    for (auto& [worker, waiting] : waiting_) {
      if (waiting.empty()) continue;
      numbers.push_back(waiting.front());
      waiting.pop_front();
    }
    return numbers;
  }

  FileOfTiles TilesOf(int file) const {
    FileOfTiles out{.path = (std::filesystem::path(folder_) / files_[file].name).string()};
    for (const Place& place : places_[file]) {
      out.tiles.push_back({.name = TileName(tensors_[place.tensor], place.tile),
                           .array = place.array,
                           .device = place.device});
    }
    return out;
  }

  void Note(int file, const StoredFile& stored) {
    files_[file].num_bytes = stored.num_bytes;
    for (size_t i = 0; i < stored.hashes.size(); ++i) {
      const Place& place = places_[file][i];
      tensors_[place.tensor].tiles[place.tile].hash = stored.hashes[i];
    }
  }

  std::vector<CheckpointFile>& files() { return files_; }
  std::vector<CheckpointTensor>& tensors() { return tensors_; }

 private:
  struct Place {
    size_t tensor = 0;
    int tile = 0;
    const DistributedArray* array = nullptr;
    int64_t device = 0;
  };

  // Of replicas, the device at coordinate 0 of every axis that splits nothing writes.
  void Add(const NamedArray& named) {
    const auto& [shape, sharding, mesh, first_device] = named.array->layout();
    CheckpointTensor tensor{.name = named.name, .shape = shape};
    for (const AxisList& axes : sharding.dims) tensor.grid.push_back(NumParts(axes, mesh));
    const std::vector<int64_t> devices = CoveringDevices(sharding, mesh);
    tensor.tiles.resize(devices.size());
    tensors_.push_back(std::move(tensor));
    const int64_t tile_bytes = LocalBytes(shape, sharding, mesh);
    for (const int64_t device : devices) {
      const Box box = PartOf(shape, sharding, mesh, device);
      const int tile = TileNumber(tensors_.back(), box);
      const int file = FileFor(named.array->storage().worker(), tile_bytes);
      tensors_.back().tiles[tile].file = file;
      places_[file].push_back({tensors_.size() - 1, tile, named.array, device});
    }
  }

  // The worker's last file, or a new one where that is full.
  int FileFor(int worker, int64_t num_bytes) {
    std::deque<int>& of_worker = waiting_[worker];
    int64_t& last_bytes = last_bytes_[worker];
    if (of_worker.empty() || last_bytes + num_bytes > kAtOnceBytes) {
      of_worker.push_back(static_cast<int>(files_.size()));
      files_.push_back({.name = fmt::format("state_{:05}.safetensors", files_.size())});
      places_.emplace_back();
      last_bytes = 0;
    }
    last_bytes += num_bytes;
    return of_worker.back();
  }

  const std::string folder_;
  std::vector<CheckpointTensor> tensors_;
  std::vector<CheckpointFile> files_;
  std::vector<std::vector<Place>> places_;  // by file
  std::map<int, std::deque<int>> waiting_;  // files by worker
  std::map<int, int64_t> last_bytes_;       // of the worker's last file
};

// How the checkpoint was made, to say in errors.
std::string Origin(const CheckpointReader& checkpoint) {
  std::string text =
      fmt::format("{} is a checkpoint of {}", checkpoint.path(), checkpoint.manifest().model);
  for (const auto& [flag, value] : checkpoint.manifest().options) {
    if (flag != "model") text += fmt::format(" --{} {}", flag, value);
  }
  return text;
}

}  // namespace

absl::StatusOr<std::string> SaveArrays(const SaveOptions& options, CheckpointManifest about,
                                       StepExecutor& executor, std::span<const NamedArray> arrays) {
  ASSIGN_OR_RETURN(CheckpointWriter writer,
                   CheckpointWriter::Create(options.folder, std::move(about)));
  TilesToSave tiles(writer.path(), arrays);
  for (std::vector<int> next = tiles.NextFiles(); !next.empty(); next = tiles.NextFiles()) {
    if (options.stop.stop_requested()) return absl::CancelledError("saving was stopped");
    std::vector<FileOfTiles> files;
    for (const int file : next) files.push_back(tiles.TilesOf(file));
    ASSIGN_OR_RETURN(const std::vector<StoredFile> stored, executor.Store(files));
    for (size_t i = 0; i < stored.size(); ++i) tiles.Note(next[i], stored[i]);
  }
  return writer.Commit(std::move(tiles.files()), std::move(tiles.tensors()), options.keep);
}

absl::StatusOr<std::string> SaveCheckpoint(const SaveOptions& options, CheckpointManifest about,
                                           StepRunner& runner, const State& state) {
  about.step = state.num_steps;
  about.seed = state.seed;
  std::vector<NamedArray> arrays;
  for (size_t i = 0; i < runner.parameters().size(); ++i) {
    const ParameterInfo& parameter = runner.parameters()[i];
    if (IsResident(parameter)) arrays.push_back({parameter.name, &state.arrays[i]});
  }
  return SaveArrays(options, std::move(about), runner.executor(), arrays);
}

absl::Status CheckFits(const CheckpointReader& checkpoint, const Step& step) {
  std::set<std::string> left_over;
  for (const CheckpointTensor& tensor : checkpoint.manifest().tensors) {
    left_over.insert(tensor.name);
  }
  std::map<const CheckpointTensor*, int64_t> num_rows;  // that are read of tensors saved whole
  const Computation& entry = step.module.entry_computation();
  for (size_t i = 0; i < step.parameters.size(); ++i) {
    if (!IsResident(step.parameters[i])) continue;
    const std::string& name = step.parameters[i].name;
    const Shape& shape = entry.instructions[entry.parameters[i]].shape();
    const std::optional<FoundTensor> found = checkpoint.Find(name);
    if (!found) {
      return InvalidArgument("{}, which has no {}", Origin(checkpoint), name);
    }
    if (found->shape != shape) {
      return InvalidArgument("{}, whose {} is {}, not {}", Origin(checkpoint), name,
                             ToString(found->shape), ToString(shape));
    }
    for (const CheckpointTensor* const saved : found->saved) {
      left_over.erase(saved->name);
      if (found->saved.size() == 1 && saved->name != name) ++num_rows[saved];
    }
  }
  for (const auto& [saved, count] : num_rows) {
    if (saved->shape.rank() == 0 || count == saved->shape.dims[0]) continue;
    return InvalidArgument("{}, whose {} has {} rows; the step to resume has {}",
                           Origin(checkpoint), saved->name, saved->shape.dims[0], count);
  }
  if (left_over.empty()) return absl::OkStatus();
  return InvalidArgument("{}, which has {}; the step to resume has not", Origin(checkpoint),
                         *left_over.begin());
}

absl::StatusOr<std::vector<DistributedArray>> RestoreArrays(
    CheckpointReader& checkpoint, StepExecutor& executor,
    std::span<const TensorOfParameter> tensors, const std::stop_token& stop) {
  std::vector<DistributedArray> arrays;
  while (arrays.size() < tensors.size()) {
    if (stop.stop_requested()) return absl::CancelledError("restoring was stopped");
    size_t count = 0;
    for (int64_t bytes = 0; arrays.size() + count < tensors.size() && bytes < kAtOnceBytes;) {
      bytes += executor.ParameterLayout(tensors[arrays.size() + count].parameter).shape.num_bytes();
      ++count;
    }
    ASSIGN_OR_RETURN(std::vector<DistributedArray> next,
                     executor.Restore(checkpoint, tensors.subspan(arrays.size(), count)));
    std::ranges::move(next, std::back_inserter(arrays));
  }
  return arrays;
}

absl::StatusOr<State> RestoreCheckpoint(CheckpointReader& checkpoint, StepRunner& runner) {
  std::vector<TensorOfParameter> tensors;
  for (size_t i = 0; i < runner.parameters().size(); ++i) {
    const ParameterInfo& parameter = runner.parameters()[i];
    if (IsResident(parameter)) tensors.push_back({static_cast<int>(i), parameter.name});
  }
  ASSIGN_OR_RETURN(std::vector<DistributedArray> arrays,
                   RestoreArrays(checkpoint, runner.executor(), tensors));
  State state{.seed = checkpoint.manifest().seed, .num_steps = checkpoint.manifest().step};
  state.arrays.resize(runner.parameters().size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    state.arrays[tensors[i].parameter] = std::move(arrays[i]);
  }
  return state;
}

}  // namespace minka
