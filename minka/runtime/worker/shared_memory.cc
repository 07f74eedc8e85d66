#include "minka/runtime/worker/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <system_error>
#include <utility>

#include "minka/base/status.h"

namespace minka {

absl::StatusOr<SharedMemory> SharedMemory::Create(std::string name, size_t size) {
  FileDescriptor file(::memfd_create(("minka " + name).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  // Sealed: a process that cuts the file would end the other one by SIGBUS.
  if (file.number() < 0 || ::ftruncate(file.number(), static_cast<off_t>(size)) != 0 ||
      ::fcntl(file.number(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return Unavailable("cannot make shared memory: {}", std::strerror(errno));
  }
  return Map(std::move(file), std::move(name));
}

absl::StatusOr<SharedMemory> SharedMemory::Map(FileDescriptor file, std::string name) {
  struct stat about = {};
  if (::fstat(file.number(), &about) != 0) {
    return InvalidArgument("the {} cannot be read: {}", name, std::strerror(errno));
  }
  SharedMemory memory;
  memory.size_ = static_cast<size_t>(about.st_size);
  void* const address =
      ::mmap(nullptr, memory.size_, PROT_READ | PROT_WRITE, MAP_SHARED, file.number(), 0);
  if (address == MAP_FAILED) {
    return InvalidArgument("the {} cannot be mapped: {}", name, std::strerror(errno));
  }
  memory.data_ = static_cast<char*>(address);
  memory.file_ = std::move(file);
  return memory;
}

absl::StatusOr<FileDescriptor> SharedMemory::HandedDown(const char* variable) {
  const char* const value = std::getenv(variable);
  if (value == nullptr) return FileDescriptor();
  const std::string_view text = value;
  int number = -1;
  const auto [end, error] = std::from_chars(text.begin(), text.end(), number);
  if (error != std::errc() || end != text.end() || number < 0) {
    return InvalidArgument("{}={} names no file", variable, text);
  }
  ::fcntl(number, F_SETFD, FD_CLOEXEC);
  return FileDescriptor(number);
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : file_(std::move(other.file_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

}  // namespace minka
