#include "minka/runtime/pjrt/gpu_target.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/status.h"

namespace minka::pjrt {
namespace {

using testing::HasSubstr;

TEST(GpuTarget, DescribesTheDevicesOfClusters) {
  const std::string h100 = *GpuTarget("h100-80gb");
  EXPECT_THAT(h100, HasSubstr("core_count: 132"));
  EXPECT_THAT(h100, HasSubstr("cuda_compute_capability { major: 9 minor: 0 feature_extension: "
                              "ACCELERATED_FEATURES }"));
  EXPECT_THAT(*GpuTarget("a100-40gb"), HasSubstr("cuda_compute_capability { major: 8 minor: 0 }"));
  EXPECT_EQ(Message(GpuTarget("v100-16gb").status()),
            "programs cannot be compiled for a v100-16gb that is not here, only for a100-40gb, "
            "a100-80gb, h100-80gb, h200-141gb, b200-180gb, rtx4090-24gb");
}

}  // namespace
}  // namespace minka::pjrt
