// Named arrays in files of the safetensors format: an 8-byte little-endian header length, a JSON
// header with type, shape and byte range per tensor, then the bytes.
// https://huggingface.co/docs/safetensors
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "minka/ir/shape.h"

namespace minka {

struct HostTensor {
  Shape shape;
  std::string bytes;  // dense, row-major, little endian; pred takes one byte, 0 or 1
};

struct TensorFile {
  std::map<std::string, HostTensor> tensors;  // by name
  std::map<std::string, std::string> metadata;
};

// A tensor's place in a file.
struct StoredTensor {
  Shape shape;
  uint64_t begin = 0, end = 0;  // of its bytes, from the end of the header
};

// The whole of a file's contents, checked: a header that lies about sizes, overlaps, leaves holes,
// or is cut short is an InvalidArgument that names the tensor. Unimplemented for the format's 4-
// and 6-bit types.
absl::StatusOr<TensorFile> ParseTensors(std::string_view contents);

// A file, or standard input for "-". Every tensor is copied once.
absl::StatusOr<TensorFile> ReadTensors(const std::string& path);

// Writes a file as a whole or not at all ("-": standard output), with the bytes that the format's
// own library writes. InvalidArgument for types that the format lacks (c128, sub-byte types), for
// bytes that do not fit their shape, and for names that are not UTF-8 or reserved.
absl::Status WriteTensors(const std::string& path, const TensorFile& file);

// Writes a new file of which one tensor at a time is in memory: `bytes` is asked for each, in the
// order of the file. Returns its size once it is on the disk. Errors are those of WriteTensors and
// of `bytes`, and leave no file; Unavailable where it exists already.
absl::StatusOr<int64_t> WriteTensorsInTurn(
    const std::string& path, const std::map<std::string, Shape>& shapes,
    const std::function<absl::StatusOr<std::string>(const std::string& name)>& bytes);

// Reads single tensors of a file.
class TensorReader {
 public:
  // Reads and checks the header; errors as those of ReadTensors.
  static absl::StatusOr<TensorReader> Open(const std::string& path);

  // Null: the file has no such tensor.
  const Shape* Find(const std::string& name) const;
  // Precondition: there is one.
  absl::StatusOr<std::string> Read(const std::string& name) const;

 private:
  std::string path_;
  uint64_t data_begin_ = 0;                      // in the file
  std::map<std::string, StoredTensor> tensors_;  // by name
};

}  // namespace minka
