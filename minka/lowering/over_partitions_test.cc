#include "minka/lowering/over_partitions.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/ir/hlo_proto.h"
#include "minka/ir/verifier.h"
#include "minka/sharding/reshard.h"

namespace minka {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(OverPartitions, GivesCollectivesChannelsAndPartitionIds) {
  const absl::StatusOr<Module> local = ParseHloText(R"(
HloModule local, input_output_alias={ {0}: (0, {}, may-alias) }

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT sum = f32[] add(a, b)
}

ENTRY main {
  x = f32[4,8] parameter(0)
  all = f32[4,8] all-reduce(x), to_apply=add, replica_groups={}
  part = f32[2,8] reduce-scatter(all), to_apply=add, replica_groups={{0,1},{2,3}}, dimensions={0}
  whole = f32[4,8] all-gather(part), replica_groups={{0,1},{2,3}}, dimensions={0}
  moved = f32[4,8] all-to-all(whole), replica_groups={{0,2},{1,3}}, dimensions={0}
  next = f32[4,8] collective-permute(moved), source_target_pairs={{0,1}}
  device = u32[] replica-id()
  ROOT results = (f32[4,8], u32[]) tuple(next, device)
}
)");
  ASSERT_TRUE(local.ok()) << local.status();
  const Module module = OverPartitions(*local, 4, Platform::kCpu);
  EXPECT_TRUE(Verify(module).ok()) << Verify(module);
  const std::string text = HloText(module);
  for (const char* written :
       {"replica_groups={{0,1,2,3}}, channel_id=1, use_global_device_ids=true", "reduce-scatter(",
        "channel_id=2, use_global_device_ids=true", "all-gather(",
        "channel_id=3, use_global_device_ids=true", "all-to-all(", "channel_id=4",
        "collective-permute(", "channel_id=5", "= u32[] partition-id()"}) {
    EXPECT_THAT(text, HasSubstr(written));
  }
  EXPECT_THAT(text, Not(HasSubstr("channel_id=4, use_global_device_ids")));
  EXPECT_THAT(text, Not(HasSubstr("replica-id()")));
  EXPECT_TRUE(module.aliases.empty());
}

TEST(OverPartitions, ReducesSeveralOperandsOneByOneOrAsOneArray) {
  const absl::StatusOr<Module> local = ParseHloText(R"(
HloModule local

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT sum = f32[] add(a, b)
}

ENTRY main {
  x = f32[4,8] parameter(0)
  y = f32[] parameter(1)
  z = f32[3] parameter(2)
  all = (f32[4,8], f32[], f32[3]) all-reduce(x, y, z), to_apply=add, replica_groups={{0,1},{2,3}}
  all.x = f32[4,8] get-tuple-element(all), index=0
  all.y = f32[] get-tuple-element(all), index=1
  all.z = f32[3] get-tuple-element(all), index=2
  ROOT results = (f32[4,8], f32[], f32[3]) tuple(all.x, all.y, all.z)
}
)");
  ASSERT_TRUE(local.ok()) << local.status();
  for (const Platform platform : {Platform::kCpu, Platform::kCuda}) {
    const Module module = OverPartitions(*local, 4, platform);
    EXPECT_TRUE(Verify(module).ok()) << Verify(module);
    const std::string text = HloText(module);
    if (SumsOperandsApart(platform)) {
      EXPECT_THAT(text, HasSubstr("f32[4,8] all-reduce("));
      EXPECT_THAT(text, HasSubstr("f32[] all-reduce("));
      EXPECT_THAT(text, HasSubstr("f32[3] all-reduce("));
      for (const char* channel : {"channel_id=1", "channel_id=2", "channel_id=3"}) {
        EXPECT_THAT(text, HasSubstr(channel));
      }
    } else {
      EXPECT_THAT(text, HasSubstr("f32[36] all-reduce("));
      EXPECT_THAT(text, HasSubstr("slice={[0:32]}"));
      EXPECT_THAT(text, HasSubstr("slice={[32:33]}"));
      EXPECT_THAT(text, HasSubstr("slice={[33:36]}"));
    }
    // The results are those of before.
    const Computation& entry = module.entry_computation();
    EXPECT_EQ(ToString(entry.shape(entry.results[0])), "f32[4,8]");
    EXPECT_EQ(ToString(entry.shape(entry.results[1])), "f32[]");
    EXPECT_EQ(ToString(entry.shape(entry.results[2])), "f32[3]");
  }
}

}  // namespace
}  // namespace minka
