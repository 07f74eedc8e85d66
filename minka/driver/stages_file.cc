#include "minka/driver/stages_file.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fmt/ranges.h"
#include "minka/base/json.h"
#include "minka/base/status.h"

namespace minka {
namespace {

using Json = nlohmann::ordered_json;

// More would be a mistake, and is no number of devices or layers that is ever planned.
constexpr int64_t kMostOfAnything = 4096;

constexpr const char* kStageFields[] = {"layers",
                                        "submesh",
                                        "mesh",
                                        "pins",
                                        "no_all_gather",
                                        "no_all_to_all",
                                        "batch_axis",
                                        "no_sequence_split",
                                        "no_replicated_parameters",
                                        "prefer_reduce_scatter",
                                        "combine_gathers_bytes"};

// One stage's object, by its place for messages.
class StageReader {
 public:
  StageReader(const Json& json, size_t number)
      : json_(json), what_(fmt::format("stages[{}]", number)) {}

  absl::Status CheckFields() const {
    if (!json_.is_object()) return InvalidArgument("{} is no object", what_);
    for (const auto& [key, value] : json_.items()) {
      if (std::ranges::find(kStageFields, key) != std::end(kStageFields)) continue;
      return InvalidArgument("{} has a field {}; {} are known", what_, key,
                             fmt::join(kStageFields, ", "));
    }
    return absl::OkStatus();
  }

  // How many layers it has, which begin with number `first`.
  absl::StatusOr<int> NumLayers(int first) const {
    const Json* const layers = Find("layers");
    if (layers != nullptr && layers->is_number_integer() && layers->get<int64_t>() >= 1 &&
        layers->get<int64_t>() <= kMostOfAnything) {
      return layers->get<int>();
    }
    if (layers == nullptr || !layers->is_array() || layers->empty()) {
      return InvalidArgument("{}.layers is neither a number of layers nor a list of them", what_);
    }
    for (size_t i = 0; i < layers->size(); ++i) {
      const int64_t expected = first + static_cast<int64_t>(i);
      if ((*layers)[i].is_number_integer() && (*layers)[i].get<int64_t>() == expected) continue;
      return InvalidArgument("{}.layers[{}] is not {}; stages have consecutive layers, from 0 on",
                             what_, i, expected);
    }
    return static_cast<int>(layers->size());
  }

  // Of its mesh; nullopt: it is not named.
  absl::StatusOr<std::optional<Mesh>> GivenMesh() const {
    const Json* const mesh = Find("mesh");
    if (mesh == nullptr) return std::nullopt;
    if (!mesh->is_string()) return InvalidArgument("{}.mesh is no text", what_);
    absl::StatusOr<Mesh> parsed = Mesh::Parse(mesh->get<std::string>());
    if (!parsed.ok()) return WithContext(parsed.status(), what_ + ".mesh");
    return *std::move(parsed);
  }

  absl::StatusOr<std::optional<int>> NumDevices() const {
    const Json* const submesh = Find("submesh");
    if (submesh == nullptr) return std::nullopt;
    if (!submesh->is_string()) return InvalidArgument("{}.submesh is no text", what_);
    const absl::StatusOr<int> num_devices = ParseSubmesh(submesh->get<std::string>());
    if (!num_devices.ok()) return WithContext(num_devices.status(), what_ + ".submesh");
    return *num_devices;
  }

  absl::StatusOr<StageSearchOptions> SearchOptions(const SearchLimits& limits) const {
    StageSearchOptions options{.limits = limits};
    RETURN_IF_ERROR(ReadPins(options.pins));
    RETURN_IF_ERROR(ReadFlag("no_all_gather", options.limits->no_all_gather));
    RETURN_IF_ERROR(ReadFlag("no_all_to_all", options.limits->no_all_to_all));
    RETURN_IF_ERROR(ReadFlag("no_sequence_split", options.limits->no_sequence_split));
    RETURN_IF_ERROR(ReadFlag("no_replicated_parameters", options.limits->no_replicated_parameters));
    RETURN_IF_ERROR(ReadFlag("prefer_reduce_scatter", options.limits->prefer_reduce_scatter));
    if (const Json* const axis = Find("batch_axis")) {
      if (!axis->is_string()) return InvalidArgument("{}.batch_axis is no text", what_);
      options.limits->batch_axis = axis->get<std::string>();
    }
    if (const Json* const bytes = Find("combine_gathers_bytes")) {
      if (!bytes->is_number_unsigned()) {
        return InvalidArgument("{}.combine_gathers_bytes is no number of bytes", what_);
      }
      options.limits->combine_gathers_bytes = bytes->get<int64_t>();
    }
    return options;
  }

  const std::string& what() const { return what_; }

 private:
  const Json* Find(const char* field) const {
    const auto found = json_.find(field);
    return found == json_.end() ? nullptr : &*found;
  }

  absl::Status ReadFlag(const char* field, bool& out) const {
    const Json* const value = Find(field);
    if (value == nullptr) return absl::OkStatus();
    if (!value->is_boolean()) {
      return InvalidArgument("{}.{} is neither true nor false", what_, field);
    }
    out = value->get<bool>();
    return absl::OkStatus();
  }

  absl::Status ReadPins(std::vector<std::string>& out) const {
    const Json* const pins = Find("pins");
    if (pins == nullptr) return absl::OkStatus();
    const bool is_list = pins->is_array() && std::ranges::all_of(*pins, [](const Json& pin) {
                           return pin.is_string();
                         });
    if (!is_list) return InvalidArgument("{}.pins is no list of texts", what_);
    out = pins->get<std::vector<std::string>>();
    return absl::OkStatus();
  }

  const Json& json_;
  const std::string what_;
};

// On what each stage that says so runs.
class MeshesOfStages {
 public:
  explicit MeshesOfStages(PipelineOptions& options) : options_(options) {}

  absl::Status Add(const StageReader& stage) {
    ASSIGN_OR_RETURN(const std::optional<Mesh> mesh, stage.GivenMesh());
    ASSIGN_OR_RETURN(const std::optional<int> num_devices, stage.NumDevices());
    if (mesh && num_devices && mesh->num_devices() != *num_devices) {
      return InvalidArgument("{}: mesh {} has {} devices, its submesh {}", stage.what(),
                             mesh->ToString(), mesh->num_devices(), *num_devices);
    }
    if (!mesh && !num_devices) {
      is_over_ = true;
      return absl::OkStatus();
    }
    if (is_over_) {
      return InvalidArgument(
          "{} names its mesh, and an earlier stage does not; the first stages name theirs",
          stage.what());
    }
    if (mesh) {
      options_.meshes.push_back(*mesh);
    } else {
      options_.submeshes.push_back(*num_devices);
    }
    if (options_.meshes.empty() || options_.submeshes.empty()) return absl::OkStatus();
    return InvalidArgument("{}: name the mesh of every stage, or of none and its submesh instead",
                           stage.what());
  }

 private:
  PipelineOptions& options_;
  bool is_over_ = false;
};

}  // namespace

absl::StatusOr<int> ParseSubmesh(std::string_view text) {
  const char* const end = text.end();
  int hosts = 0, devices = 0;
  const auto [times, error] = std::from_chars(text.begin(), end, hosts);
  if (error == std::errc() && times != end && *times == 'x') {
    const auto [rest, second_error] = std::from_chars(times + 1, end, devices);
    const bool is_whole = second_error == std::errc() && rest == end;
    if (is_whole && hosts >= 1 && devices >= 1 && hosts <= kMostOfAnything &&
        devices <= kMostOfAnything) {
      return hosts * devices;
    }
  }
  return InvalidArgument("{} is no hosts x devices per host, such as 1x2", text);
}

absl::StatusOr<PipelineOptions> WithStages(PipelineOptions options, std::string_view json,
                                           const SearchLimits& limits) {
  ASSIGN_OR_RETURN(const Json parsed, ParseJson(json));
  if (!parsed.is_object() || parsed.size() != 1 || !parsed.contains("stages") ||
      !parsed["stages"].is_array() || parsed["stages"].empty()) {
    return InvalidArgument("it is no object with a list 'stages' and nothing else");
  }
  const Json& stages = parsed["stages"];
  MeshesOfStages meshes(options);
  for (size_t i = 0; i < stages.size(); ++i) {
    const StageReader stage(stages[i], i);
    RETURN_IF_ERROR(stage.CheckFields());
    const auto first = static_cast<int>(options.stage_of_layer.size());
    ASSIGN_OR_RETURN(const int num_layers, stage.NumLayers(first));
    options.stage_of_layer.insert(options.stage_of_layer.end(), num_layers, static_cast<int>(i));
    RETURN_IF_ERROR(meshes.Add(stage));
    ASSIGN_OR_RETURN(StageSearchOptions search, stage.SearchOptions(limits));
    options.stage_search.push_back(std::move(search));
  }
  return options;
}

}  // namespace minka
