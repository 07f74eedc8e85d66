#include "minka/tensors/checkpoint_manifest.h"

#include <charconv>
#include <climits>
#include <optional>
#include <set>
#include <utility>

#include "minka/base/hash.h"
#include "minka/base/json.h"
#include "minka/base/status.h"
#include "nlohmann/json.hpp"

namespace minka {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "minka-checkpoint";
constexpr int64_t kSchemaVersion = 2;
constexpr const char* kChecksum = "checksum";

// Texts with bytes that are not UTF-8 (a file's name, say) are printed with a replacement.
std::string Printed(const Json& json) {
  return json.dump(1, ' ', false, Json::error_handler_t::replace);
}

// A field of an object that has the type; `where` names the object in the message.
absl::StatusOr<const Json*> Field(const Json& object, const char* name, Json::value_t type,
                                  std::string_view where) {
  const auto found = object.find(name);
  const bool unsigned_wanted = type == Json::value_t::number_unsigned;
  if (found == object.end() || found->type() != type) {
    return InvalidArgument("{} has no {} '{}'", where,
                           unsigned_wanted                 ? "number"
                           : type == Json::value_t::string ? "text"
                           : type == Json::value_t::array  ? "list"
                                                           : "object",
                           name);
  }
  return &*found;
}

absl::StatusOr<int64_t> Number(const Json& object, const char* name, std::string_view where) {
  ASSIGN_OR_RETURN(const Json* value, Field(object, name, Json::value_t::number_unsigned, where));
  const auto number = value->get<uint64_t>();
  if (number > INT64_MAX) return InvalidArgument("{}: '{}' is too large", where, name);
  return static_cast<int64_t>(number);
}

absl::StatusOr<std::string> Text(const Json& object, const char* name, std::string_view where) {
  ASSIGN_OR_RETURN(const Json* value, Field(object, name, Json::value_t::string, where));
  return value->get<std::string>();
}

absl::StatusOr<std::map<std::string, std::string>> Texts(const Json& object, const char* name) {
  ASSIGN_OR_RETURN(const Json* value, Field(object, name, Json::value_t::object, "the manifest"));
  std::map<std::string, std::string> texts;
  for (const auto& [key, text] : value->items()) {
    if (!text.is_string()) return InvalidArgument("'{}' has '{}', which is no text", name, key);
    texts[key] = text.get<std::string>();
  }
  return texts;
}

// "f32[8,4]"; nullopt: no shape of at most 2^63 bytes.
std::optional<Shape> ReadShape(const std::string& text) {
  const size_t open = text.find('[');
  if (open == std::string::npos || !text.ends_with(']')) return std::nullopt;
  const std::optional<ElementType> type = ParseType(text.substr(0, open));
  if (!type || ElementBytes(*type) == 0) return std::nullopt;
  Shape shape{*type, {}};
  __int128 num_bytes = ElementBytes(*type);
  const char* next = text.data() + open + 1;
  const char* const end = text.data() + text.size() - 1;
  while (next != end) {
    int64_t size = 0;
    const auto [stop, error] = std::from_chars(next, end, size);
    if (error != std::errc() || size < 0 || (stop != end && *stop != ',')) return std::nullopt;
    if (stop != end && stop + 1 == end) return std::nullopt;
    num_bytes *= size > 0 ? size : 1;
    if (num_bytes > INT64_MAX) return std::nullopt;
    shape.dims.push_back(size);
    next = stop == end ? end : stop + 1;
  }
  return shape;
}

// A file's name that cannot lead out of the folder.
bool IsPlainName(const std::string& name) {
  return !name.empty() && name.front() != '.' && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

absl::StatusOr<std::vector<CheckpointFile>> ReadFiles(const Json& document) {
  ASSIGN_OR_RETURN(const Json* list,
                   Field(document, "files", Json::value_t::array, "the manifest"));
  std::vector<CheckpointFile> files;
  std::set<std::string> names;
  for (const Json& entry : *list) {
    const std::string where = fmt::format("file {}", files.size());
    if (!entry.is_object()) return InvalidArgument("{} is not an object", where);
    CheckpointFile file;
    ASSIGN_OR_RETURN(file.name, Text(entry, "name", where));
    ASSIGN_OR_RETURN(file.num_bytes, Number(entry, "bytes", where));
    if (!IsPlainName(file.name) || !names.insert(file.name).second) {
      return InvalidArgument("{}: '{}' is no name of a file, or that of another", where, file.name);
    }
    files.push_back(std::move(file));
  }
  return files;
}

absl::StatusOr<std::vector<int64_t>> ReadGrid(const Json& entry, const Shape& shape,
                                              std::string_view where) {
  ASSIGN_OR_RETURN(const Json* list, Field(entry, "grid", Json::value_t::array, where));
  std::vector<int64_t> grid;
  for (const Json& parts : *list) {
    const bool is_number =
        parts.is_number_unsigned() && parts.get<uint64_t>() > 0 && parts.get<uint64_t>() <= INT_MAX;
    if (!is_number) return InvalidArgument("{}: {} is no number of tiles", where, parts.dump());
    grid.push_back(parts.get<int64_t>());
  }
  bool divides = grid.size() == shape.dims.size();
  for (size_t dim = 0; divides && dim < grid.size(); ++dim) {
    divides = shape.dims[dim] % grid[dim] == 0;
  }
  if (divides) return grid;
  return InvalidArgument("{}: the grid {} does not divide {}", where, list->dump(),
                         ToString(shape));
}

absl::StatusOr<std::vector<CheckpointTile>> ReadTiles(const Json& entry,
                                                      const std::vector<int64_t>& grid,
                                                      size_t num_files, std::string_view where) {
  ASSIGN_OR_RETURN(const Json* list, Field(entry, "tiles", Json::value_t::array, where));
  size_t missing = list->size();
  bool is_grid = true;
  for (const int64_t parts : grid) {
    is_grid = is_grid && missing % static_cast<size_t>(parts) == 0;
    missing /= static_cast<size_t>(parts);
  }
  if (!is_grid || missing != 1) {
    return InvalidArgument("{}: {} tiles do not make up its grid", where, list->size());
  }
  std::vector<CheckpointTile> tiles;
  for (const Json& json : *list) {
    if (!json.is_object()) return InvalidArgument("{}: a tile is not an object", where);
    ASSIGN_OR_RETURN(const int64_t file, Number(json, "file", where));
    if (file >= static_cast<int64_t>(num_files)) {
      return InvalidArgument("{} is in file {} of {}", where, file, num_files);
    }
    ASSIGN_OR_RETURN(std::string hash, Text(json, "hash", where));
    tiles.push_back({.file = static_cast<int>(file), .hash = std::move(hash)});
  }
  return tiles;
}

absl::StatusOr<std::vector<CheckpointTensor>> ReadTensorList(const Json& document,
                                                             size_t num_files) {
  ASSIGN_OR_RETURN(const Json* list,
                   Field(document, "tensors", Json::value_t::array, "the manifest"));
  std::vector<CheckpointTensor> tensors;
  std::set<std::string> names;
  for (const Json& entry : *list) {
    std::string where = fmt::format("tensor {}", tensors.size());
    if (!entry.is_object()) return InvalidArgument("{} is not an object", where);
    CheckpointTensor tensor;
    ASSIGN_OR_RETURN(tensor.name, Text(entry, "name", where));
    where = fmt::format("tensor '{}'", tensor.name);
    ASSIGN_OR_RETURN(const std::string shape_text, Text(entry, "shape", where));
    std::optional<Shape> shape = ReadShape(shape_text);
    if (!shape) return InvalidArgument("{}: '{}' is no shape", where, shape_text);
    tensor.shape = *std::move(shape);
    ASSIGN_OR_RETURN(tensor.grid, ReadGrid(entry, tensor.shape, where));
    ASSIGN_OR_RETURN(tensor.tiles, ReadTiles(entry, tensor.grid, num_files, where));
    if (!names.insert(tensor.name).second) return InvalidArgument("{} is listed twice", where);
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

absl::Status CheckHead(const Json& document) {
  ASSIGN_OR_RETURN(const std::string format, Text(document, "format", "the manifest"));
  if (format != kFormat) return InvalidArgument("the format is '{}', not '{}'", format, kFormat);
  ASSIGN_OR_RETURN(const int64_t version, Number(document, "schema_version", "the manifest"));
  if (version == kSchemaVersion) return absl::OkStatus();
  return InvalidArgument("schema_version {} is not {}, which this minka reads", version,
                         kSchemaVersion);
}

absl::Status CheckChecksum(Json document) {
  ASSIGN_OR_RETURN(const std::string checksum, Text(document, kChecksum, "the manifest"));
  document.erase(kChecksum);
  if (checksum == HashText(StableHash(Printed(document)))) return absl::OkStatus();
  return InvalidArgument("the checksum does not fit: the manifest was damaged or edited");
}

}  // namespace

Shape TileShape(const CheckpointTensor& tensor) {
  Shape tile = tensor.shape;
  for (int dim = 0; dim < tile.rank(); ++dim) tile.dims[dim] /= tensor.grid[dim];
  return tile;
}

Box TileBox(const CheckpointTensor& tensor, int tile) {
  Box box = BoxOf(TileShape(tensor));
  int64_t rest = tile;
  for (int dim = box.rank() - 1; dim >= 0; rest /= tensor.grid[dim--]) {
    const int64_t size = box.size(dim);
    box.begin[dim] = rest % tensor.grid[dim] * size;
    box.end[dim] = box.begin[dim] + size;
  }
  return box;
}

int TileNumber(const CheckpointTensor& tensor, const Box& box) {
  int64_t number = 0;
  for (int dim = 0; dim < box.rank(); ++dim) {
    const int64_t size = box.size(dim);
    number = number * tensor.grid[dim] + (size > 0 ? box.begin[dim] / size : 0);
  }
  return static_cast<int>(number);
}

std::string TileName(const CheckpointTensor& tensor, int tile) {
  return tensor.tiles.size() == 1 ? tensor.name : fmt::format("{}[{}]", tensor.name, tile);
}

std::string ManifestToJson(const CheckpointManifest& manifest) {
  Json json = {{"format", kFormat},
               {"schema_version", static_cast<uint64_t>(kSchemaVersion)},
               {"step", static_cast<uint64_t>(manifest.step)},
               {"seed", fmt::format("{}", manifest.seed)},
               {"run", manifest.run},
               {"model", manifest.model},
               {"options", manifest.options},
               {"data", manifest.data},
               {"files", Json::array()},
               {"tensors", Json::array()}};
  for (const CheckpointFile& file : manifest.files) {
    json["files"].push_back(
        {{"name", file.name}, {"bytes", static_cast<uint64_t>(file.num_bytes)}});
  }
  for (const CheckpointTensor& tensor : manifest.tensors) {
    Json tiles = Json::array();
    for (const CheckpointTile& tile : tensor.tiles) {
      tiles.push_back({{"file", static_cast<uint64_t>(tile.file)}, {"hash", tile.hash}});
    }
    json["tensors"].push_back(
        {{"name", tensor.name},
         {"shape", ToString(tensor.shape)},
         {"grid", std::vector<uint64_t>(tensor.grid.begin(), tensor.grid.end())},
         {"tiles", std::move(tiles)}});
  }
  // Read back, so that replaced bytes are part of what is summed up.
  json = Json::parse(Printed(json));
  json[kChecksum] = HashText(StableHash(Printed(json)));
  return Printed(json) + "\n";
}

absl::StatusOr<CheckpointManifest> ParseManifest(std::string_view json) {
  ASSIGN_OR_RETURN(const Json document, ParseJson(json));
  if (!document.is_object()) return InvalidArgument("the manifest is no JSON object");
  RETURN_IF_ERROR(CheckHead(document));
  CheckpointManifest manifest;
  ASSIGN_OR_RETURN(manifest.step, Number(document, "step", "the manifest"));
  ASSIGN_OR_RETURN(const std::string seed, Text(document, "seed", "the manifest"));
  const auto [end, error] = std::from_chars(seed.data(), seed.data() + seed.size(), manifest.seed);
  if (error != std::errc() || end != seed.data() + seed.size()) {
    return InvalidArgument("the seed '{}' is no number below 2^64", seed);
  }
  ASSIGN_OR_RETURN(manifest.run, Text(document, "run", "the manifest"));
  ASSIGN_OR_RETURN(manifest.model, Text(document, "model", "the manifest"));
  ASSIGN_OR_RETURN(manifest.options, Texts(document, "options"));
  ASSIGN_OR_RETURN(manifest.data, Texts(document, "data"));
  ASSIGN_OR_RETURN(manifest.files, ReadFiles(document));
  ASSIGN_OR_RETURN(manifest.tensors, ReadTensorList(document, manifest.files.size()));
  RETURN_IF_ERROR(CheckChecksum(document));
  return manifest;
}

}  // namespace minka
