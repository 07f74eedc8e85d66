#include "minka/runtime/mesh/local_devices.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "minka/base/parallel.h"
#include "minka/ir/builder.h"
#include "minka/ir/hlo_proto.h"
#include "minka/runtime/pjrt/executable.h"
#include "minka/runtime/pjrt/platform.h"
#include "tests/support/must.h"

namespace minka {
namespace {

constexpr WindowDim kWindow = {.size = 3, .padding_low = 1, .padding_high = 1};

// Convolutions, products and collectives by turns. What follows a product goes on in the pool.
std::string ConvolutionsAndCollectives(int num_devices) {
  ModuleBuilder module("convolutions_and_collectives");
  ComputationBuilder b = module.Entry();
  Value x = b.Parameter({ElementType::kF32, {4, 16, 16, 64}}, "x");
  const Value w = b.Parameter({ElementType::kF32, {3, 3, 64, 64}}, "w");
  const Value v = b.Parameter({ElementType::kF32, {64, 64}}, "v");
  const ConvolutionAttributes convolution = {.window = {kWindow, kWindow},
                                             .input_feature = 3,
                                             .kernel_input_feature = 2,
                                             .kernel_output_feature = 3,
                                             .output_feature = 3,
                                             .input_spatial = {1, 2},
                                             .kernel_spatial = {0, 1},
                                             .output_spatial = {1, 2}};
  std::vector<std::vector<int64_t>> pairs, all(1);
  for (int device = 0; device < num_devices; ++device) {
    if (device % 2 == 0) pairs.push_back({device, device + 1});
    all[0].push_back(device);
  }
  for (int i = 0; i < 6; ++i) {
    const Value convolved = b.Convolution(x, w, convolution);
    const Value operands[] = {
        b.Dot(convolved, v, {.lhs_contracting = {3}, .rhs_contracting = {0}})};
    x = b.AllReduce(operands, Opcode::kMaximum, i % 2 == 0 ? pairs : all)[0];
  }
  b.SetResults({x});
  return ExportHlo(Must(std::move(module).Finish()));
}

TEST(KeptEnvironment, IsAsItWas) {
  setenv("XLA_FLAGS", "--xla_dump_to=there", 1);
  unsetenv("NPROC");
  {
    const KeptEnvironment environment;
    pjrt::PrepareEnvironment(Platform::kCpu);
    EXPECT_STRNE(std::getenv("XLA_FLAGS"), "--xla_dump_to=there");
    setenv("NPROC", "7", 1);
  }
  EXPECT_STREQ(std::getenv("XLA_FLAGS"), "--xla_dump_to=there");
  EXPECT_EQ(std::getenv("NPROC"), nullptr);
  unsetenv("XLA_FLAGS");
}

TEST(CpuThreadPoolTest, OperationsAreDividedOnlyWhereCoresAreLeft) {
  const int num_cores = NumHardwareThreads();
  EXPECT_EQ(pjrt::CpuThreadPoolFor(num_cores).num_threads, num_cores);
  EXPECT_FALSE(pjrt::CpuThreadPoolFor(num_cores).divides_operations);
  EXPECT_EQ(pjrt::CpuThreadPoolFor(4 * num_cores).num_threads, 4 * num_cores);
  EXPECT_FALSE(pjrt::CpuThreadPoolFor(4 * num_cores).divides_operations);
  if (num_cores == 1) return;
  EXPECT_GE(pjrt::CpuThreadPoolFor(1).num_threads, num_cores);
  EXPECT_TRUE(pjrt::CpuThreadPoolFor(1).divides_operations);
}

TEST(LocalDevicesTest, APluginOfAnotherPlatformIsNamed) {
  const std::string path = Must(pjrt::FindPlugin({.kind = Platform::kCpu}));
  const absl::Status status =
      OpenLocalDevices({.num_devices = 1, .plugin_path = path, .kind = Platform::kCuda}).status();
  EXPECT_EQ(Message(status), path + " is a plugin for cpu; devices of cuda are asked for");
  EXPECT_FALSE(OpenLocalDevices({.num_devices = 1, .first_device = -1}).ok());
}

// Members of collectives hold as many threads of the pool as there are devices, less one.
TEST(LocalDevicesTest, ThreadsAreEnoughForConvolutionsBetweenCollectives) {
  const int num_devices = std::min(4 * NumHardwareThreads(), kMaxLocalDevices);
  unsetenv("NPROC");
  ASSERT_TRUE(OpenLocalDevices({.num_devices = 1}).ok());  // whose threads are not enough
  const LocalDevices devices = Must(OpenLocalDevices({.num_devices = num_devices}));
  ASSERT_STREQ(std::getenv("NPROC"),
               std::to_string(pjrt::CpuThreadPoolFor(num_devices).num_threads).c_str());
  const pjrt::Executable program = Must(pjrt::Executable::Compile(
      devices.client, ConvolutionsAndCollectives(num_devices), {.num_replicas = num_devices}));
  std::vector<std::vector<pjrt::Buffer>> arguments(num_devices);
  std::vector<std::vector<pjrt::Buffer*>> pointers(num_devices);
  for (int device = 0; device < num_devices; ++device) {
    for (int i = 0; i < program.num_parameters(); ++i) {
      const Shape& shape = program.parameter_shape(i);
      arguments[device].push_back(
          Must(devices.client.CopyFromHost(device, shape, *FilledLiteral(shape, 1.0 / 64).bytes)));
    }
    for (pjrt::Buffer& buffer : arguments[device]) pointers[device].push_back(&buffer);
  }
  // Several at once: launches wait for no one.
  std::vector<pjrt::Launch> launches;
  for (int i = 0; i < 20; ++i) launches.push_back(Must(program.Execute(pointers)));
  for (pjrt::Launch& launch : launches) EXPECT_TRUE(launch.Await().ok());
}

}  // namespace
}  // namespace minka
