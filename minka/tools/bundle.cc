#include "minka/tools/bundle.h"

#include <numeric>
#include <string_view>

#include "fmt/format.h"
#include "minka/base/check.h"
#include "minka/base/file.h"
#include "minka/base/gzip.h"

namespace minka {
namespace {

constexpr size_t kBlockBytes = 512;
// Two empty blocks end an archive, which is a multiple of twenty long.
constexpr size_t kRecordBytes = 20 * kBlockBytes;

// The header of POSIX.1-1988's ustar, fields at their offsets; numbers are octal.
std::string Header(const std::string& name, size_t num_bytes) {
  constexpr size_t kMostNameBytes = 100, kMostBytes = size_t{1} << 33;
  constexpr size_t kChecksumAt = 148, kChecksumBytes = 8;
  MINKA_CHECK(name.size() < kMostNameBytes && num_bytes < kMostBytes, "{}", name);
  std::string header(kBlockBytes, '\0');
  const auto put = [&](size_t offset, std::string_view field) {
    header.replace(offset, field.size(), field);
  };
  put(0, name);
  put(100, "000644 ");  // mode
  put(108, "000000 ");  // user
  put(116, "000000 ");  // group
  put(124, fmt::format("{:011o} ", num_bytes));
  put(136, fmt::format("{:011o} ", 0));  // time
  put(156, "0");                         // a plain file
  put(257, std::string_view("ustar\00000", 8));
  // Which is counted with blanks in its place.
  put(kChecksumAt, std::string(kChecksumBytes, ' '));
  const unsigned checksum = std::accumulate(
      header.begin(), header.end(), 0U,
      [](unsigned sum, char byte) { return sum + static_cast<unsigned char>(byte); });
  put(kChecksumAt, fmt::format("{:06o}", checksum) + '\0');
  return header;
}

void FillUpTo(size_t multiple, std::string& bytes) {
  bytes.resize((bytes.size() + multiple - 1) / multiple * multiple);
}

std::string Tar(const std::map<std::string, std::string>& files) {
  std::string archive;
  for (const auto& [name, contents] : files) {
    archive += Header(name, contents.size()) + contents;
    FillUpTo(kBlockBytes, archive);
  }
  archive.resize(archive.size() + 2 * kBlockBytes);
  FillUpTo(kRecordBytes, archive);
  return archive;
}

}  // namespace

absl::Status WriteBundle(const std::string& path, const std::map<std::string, std::string>& files) {
  return WriteFile(path, Gzip(Tar(files)));
}

}  // namespace minka
