#include "minka/tensors/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "minka/base/file.h"
#include "minka/base/json.h"
#include "minka/base/status.h"
#include "nlohmann/json.hpp"

namespace minka {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kLengthBytes = 8;
// The limit of the format's own library.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr const char* kMetadataKey = "__metadata__";

struct TypeCode {
  std::string_view code;
  ElementType type;
};

// In the order of the format's library, which stores wide types first: byte ranges stay aligned.
constexpr TypeCode kTypeCodes[] = {
    {"BOOL", ElementType::kPred},
    {"U8", ElementType::kU8},
    {"I8", ElementType::kS8},
    {"F8_E5M2", ElementType::kF8E5M2},
    {"F8_E4M3", ElementType::kF8E4M3FN},
    {"F8_E5M2FNUZ", ElementType::kF8E5M2FNUZ},
    {"F8_E4M3FNUZ", ElementType::kF8E4M3FNUZ},
    {"F8_E8M0", ElementType::kF8E8M0FNU},
    {"I16", ElementType::kS16},
    {"U16", ElementType::kU16},
    {"F16", ElementType::kF16},
    {"BF16", ElementType::kBF16},
    {"I32", ElementType::kS32},
    {"U32", ElementType::kU32},
    {"F32", ElementType::kF32},
    {"C64", ElementType::kC64},
    {"F64", ElementType::kF64},
    {"I64", ElementType::kS64},
    {"U64", ElementType::kU64},
};

absl::StatusOr<ElementType> TypeOfCode(const std::string& code) {
  const auto* found = std::ranges::find(kTypeCodes, code, &TypeCode::code);
  if (found != std::end(kTypeCodes)) return found->type;
  return Unimplemented("type '{}' is not supported", code);
}

// Position in kTypeCodes; nullopt: the format has no such type.
std::optional<int> TypeOrder(ElementType type) {
  const auto* found = std::ranges::find(kTypeCodes, type, &TypeCode::type);
  if (found == std::end(kTypeCodes)) return std::nullopt;
  return static_cast<int>(found - std::begin(kTypeCodes));
}

struct Entry : StoredTensor {
  std::string name;
};

struct Header {
  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;
};

absl::StatusOr<std::vector<uint64_t>> Numbers(const Json& entry, const char* key) {
  const auto list = entry.find(key);
  if (list == entry.end() || !list->is_array()) return InvalidArgument("no list '{}'", key);
  std::vector<uint64_t> numbers;
  for (const Json& number : *list) {
    if (!number.is_number_unsigned() || number.get<uint64_t>() > INT64_MAX)
      return InvalidArgument("'{}' has {}, which is no size", key, number.dump());
    numbers.push_back(number.get<uint64_t>());
  }
  return numbers;
}

// Bytes of a dense array; nullopt where they do not fit 63 bits.
std::optional<int64_t> NumBytes(const Shape& shape) {
  int64_t bytes = ElementBytes(shape.type);
  bool empty = false;
  for (const int64_t dim : shape.dims) {
    empty |= dim == 0;
    if (dim != 0 && __builtin_mul_overflow(bytes, dim, &bytes)) return std::nullopt;
  }
  return empty ? 0 : bytes;
}

absl::StatusOr<Entry> ParseEntry(const std::string& name, const Json& json) {
  if (!json.is_object()) return InvalidArgument("its description is not an object");
  const auto code = json.find("dtype");
  if (code == json.end() || !code->is_string()) return InvalidArgument("no text 'dtype'");
  Entry entry;
  entry.name = name;
  ASSIGN_OR_RETURN(entry.shape.type, TypeOfCode(code->get<std::string>()));
  ASSIGN_OR_RETURN(const std::vector<uint64_t> dims, Numbers(json, "shape"));
  entry.shape.dims.assign(dims.begin(), dims.end());
  ASSIGN_OR_RETURN(const std::vector<uint64_t> range, Numbers(json, "data_offsets"));
  if (range.size() != 2 || range[0] > range[1])
    return InvalidArgument("'data_offsets' is not a range [begin, end]");
  entry.begin = range[0];
  entry.end = range[1];
  const std::optional<int64_t> bytes = NumBytes(entry.shape);
  if (!bytes) return InvalidArgument("a shape of more than 2^63 bytes");
  if (static_cast<uint64_t>(*bytes) != entry.end - entry.begin)
    return InvalidArgument("{} takes {} bytes, 'data_offsets' gives it {}", ToString(entry.shape),
                           *bytes, entry.end - entry.begin);
  return entry;
}

absl::StatusOr<std::map<std::string, std::string>> ParseMetadata(const Json& json) {
  std::map<std::string, std::string> metadata;
  if (!json.is_object()) return InvalidArgument("{} is not an object", kMetadataKey);
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string())
      return InvalidArgument("{} has '{}', which is no text", kMetadataKey, key);
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

absl::StatusOr<Header> ParseHeader(std::string_view text) {
  const absl::StatusOr<Json> json = ParseJson(text);
  if (!json.ok()) return WithContext(json.status(), "header");
  if (!json->is_object()) return InvalidArgument("the header is not an object");
  Header header;
  for (const auto& [name, description] : json->items()) {
    if (name == kMetadataKey) {
      ASSIGN_OR_RETURN(header.metadata, ParseMetadata(description));
      continue;
    }
    absl::StatusOr<Entry> entry = ParseEntry(name, description);
    if (!entry.ok()) return WithContext(entry.status(), fmt::format("tensor '{}'", name));
    header.entries.push_back(*std::move(entry));
  }
  return header;
}

// Every byte behind the header belongs to exactly one tensor.
absl::Status CheckRanges(std::vector<Entry>& entries, uint64_t data_bytes) {
  std::ranges::sort(entries, [](const Entry& a, const Entry& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  uint64_t next = 0;
  for (const Entry& entry : entries) {
    if (entry.end > data_bytes)
      return InvalidArgument(
          "tensor '{}' ends at byte {}, the file has {} behind its header: it is cut short",
          entry.name, entry.end, data_bytes);
    if (entry.begin != next)
      return InvalidArgument("tensor '{}' begins at byte {}, the tensor before it ends at {}",
                             entry.name, entry.begin, next);
    next = entry.end;
  }
  if (next != data_bytes)
    return InvalidArgument("{} bytes behind the last tensor", data_bytes - next);
  return absl::OkStatus();
}

absl::Status CheckPredicates(const std::string& name, std::string_view bytes) {
  const auto bad = std::ranges::find_if(bytes, [](char byte) { return byte != 0 && byte != 1; });
  if (bad == bytes.end()) return absl::OkStatus();
  return InvalidArgument("tensor '{}': element {} is {}, BOOL is 0 or 1", name, bad - bytes.begin(),
                         static_cast<int>(static_cast<uint8_t>(*bad)));
}

uint64_t HeaderLength(std::string_view contents) {
  uint64_t length = 0;
  for (int i = kLengthBytes - 1; i >= 0; --i)
    length = length << 8 | static_cast<uint8_t>(contents[i]);
  return length;
}

// A file's contents in the address space.
class MappedFile {
 public:
  static absl::StatusOr<MappedFile> Open(const std::string& path) {
    std::error_code error;
    if (std::filesystem::is_directory(path, error))
      return InvalidArgument("{} is a directory, not a file", path);
    const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return NotFound("cannot open {}: {}", path, std::strerror(errno));
    MappedFile file;
    struct stat status = {};
    fstat(descriptor, &status);
    file.size_ = static_cast<size_t>(status.st_size);
    if (file.size_ > 0)
      file.data_ = mmap(nullptr, file.size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
    const int why = errno;
    close(descriptor);
    if (file.data_ == MAP_FAILED)
      return Unavailable("cannot read {}: {}", path, std::strerror(why));
    return file;
  }
  MappedFile(MappedFile&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile() {
    if (data_ != nullptr && data_ != MAP_FAILED) munmap(data_, size_);
  }

  std::string_view contents() const { return {static_cast<const char*>(data_), size_}; }

 private:
  MappedFile() = default;

  void* data_ = nullptr;
  size_t size_ = 0;
};

struct Stored {
  const std::string* name;
  const Shape* shape;
  int type_order;
};

absl::StatusOr<std::vector<Stored>> StorageOrder(const std::map<std::string, Shape>& shapes) {
  std::vector<Stored> stored;
  for (const auto& [name, shape] : shapes) {
    const std::optional<int> order = TypeOrder(shape.type);
    if (!order)
      return InvalidArgument("tensor '{}': safetensors files have no type {}", name,
                             TypeName(shape.type));
    if (name == kMetadataKey) return InvalidArgument("'{}' cannot be a tensor's name", name);
    stored.push_back({&name, &shape, *order});
  }
  // Stable: the map has them by name already.
  std::ranges::stable_sort(stored, std::greater(), &Stored::type_order);
  return stored;
}

absl::Status CheckSize(const Stored& tensor, const std::string& bytes) {
  if (static_cast<int64_t>(bytes.size()) == tensor.shape->num_bytes()) return absl::OkStatus();
  return InvalidArgument("tensor '{}': {} takes {} bytes, not {}", *tensor.name,
                         ToString(*tensor.shape), tensor.shape->num_bytes(), bytes.size());
}

// With its length before it.
absl::StatusOr<std::string> HeaderText(const std::vector<Stored>& stored,
                                       const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header[kMetadataKey] = metadata;
  uint64_t offset = 0;
  for (const Stored& entry : stored) {
    const uint64_t end = offset + static_cast<uint64_t>(entry.shape->num_bytes());
    header[*entry.name] = {{"dtype", std::string(kTypeCodes[entry.type_order].code)},
                           {"shape", entry.shape->dims},
                           {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text(kLengthBytes, '\0');
  try {
    text += header.dump();
  } catch (const Json::type_error& error) {
    return InvalidArgument("a tensor's name or metadata is not UTF-8: {}", error.what());
  }
  // The data begins aligned.
  text.resize((text.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');
  for (uint64_t i = 0; i < kLengthBytes; ++i)
    text[i] = static_cast<char>((text.size() - kLengthBytes) >> (8 * i) & 0xff);
  return text;
}

absl::StatusOr<uint64_t> CheckedHeaderLength(std::string_view contents, uint64_t num_bytes) {
  if (num_bytes < kLengthBytes)
    return InvalidArgument("{} bytes are no safetensors file", num_bytes);
  const uint64_t header_bytes = HeaderLength(contents);
  if (header_bytes > kMaxHeaderBytes)
    return InvalidArgument("a header of {} bytes; the format allows {}", header_bytes,
                           kMaxHeaderBytes);
  if (header_bytes > num_bytes - kLengthBytes)
    return InvalidArgument("a header of {} bytes in a file of {}: it is cut short", header_bytes,
                           num_bytes);
  return header_bytes;
}

// So many bytes of a file from an offset on.
absl::StatusOr<std::string> ReadRange(const std::string& path, uint64_t begin, uint64_t num_bytes) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes(num_bytes, '\0');
  file.seekg(static_cast<std::streamoff>(begin));
  if (file.read(bytes.data(), static_cast<std::streamsize>(num_bytes))) return bytes;
  return Unavailable("cannot read {}: {}", path,
                     file.eof() ? "it became shorter" : std::strerror(errno));
}

absl::Status WriteInTurn(
    const std::string& path, std::FILE* file, std::string_view header,
    const std::vector<Stored>& stored,
    const std::function<absl::StatusOr<std::string>(const std::string& name)>& bytes) {
  const auto write = [&](std::string_view piece) {
    return std::fwrite(piece.data(), 1, piece.size(), file) == piece.size();
  };
  bool is_written = write(header);
  for (const Stored& tensor : stored) {
    if (!is_written) break;
    ASSIGN_OR_RETURN(const std::string contents, bytes(*tensor.name));
    RETURN_IF_ERROR(CheckSize(tensor, contents));
    is_written = write(contents);
  }
  if (is_written && std::fflush(file) == 0) return absl::OkStatus();
  return Unavailable("cannot write {}: {}", path, std::strerror(errno));
}

}  // namespace

absl::StatusOr<TensorFile> ParseTensors(std::string_view contents) {
  ASSIGN_OR_RETURN(const uint64_t header_bytes, CheckedHeaderLength(contents, contents.size()));
  ASSIGN_OR_RETURN(Header header, ParseHeader(contents.substr(kLengthBytes, header_bytes)));
  const std::string_view data = contents.substr(kLengthBytes + header_bytes);
  RETURN_IF_ERROR(CheckRanges(header.entries, data.size()));
  TensorFile file{.metadata = std::move(header.metadata)};
  for (Entry& entry : header.entries) {
    const std::string_view bytes = data.substr(entry.begin, entry.end - entry.begin);
    if (entry.shape.type == ElementType::kPred) RETURN_IF_ERROR(CheckPredicates(entry.name, bytes));
    file.tensors[entry.name] = {.shape = std::move(entry.shape), .bytes = std::string(bytes)};
  }
  return file;
}

absl::StatusOr<TensorFile> ReadTensors(const std::string& path) {
  absl::StatusOr<TensorFile> file;
  if (path == "-") {
    ASSIGN_OR_RETURN(const std::string contents, ReadFile(path));
    file = ParseTensors(contents);
  } else {
    ASSIGN_OR_RETURN(const MappedFile mapped, MappedFile::Open(path));
    file = ParseTensors(mapped.contents());
  }
  if (!file.ok()) return WithContext(file.status(), path == "-" ? "standard input" : path);
  return file;
}

absl::Status WriteTensors(const std::string& path, const TensorFile& file) {
  std::map<std::string, Shape> shapes;
  for (const auto& [name, tensor] : file.tensors) shapes[name] = tensor.shape;
  ASSIGN_OR_RETURN(const std::vector<Stored> stored, StorageOrder(shapes));
  ASSIGN_OR_RETURN(const std::string header, HeaderText(stored, file.metadata));
  std::vector<std::string_view> pieces = {header};
  for (const Stored& entry : stored) {
    pieces.push_back(file.tensors.at(*entry.name).bytes);
    RETURN_IF_ERROR(CheckSize(entry, file.tensors.at(*entry.name).bytes));
  }
  return WriteFile(path, pieces);
}

absl::StatusOr<int64_t> WriteTensorsInTurn(
    const std::string& path, const std::map<std::string, Shape>& shapes,
    const std::function<absl::StatusOr<std::string>(const std::string& name)>& bytes) {
  ASSIGN_OR_RETURN(const std::vector<Stored> stored, StorageOrder(shapes));
  ASSIGN_OR_RETURN(const std::string header, HeaderText(stored, {}));
  std::FILE* const file = std::fopen(path.c_str(), "wbxe");
  if (file == nullptr) return Unavailable("cannot write {}: {}", path, std::strerror(errno));
  absl::Status status = WriteInTurn(path, file, header, stored, bytes);
  if (status.ok() && ::fsync(::fileno(file)) != 0) {
    status = Unavailable("cannot bring {} to the disk: {}", path, std::strerror(errno));
  }
  if (std::fclose(file) != 0) {
    status.Update(Unavailable("cannot write {}: {}", path, std::strerror(errno)));
  }
  if (!status.ok()) {
    std::remove(path.c_str());
    return status;
  }
  auto num_bytes = static_cast<int64_t>(header.size());
  for (const Stored& tensor : stored) num_bytes += tensor.shape->num_bytes();
  return num_bytes;
}

absl::StatusOr<TensorReader> TensorReader::Open(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error))
    return InvalidArgument("{} is a directory, not a file", path);
  const uint64_t num_bytes = std::filesystem::file_size(path, error);
  if (error) return NotFound("cannot open {}: {}", path, error.message());
  TensorReader reader;
  reader.path_ = path;
  ASSIGN_OR_RETURN(const std::string length, ReadRange(path, 0, std::min(num_bytes, kLengthBytes)));
  const absl::StatusOr<uint64_t> header_bytes = CheckedHeaderLength(length, num_bytes);
  if (!header_bytes.ok()) return WithContext(header_bytes.status(), path);
  ASSIGN_OR_RETURN(const std::string text, ReadRange(path, kLengthBytes, *header_bytes));
  absl::StatusOr<Header> header = ParseHeader(text);
  if (!header.ok()) return WithContext(header.status(), path);
  reader.data_begin_ = kLengthBytes + *header_bytes;
  RETURN_IF_ERROR(WithContext(CheckRanges(header->entries, num_bytes - reader.data_begin_), path));
  for (Entry& entry : header->entries) reader.tensors_[entry.name] = std::move(entry);
  return reader;
}

const Shape* TensorReader::Find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second.shape;
}

absl::StatusOr<std::string> TensorReader::Read(const std::string& name) const {
  const StoredTensor& tensor = tensors_.at(name);
  ASSIGN_OR_RETURN(std::string bytes,
                   ReadRange(path_, data_begin_ + tensor.begin, tensor.end - tensor.begin));
  if (tensor.shape.type == ElementType::kPred) {
    RETURN_IF_ERROR(WithContext(CheckPredicates(name, bytes), path_));
  }
  return bytes;
}

}  // namespace minka
