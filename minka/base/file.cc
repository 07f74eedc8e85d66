#include "minka/base/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

#include "minka/base/status.h"

namespace minka {
namespace {

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, FileCloser>;

absl::StatusOr<std::string> ReadAll(std::FILE* file, const std::string& path) {
  std::string contents;
  char block[1 << 16];
  for (size_t n; (n = std::fread(block, 1, sizeof(block), file)) > 0;) contents.append(block, n);
  if (std::ferror(file)) return Unavailable("cannot read {}: {}", path, std::strerror(errno));
  return contents;
}

bool WriteAll(std::FILE* file, std::span<const std::string_view> pieces) {
  for (const std::string_view piece : pieces)
    if (std::fwrite(piece.data(), 1, piece.size(), file) != piece.size()) return false;
  return std::fflush(file) == 0;
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  if (path == "-") return ReadAll(stdin, "standard input");
  std::error_code error;
  if (std::filesystem::is_directory(path, error))
    return InvalidArgument("{} is a directory, not a file", path);
  File file(std::fopen(path.c_str(), "rb"));
  if (!file) return NotFound("cannot open {}: {}", path, std::strerror(errno));
  return ReadAll(file.get(), path);
}

absl::Status WriteFile(const std::string& path, std::string_view contents) {
  return WriteFile(path, std::span(&contents, 1));
}

absl::Status WriteFile(const std::string& path, std::span<const std::string_view> pieces) {
  if (path == "-") {
    if (!WriteAll(stdout, pieces))
      return Unavailable("cannot write standard output: {}", std::strerror(errno));
    return absl::OkStatus();
  }
  const std::string temporary = fmt::format("{}.{}.partial", path, ::getpid());
  {
    File file(std::fopen(temporary.c_str(), "wb"));
    if (!file) return Unavailable("cannot write {}: {}", path, std::strerror(errno));
    if (!WriteAll(file.get(), pieces)) {
      const int why = errno;
      std::remove(temporary.c_str());
      return Unavailable("cannot write {}: {}", path, std::strerror(why));
    }
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    const int why = errno;
    std::remove(temporary.c_str());
    return Unavailable("cannot write {}: {}", path, std::strerror(why));
  }
  return absl::OkStatus();
}

absl::Status SyncToDisk(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const bool synced = file >= 0 && ::fsync(file) == 0;
  const int why = errno;
  if (file >= 0) ::close(file);
  if (synced) return absl::OkStatus();
  return Unavailable("cannot bring {} to the disk: {}", path, std::strerror(why));
}

}  // namespace minka
