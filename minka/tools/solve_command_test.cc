// Runs the real command: exit codes and messages are what a user sees.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <zlib.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "tests/support/temporary_folder.h"

namespace minka {
namespace {

constexpr const char* kExample = R"({"problem": {"name": "example",
  "nodes": {"intervals": [[30, 70], [40, 70], [50, 120], [110, 140], [110, 150]],
            "costs": [[15], [55, 65], [25, 45, 35], [85, 75], [95]],
            "usages": [[10], [25, 25], [15, 20, 15], [10, 10], [15]]},
  "edges": {"nodes": [[0, 1], [0, 2], [1, 3], [2, 4], [3, 4]],
            "costs": [[30, 40], [50, 10, 40], [90, 10, 20, 80], [60, 20, 30], [70, 60]]},
  "usage_limit": 50}})";

struct Outcome {
  int exit_code = 0;
  std::string out;
  std::string err;
};

std::string Slurp(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

class SolveCommandTest : public testing::Test {
 protected:
  std::string Path(const std::string& name) const { return TemporaryPath(name); }

  std::string Write(const std::string& name, const std::string& contents) const {
    std::ofstream(Path(name)) << contents;
    return Path(name);
  }

  Outcome Run(const std::string& arguments) const {
    const std::string command =
        fmt::format("{} solve {} > {} 2> {}", MINKA_BINARY, arguments, Path("out"), Path("err"));
    const int status = std::system(command.c_str());
    return {WEXITSTATUS(status), Slurp(Path("out")), Slurp(Path("err"))};
  }

  // The message for a problem in which `from` is replaced.
  std::string ErrorAfter(const std::string& from, const std::string& to) const {
    std::string text = kExample;
    text.replace(text.find(from), from.size(), to);
    const Outcome outcome = Run(Write("bad.json", text));
    EXPECT_EQ(outcome.exit_code, 1);
    const std::string prefix = fmt::format("minka: {}: ", Path("bad.json"));
    EXPECT_THAT(outcome.err, testing::StartsWith(prefix));
    return outcome.err.substr(std::min(outcome.err.size(), prefix.size()));
  }
};

TEST_F(SolveCommandTest, SolvesTheContestExample) {
  const std::string instance = Write("example.json", kExample);
  const Outcome plain = Run(instance);
  EXPECT_EQ(plain.exit_code, 0) << plain.err;
  EXPECT_THAT(plain.out, testing::HasSubstr("cost         445\nlower bound  445\n"));
  EXPECT_THAT(plain.out, testing::HasSubstr("stopped      optimal\n"));
  EXPECT_THAT(plain.out, testing::EndsWith("[0,0,2,1,0]\n"));
  const Outcome json = Run(fmt::format("--json --out {} {}", Path("solution.json"), instance));
  EXPECT_EQ(nlohmann::json::parse(json.out)["cost"], 445);
  EXPECT_EQ(nlohmann::json::parse(json.out)["status"], "optimal");
  EXPECT_EQ(Slurp(Path("solution.json")), "[0,0,2,1,0]\n");
}

TEST_F(SolveCommandTest, SaysWhatWaysDid) {
  // A ring, which reductions leave as it is.
  std::string costs, edges, tables;
  for (int node = 0; node < 6; ++node) {
    const char* const comma = node == 0 ? "" : ", ";
    costs += fmt::format("{}[{}, {}, {}]", comma, 3 + node, 5 + 2 * node % 7, 4);
    edges += fmt::format("{}[{}, {}], [{}, {}]", comma, node, (node + 1) % 6, node, (node + 2) % 6);
    tables += fmt::format("{}[0, 9, 8, 7, 0, 9, 8, 9, 0], [3, 0, 7, 1, 9, 0, 0, 8, 6]", comma);
  }
  const std::string instance = Write(
      "ring.json",
      fmt::format(R"({{"problem": {{"name": "ring", "nodes": {{"intervals": [[0, 0], [0, 0], [0, 0],
        [0, 0], [0, 0], [0, 0]], "costs": [{0}], "usages": [{0}]}}, "edges": {{"nodes": [{1}],
        "costs": [{2}]}}}}}})",
                  costs, edges, tables));
  const Outcome table = Run("--ways " + instance);
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_THAT(table.out, testing::HasSubstr("\ndecoding "));
  const auto ways = nlohmann::json::parse(Run("--json " + instance).out)["ways"];
  EXPECT_GT(ways["decoding"]["work"], 0) << ways;
  const Outcome without = Run("--json --without decoding sweeps -- " + instance);
  const auto left = nlohmann::json::parse(without.out);
  EXPECT_FALSE(left["ways"].contains("decoding")) << left;
  EXPECT_EQ(left["cost"], nlohmann::json::parse(Run("--json " + instance).out)["cost"]);
}

TEST_F(SolveCommandTest, ReadsStandardInputAndGzip) {
  const std::string instance = Write("example.json", kExample);
  EXPECT_EQ(Run(fmt::format("- < {}", instance)).exit_code, 0);
  const std::string zipped = Path("example.json.gz");
  gzFile file = gzopen(zipped.c_str(), "wb");
  gzputs(file, kExample);
  gzclose(file);
  EXPECT_EQ(Run(zipped).exit_code, 0);
  const std::string half = Slurp(zipped).substr(0, 100);
  const Outcome broken = Run(Write("broken.gz", half));
  EXPECT_EQ(broken.exit_code, 1);
  EXPECT_THAT(broken.err, testing::HasSubstr("broken gzip data after"));
}

TEST_F(SolveCommandTest, BadProblemsAreNamed) {
  EXPECT_EQ(ErrorAfter("{\"problem\"", "[1, 2"), "the file: expected an object at byte 0\n");
  EXPECT_EQ(ErrorAfter("\"costs\": [[15]", "\"prices\": [[15]"),
            "problem.nodes.costs is missing\n");
  EXPECT_EQ(ErrorAfter("[55, 65]", "[55, 65.5]"),
            "problem.nodes.costs[1]: only integers are allowed, at byte 147\n");
  EXPECT_EQ(ErrorAfter("[55, 65]", "[55, \"x\"]"),
            "problem.nodes.costs[1] is not an integer at byte 147\n");
  EXPECT_EQ(ErrorAfter("[55, 65]", "7"),
            "problem.nodes.costs[1]: expected a list of integers at byte 142\n");
  EXPECT_EQ(ErrorAfter("[55, 65]", "[55, -65]"),
            "problem.nodes.costs[1] has a negative cost: -65\n");
  EXPECT_EQ(ErrorAfter("[55, 65]", "[55]"), "problem.nodes.usages[1] has 2 entries for 1 costs\n");
  EXPECT_EQ(ErrorAfter("[40, 70]", "[40]"),
            "problem.nodes.intervals[1] has 1 entries, not a begin and an end\n");
  EXPECT_EQ(ErrorAfter("[40, 70], ", ""), "problem.nodes.intervals has 4 entries for 5 nodes\n");
  EXPECT_EQ(ErrorAfter("[25, 25]", "[25, -25]"),
            "problem.nodes.usages[1] has a negative usage: -25\n");
  EXPECT_EQ(ErrorAfter("[1, 3]", "[1, 7]"),
            "problem.edges.nodes[2] joins node 7, but there are 5 nodes\n");
  EXPECT_EQ(ErrorAfter("[1, 3]", "[3, 3]"), "problem.edges.nodes[2] joins node 3 to itself\n");
  EXPECT_EQ(ErrorAfter("[1, 3]", "[1, 3, 4]"),
            "problem.edges.nodes[2] joins 3 nodes; only edges of two nodes are supported\n");
  EXPECT_EQ(ErrorAfter("[30, 40]", "[30]"), "problem.edges.costs[0] has 1 entries, not 1 x 2\n");
  EXPECT_EQ(ErrorAfter("[30, 40]", "[30, 99999999999999999999]"),
            "problem.edges.costs[0]: a number is too large for 64 bits at byte 344\n");
  EXPECT_EQ(
      ErrorAfter("[85, 75]", "[900000000000000000, 999999999999999999], [900000000000000000]"),
      "problem.nodes.intervals has 5 entries for 6 nodes\n");
  EXPECT_EQ(ErrorAfter("\"usage_limit\": 50", "\"usage_limit\": -1"),
            "problem.usage_limit is negative: -1\n");
  EXPECT_EQ(ErrorAfter("}}", "}"), "the file: the file ends where ',' or '}' should be\n");
}

TEST_F(SolveCommandTest, EmptyAndInfeasibleProblemsSayWhy) {
  const Outcome empty =
      Run(Write("empty.json", R"({"problem": {"nodes": {"intervals": [], "costs": [], "usages": []},
      "edges": {"nodes": [], "costs": []}}})"));
  EXPECT_EQ(empty.exit_code, 1);
  EXPECT_THAT(empty.err, testing::HasSubstr(
                             "problem.nodes.costs is empty: a problem needs at least one node"));
  std::string text = kExample;
  text.replace(text.find("50}"), 2, "0");
  const Outcome none = Run(Write("zero.json", text));
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_EQ(none.err,
            "minka: example has no solution within its usage limit of 0 bytes: it is tightest at "
            "time 69; the smallest limit "
            "known to work is 50 bytes\n");
}

TEST_F(SolveCommandTest, BadFlagsAreNamed) {
  const std::string instance = Write("example.json", kExample);
  EXPECT_EQ(Run("--time-limit soon " + instance).err,
            "minka: --time-limit soon is not a time; write for example 60s, 500ms or 2m\n");
  EXPECT_EQ(Run("--json --out - " + instance).err,
            "minka: --json and --out - both want standard output; give --out a file\n");
  EXPECT_EQ(Run("/does/not/exist.json").err,
            "minka: cannot open /does/not/exist.json: No such file or directory\n");
  EXPECT_EQ(Run("--threads 0 " + instance).err, "minka: num_threads must be at least 1, not 0\n");
  EXPECT_EQ(Run("--out /does/not/exist " + instance).exit_code, 1);
  EXPECT_THAT(
      Run("--without luck " + instance).err,
      testing::StartsWith("minka: --without luck: there is no such way; there are sweeps, "));
}

}  // namespace
}  // namespace minka
