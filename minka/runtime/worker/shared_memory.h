// Memory of two processes on one machine: a file without a name that both have mapped.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "minka/base/file_descriptor.h"

namespace minka {

// One end of it; move-only.
class SharedMemory {
 public:
  // Zeros, which take none of the machine's memory before they are touched. No end can change the
  // size. `name`: what it is, for messages and for who looks into /proc.
  static absl::StatusOr<SharedMemory> Create(std::string name, size_t size);
  // The other end: takes the file over. InvalidArgument where it cannot be mapped.
  static absl::StatusOr<SharedMemory> Map(FileDescriptor file, std::string name);
  // The file that a process's starter has handed down, by the environment variable that has its
  // number; none where there is no such variable. To be called once.
  static absl::StatusOr<FileDescriptor> HandedDown(const char* variable);

  SharedMemory() = default;  // none: to be assigned to
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  // To be handed down; closed by exec otherwise.
  int file() const { return file_.number(); }
  char* data() const { return data_; }  // null: none
  size_t size() const { return size_; }

 private:
  FileDescriptor file_;
  char* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace minka
