// Runs the real command and keeps what a user would see.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "fmt/format.h"
#include "tests/support/temporary_folder.h"

namespace minka {

struct Outcome {
  int exit_code = 0;  // -1: the command died of a signal
  std::string out;
  std::string err;
};

inline std::string Slurp(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Each test has an empty folder of its own, in which the commands run.
class CommandTest : public testing::Test {
 protected:
  CommandTest() {
    const auto* const test = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = TemporaryPath(fmt::format("{}_{}", test->test_suite_name(), test->name()));
    std::filesystem::remove_all(folder_);  // of an earlier repetition
    std::filesystem::create_directories(folder_);
  }

  std::string Path(const std::string& name) const { return (folder_ / name).string(); }

  void Write(const std::string& name, const std::string& contents) const {
    std::ofstream(Path(name), std::ios::binary) << contents;
  }

  // `environment`: assignments in front of the command.
  Outcome Run(const std::string& arguments, const std::string& environment = "") const {
    const std::string command = fmt::format("cd {} && {} {} {} > out.txt 2> err.txt",
                                            folder_.string(), environment, MINKA_BINARY, arguments);
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, Slurp(Path("out.txt")),
            Slurp(Path("err.txt"))};
  }

 private:
  std::filesystem::path folder_;
};

// y = x . w with f32 arrays and the contraction 16.
inline constexpr const char* kDotModule = R"(HloModule dot

ENTRY main {
  x = f32[8,16] parameter(0)
  w = f32[16,32] parameter(1)
  ROOT y = f32[8,32] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
)";

}  // namespace minka
