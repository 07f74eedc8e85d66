// Named arrays in files of the safetensors format: an 8-byte little-endian header length, a JSON
// header with type, shape and byte range per tensor, then the bytes.
// https://huggingface.co/docs/safetensors
#pragma once

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

}  // namespace minka
