#include "minka/runtime/pjrt/memory_meter.h"

#include "gtest/gtest.h"

namespace minka::pjrt {
namespace {

TEST(MemoryMeter, PeakCountsTemporariesOnlyWhileTheLaunchRuns) {
  MemoryMeter meter(2);
  meter.AddBuffer(1, 100);
  meter.AddLaunch(1, {.output_bytes = 50, .temp_bytes = 1000});
  EXPECT_EQ(meter.live_bytes(1), 150);
  EXPECT_EQ(meter.peak_bytes(1), 1150);
  meter.AddBuffer(1, 200);
  EXPECT_EQ(meter.peak_bytes(1), 1150);
  EXPECT_EQ(meter.peak_bytes(0), 0);
}

TEST(MemoryMeter, AResultInADonatedArgumentCountsOnce) {
  MemoryMeter meter(1);
  meter.AddBuffer(0, 100);
  meter.AddLaunch(
      0, {.output_bytes = 100, .alias_bytes = 100, .donated_bytes = 100, .temp_bytes = 10});
  EXPECT_EQ(meter.peak_bytes(0), 110);
  EXPECT_EQ(meter.live_bytes(0), 100);
}

TEST(MemoryMeter, ADonatedArgumentThatNoResultReusesIsHeldUntilTheEnd) {
  MemoryMeter meter(1);
  meter.AddBuffer(0, 100);
  meter.AddLaunch(0, {.output_bytes = 40, .donated_bytes = 100});
  EXPECT_EQ(meter.peak_bytes(0), 140);
  EXPECT_EQ(meter.live_bytes(0), 40);
}

TEST(MemoryMeter, ResetPeakStartsFromWhatIsAlive) {
  MemoryMeter meter(1);
  meter.AddBuffer(0, 100);
  meter.AddLaunch(0, {.temp_bytes = 1000});
  meter.RemoveBuffer(0, 60);
  meter.ResetPeak();
  EXPECT_EQ(meter.peak_bytes(0), 40);
}

}  // namespace
}  // namespace minka::pjrt
