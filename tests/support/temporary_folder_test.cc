#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace minka {
namespace {

// Another process asks for the same file, finds its folder empty, and leaves nothing behind.
TEST(TemporaryPath, IsInAFolderOfOneProcessThatGoesWithIt) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  std::fflush(stdout);
  const pid_t other = ::fork();
  ASSERT_GE(other, 0);
  if (other == 0) {
    const std::string path = TemporaryPath("file");
    std::ofstream(path) << "contents";
    const bool written = ::write(ends[1], path.data(), path.size()) > 0;
    std::exit(written && std::filesystem::exists(path) ? EXIT_SUCCESS : EXIT_FAILURE);
  }
  ::close(ends[1]);
  int status = 0;
  ASSERT_EQ(::waitpid(other, &status, 0), other);
  EXPECT_EQ(status, 0);
  char text[4096];
  const ssize_t length = ::read(ends[0], text, sizeof(text));
  ::close(ends[0]);
  ASSERT_GT(length, 0);
  const std::filesystem::path of_other(std::string(text, length));

  EXPECT_FALSE(std::filesystem::exists(of_other.parent_path()));
  const std::filesystem::path own = TemporaryPath("file");
  EXPECT_NE(own, of_other);
  EXPECT_TRUE(std::filesystem::is_empty(own.parent_path()));
  EXPECT_EQ(TemporaryPath("file"), own);
}

}  // namespace
}  // namespace minka
