// `minka report`: its page, in a browser.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string_view>

#include "command_test.h"
#include "nlohmann/json.hpp"

namespace minka {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kSmallGpt = "gpt-tiny --layers 2 --sequence 32 --global-batch 8";
constexpr const char* kPipeline =
    "--method pipeline --stages 2 --num-devices 2 --micro-batches 2 --cost-model roofline";

int CountOf(std::string_view text, std::string_view what) {
  int count = 0;
  for (size_t at = text.find(what); at != text.npos; at = text.find(what, at + 1)) ++count;
  return count;
}

class ReportCommandTest : public CommandTest {
 protected:
  // The page after its script has run.
  Outcome Browse(const std::string& page) const {
    const std::string command = fmt::format(
        "cd {0} && HOME={0} timeout 100 chromium --headless --no-sandbox --disable-gpu "
        "--enable-logging=stderr --virtual-time-budget=2000 --window-size=1366,900 --dump-dom "
        "file://{1} > dom.txt 2> browser.txt",
        Path(""), Path(page));
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, Slurp(Path("dom.txt")),
            Slurp(Path("browser.txt"))};
  }

  static bool HasBrowser() { return std::system("which chromium > /dev/null 2>&1") == 0; }
};

TEST_F(ReportCommandTest, APipelineIsDrawnWithWhatWasMeasured) {
  const Outcome run =
      Run(fmt::format("run {} {} --random-inputs 0 --trace trace.json", kSmallGpt, kPipeline));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  ASSERT_EQ(Run(fmt::format("plan {} {} --out plan.json", kSmallGpt, kPipeline)).exit_code, 0);
  const Outcome report = Run("report plan.json --trace trace.json");
  ASSERT_EQ(report.exit_code, 0) << report.err;
  EXPECT_THAT(report.out, HasSubstr("report.html"));
  if (!HasBrowser()) GTEST_SKIP() << "there is no chromium to look at the page with";

  const Outcome page = Browse("report.html");
  EXPECT_EQ(page.exit_code, 0) << page.err;
  EXPECT_THAT(page.err, Not(HasSubstr("CONSOLE")));
  EXPECT_THAT(page.out, HasSubstr("data-drawn=\"true\""));
  EXPECT_THAT(page.out, HasSubstr("<title>minka: gpt-tiny</title>"));
  EXPECT_EQ(CountOf(page.out, "class=\"device\""), 2);
  EXPECT_EQ(CountOf(page.out, "class=\"stage\""), 2);
  EXPECT_THAT(page.out, HasSubstr("id=\"memory\""));
  EXPECT_THAT(page.out, HasSubstr("mesh 1, measured"));
  int num_events = 0;
  const auto trace = nlohmann::json::parse(Slurp(Path("trace.json")));
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] == "X") ++num_events;
  }
  EXPECT_EQ(CountOf(page.out, "class=\"event\""), num_events);
}

TEST_F(ReportCommandTest, OneMeshIsDrawnOperationByOperation) {
  ASSERT_EQ(Run(fmt::format("plan {} --mesh data=2,model=2 --method zero3 --cost-model roofline "
                            "--out plan.json",
                            kSmallGpt))
                .exit_code,
            0);
  const Outcome report = Run("report plan.json --out page.html");
  ASSERT_EQ(report.exit_code, 0) << report.err;
  if (!HasBrowser()) GTEST_SKIP() << "there is no chromium to look at the page with";
  const Outcome page = Browse("page.html");
  EXPECT_EQ(page.exit_code, 0) << page.err;
  EXPECT_THAT(page.err, Not(HasSubstr("CONSOLE")));
  EXPECT_THAT(page.out, HasSubstr("data-drawn=\"true\""));
  EXPECT_EQ(CountOf(page.out, "class=\"device\""), 4);
  EXPECT_GT(CountOf(page.out, "class=\"event\""), 50);
  EXPECT_THAT(page.out, HasSubstr("all-gather of"));
  EXPECT_GT(CountOf(page.out, "class=\"tensor\""), 50);
  EXPECT_THAT(page.out, HasSubstr("split along model"));
}

TEST_F(ReportCommandTest, WhatCannotBeShownIsSaid) {
  ASSERT_EQ(
      Run(fmt::format("plan {} {} --out plan.json --trace predicted.json", kSmallGpt, kPipeline))
          .exit_code,
      0);
  EXPECT_THAT(Run("report plan.json --trace predicted.json").err,
              HasSubstr("predicted.json: nothing in the trace was measured"));
  EXPECT_THAT(Run("report plan.json --trace plan.json").err, HasSubstr("this is no trace"));
  Write("odd.json",
        R"({"traceEvents":[{"ph":"X","pid":1,"tid":0,"name":"a","cat":"run","ts":-1}]})");
  EXPECT_THAT(Run("report plan.json --trace odd.json").err, HasSubstr("\"ts\": -1"));
  const Outcome missing = Run("report none.json");
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_THAT(missing.err, HasSubstr("none.json"));
  EXPECT_FALSE(std::filesystem::exists(Path("report.html")));
}

}  // namespace
}  // namespace minka
