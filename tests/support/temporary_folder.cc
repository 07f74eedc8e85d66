#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

namespace minka {
namespace {

namespace fs = std::filesystem;

class TemporaryFolder {
 public:
  TemporaryFolder() : path_((fs::path(testing::TempDir()) / "minka_test_XXXXXX").string()) {
    if (::mkdtemp(path_.data()) != nullptr) return;
    std::perror(path_.c_str());
    std::abort();
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  // Not in processes forked from the one that made it.
  ~TemporaryFolder() {
    std::error_code ignored;
    if (::getpid() == maker_) fs::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }

 private:
  std::string path_;
  pid_t maker_ = ::getpid();
};

}  // namespace

std::string TemporaryPath(const std::string& name) {
  static const TemporaryFolder folder;
  return (fs::path(folder.path()) / name).string();
}

}  // namespace minka
