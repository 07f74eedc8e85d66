// Runs the small programs of Alpa's tests (OSDI'22) on the devices and compares them with one
// device.
#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/status.h"
#include "minka/driver/inputs.h"
#include "minka/driver/parallelize.h"
#include "minka/oracle/oracle.h"
#include "minka/runtime/mesh/local_devices.h"
#include "tests/acceptance/small_programs.h"
#include "tests/support/temporary_folder.h"

namespace minka {
namespace {

const LocalDevices& Devices() {
  static const LocalDevices devices = OpenLocalDevices({.num_devices = 4}).value();
  return devices;
}

absl::StatusOr<Parallelized> ParallelizeSmall(const SmallProgram& program) {
  ASSIGN_OR_RETURN(const Mesh mesh, Mesh::Parse(program.how.mesh));
  return Parallelize(program.step, Cluster::Local(static_cast<int>(mesh.num_devices())),
                     program.how, {.cost_model = program.costs, .devices = Devices()});
}

class RunSmallPrograms : public testing::TestWithParam<SmallProgram> {};

TEST_P(RunSmallPrograms, AsOneDevice) {
  const SmallProgram& program = GetParam();
  auto run = ParallelizeSmall(program);
  ASSERT_TRUE(run.ok()) << Message(run.status());
  const StepInputs inputs = [&](int step) { return RandomInputs(program.step, 7 + step); };
  constexpr int kSteps = 2;
  const auto one_device = RunOnOneDevice(program.step, Devices().client, inputs, kSteps);
  ASSERT_TRUE(one_device.ok()) << Message(one_device.status());
  const auto report =
      CompareWithOneDevice(program.step, run->runner(), inputs, kSteps, *one_device);
  ASSERT_TRUE(report.ok()) << Message(report.status());
  EXPECT_EQ(report->Failures(), "");
}

INSTANTIATE_TEST_SUITE_P(Alpa, RunSmallPrograms, testing::ValuesIn(SmallPrograms()),
                         [](const auto& info) { return info.param.name; });

TEST(FastCall, TheExecutorReturnsAnArrayOnAllDevices) {
  const SmallProgram program = SmallProgramNamed("fast_call");
  auto run = ParallelizeSmall(program);
  ASSERT_TRUE(run.ok()) << Message(run.status());
  const auto values = RandomInputs(program.step, 7);
  ASSERT_TRUE(values.ok()) << Message(values.status());
  StepExecutor& executor = run->runner().executor();
  auto x = executor.Put(0, (*values)[0]), y = executor.Put(1, (*values)[1]);
  ASSERT_TRUE(x.ok() && y.ok());
  const std::vector<DistributedArray*> arguments = {&*x, &*y};
  const auto results = executor.Run(arguments);
  ASSERT_TRUE(results.ok()) << Message(results.status());
  ASSERT_EQ(results->size(), 1u);
  const std::vector<pjrt::Buffer>& parts = LocalArrayOf(results->front()).parts;
  ASSERT_EQ(parts.size(), 4u);
  for (const pjrt::Buffer& part : parts) {
    EXPECT_EQ(ToString(part.shape()), "f32[3,2]");
  }
  EXPECT_EQ(results->front().ToHost()->shape,
            program.step.module.entry_computation().shape({2, 0}));

  const std::string folder = TemporaryPath("fast_call");
  ASSERT_TRUE(run->Dump(folder).ok());
  EXPECT_TRUE(std::filesystem::exists(folder + "/05-optimized.hlo.txt"));
}

}  // namespace
}  // namespace minka
