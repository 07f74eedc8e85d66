#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "minka/report/chrome_trace.h"
#include "minka/report/comparison.h"
#include "minka/report/format.h"
#include "minka/report/table.h"

namespace minka {
namespace {

TEST(ChromeTrace, WhatWasMeasuredIsReadBackFromItsFirstMoment) {
  const Timeline predicted = {
      .meshes = {{{{TaskKind::kForward, 0, 0}, 0, 5}}, {{{TaskKind::kForward, 1, 0}, 5, 9}}},
      .step_time = 9};
  const std::vector<std::vector<TracedEvent>> measured = {
      {{"run stage 0 forward", "run", 100, 106}}, {{"receive %1", "receive", 106, 107}}};
  const auto read = MeasuredEvents(ChromeTrace(predicted, measured));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(*read, testing::ElementsAre(
                         testing::ElementsAre(TracedEvent{"run stage 0 forward", "run", 0, 6}),
                         testing::ElementsAre(TracedEvent{"receive %1", "receive", 6, 7})));
  EXPECT_FALSE(MeasuredEvents(ChromeTrace(predicted)).ok());
  EXPECT_FALSE(MeasuredEvents("[]").ok());
  EXPECT_FALSE(MeasuredEvents(R"({"traceEvents":[{"ph":"X","pid":1,"tid":1000000000,"name":"a",)"
                              R"("cat":"run","ts":0,"dur":1}]})")
                   .ok());
}

TEST(Format, ThreeDigitsAndAUnit) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(999), "999 B");
  EXPECT_EQ(FormatBytes(1000), "1000 B");
  EXPECT_EQ(FormatBytes(1024), "1.00 KiB");
  EXPECT_EQ(FormatBytes(int64_t{2} << 30), "2.00 GiB");
  EXPECT_EQ(FormatTime(0), "0 us");
  EXPECT_EQ(FormatTime(0.5), "0.50 us");
  EXPECT_EQ(FormatTime(12345), "12.3 ms");
  EXPECT_EQ(FormatTime(999.7), "1.00 ms");
  EXPECT_EQ(FormatTime(123e6), "123 s");
  EXPECT_EQ(FormatPercent(0.00123), "0.12 %");
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(1'493'000), "1.49 M");
}

TEST(Format, LayerNumbersAreTakenOutOfNames) {
  EXPECT_EQ(FoldLayers("params/layer_12/mlp/kernel").pattern, "params/layer_*/mlp/kernel");
  EXPECT_EQ(FoldLayers("params/layer_12/mlp/kernel").numbers, "12");
  EXPECT_EQ(FoldLayers("stack_1/3/w").pattern, "stack_*/*/w");
  EXPECT_EQ(FoldLayers("stack_1/3/w").numbers, "1,3");
  EXPECT_EQ(FoldLayers("transpose(jvp(h_3))/dot").pattern, "transpose(jvp(h_*))/dot");
  EXPECT_EQ(FoldLayers("transpose(jvp(h_3))/dot").numbers, "3");
  EXPECT_EQ(FoldLayers("params/w_4[3]").pattern, "params/w_4[*]");
  EXPECT_EQ(FoldLayers("params/w_4[3]").numbers, "3");
  EXPECT_EQ(FoldLayers("state['params']['w']").pattern, "state['params']['w']");
  EXPECT_EQ(FoldLayers("s[0].mu['layer_2']['Dense_1']['w']").pattern,
            "s[0].mu['layer_*']['Dense_*']['w']");
  EXPECT_EQ(FoldLayers("s[0].mu['layer_2']['Dense_1']['w']").numbers, "2,1");
  EXPECT_EQ(FoldLayers("conv3x3/w").pattern, "conv3x3/w");
  EXPECT_EQ(FoldLayers("").pattern, "");
}

TEST(Format, RunsOfRecomputedLayers) {
  using enum RematPolicy;
  EXPECT_EQ(FormatRemat({kAll, kAll, kNone, kDots}), "layers 0-1 all, layer 3 dots, of 4");
  EXPECT_EQ(FormatRemat({kNone, kNone}), "nothing");
}

TEST(Format, NamesOfSeveralLayers) {
  const std::vector<std::string> all = {"0,0", "0,1", "0,2", "0,3", "0,10", "1,0", "1,1"};
  const std::vector<std::string> some = {"0,10", "0,2", "0,3", "0,0"};
  EXPECT_EQ(NameOfLayers("opt/*/h_*/w", some, some), "opt/0/h_*/w");
  EXPECT_EQ(NameOfLayers("opt/*/h_*/w", some, all), "opt/0/h_{0,2-3,10}/w");
  const std::vector<std::string> square = {"0,0", "0,1", "1,0", "1,1"};
  EXPECT_EQ(NameOfLayers("opt/*/h_*/w", square, all), "opt/*/h_{0-1}/w");
  // Not every number of the one with every number of the other.
  const std::vector<std::string> corner = {"0,0", "0,1", "1,0"};
  EXPECT_EQ(NameOfLayers("opt/*/h_*/w", corner, all), "opt/*/h_*/w");
}

TEST(Table, ColumnsAreAsWideAsTheirWidestCell) {
  Table table({{"a"}, {"number", Align::kRight}, {"c"}});
  table.Add({"long name", "1", ""});
  table.Add({"x", "1234567", "end"});
  EXPECT_EQ(table.ToString(),
            "a           number  c\n"
            "long name        1\n"
            "x          1234567  end\n");
}

TEST(Comparison, SaysWhatDoesNotFitAndWhatHasNoPlan) {
  Plan plan;
  plan.step_time_us = 1500;
  plan.peak_memory_bytes = 3 << 20;
  plan.state_bytes_per_device = 1 << 20;
  plan.gap = 0.001;
  plan.collectives = {{"all-gather", 1}, {"all-reduce", 2}};
  plan.collective_bytes = {{"all-gather", 1024}, {"all-reduce", 1024}};
  EXPECT_EQ(
      ComparisonTable({{.method = "data", .mesh = "data=8", .plan = &plan, .fits = false},
                       {.method = "shard", .mesh = "x=8", .plan = &plan, .chosen = true},
                       {.method = "shard", .mesh = "x=2,y=4", .why_not = "too small"}}),
      "   method  mesh     step time  peak memory     state  collectives     gap  fits\n"
      "   data    data=8     1.50 ms     3.00 MiB  1.00 MiB  3, 2.00 KiB  0.10 %  no\n"
      "*  shard   x=8        1.50 ms     3.00 MiB  1.00 MiB  3, 2.00 KiB  0.10 %  yes\n"
      "   shard   x=2,y=4          -            -         -            -       -  no: too small\n");
}

}  // namespace
}  // namespace minka
