#include "minka/cluster/cluster.h"

#include "gtest/gtest.h"
#include "minka/base/file.h"
#include "minka/base/status.h"

namespace minka {
namespace {

TEST(Cluster, PresetsRoundTripThroughJson) {
  const Cluster cluster = *Cluster::Preset("p4d.24xlarge:8");
  EXPECT_EQ(cluster.num_devices(), 64);
  EXPECT_LT(cluster.device.half_efficiency, 1);
  EXPECT_EQ(cluster.device.num_multiprocessors, 108);
  EXPECT_EQ(Cluster::FromJson(cluster.ToJson())->ToJson(), cluster.ToJson());
}

TEST(Cluster, UnknownPresetNamesTheKnown) {
  EXPECT_EQ(Message(Cluster::Preset("p3.8xlarge:2").status()),
            "unknown cluster \"p3.8xlarge:2\", did you mean p3.16xlarge? known: p3.16xlarge, "
            "p4d.24xlarge, p4de.24xlarge, p5.48xlarge, p5en.48xlarge, p6-b200.48xlarge, dgx-1v, "
            "dgx-h100, "
            "dgx-h200, dgx-b200, 1080ti, 4090, tpu-v4, tpu-v5e, tpu-v5p, tpu-v6e; with "
            "\":HOSTS\" for several hosts, \":HOSTSxDEVICES\" for some devices of each, \":2x4\" "
            "and the like for the sizes of a torus; or a JSON file");
  EXPECT_EQ(Message(Cluster::Preset("p4d.24xlarge:x").status()),
            "cluster \"p4d.24xlarge:x\": \"\" is no number of hosts");
}

TEST(Cluster, PartsOfHosts) {
  const Cluster cluster = *Cluster::Preset("dgx-h200:2x4");
  EXPECT_EQ(cluster.num_hosts, 2);
  EXPECT_EQ(cluster.devices_per_host, 4);
  EXPECT_EQ(cluster.host_network_bytes_per_us,
            Cluster::Preset("dgx-h200")->host_network_bytes_per_us);
  EXPECT_EQ(Message(Cluster::Preset("4090:1x9").status()),
            "cluster \"4090:1x9\": a host of 4090 has 8 devices, not 9");
  EXPECT_EQ(Message(Cluster::Preset("4090:1x").status()),
            "cluster \"4090:1x\": \"\" is no number of devices of a host");
  EXPECT_EQ(Message(Cluster::Preset("4090:1x-2").status()),
            "cluster \"4090:1x-2\": \"-2\" is no number of devices of a host");
}

TEST(Cluster, PairsOfDevicesMayHaveFewerLinks) {
  const Cluster cluster = *Cluster::Preset("dgx-1v:2");
  EXPECT_FALSE(cluster.has_equal_links());
  const double one_link = cluster.intra_host.bytes_per_us / 6;
  EXPECT_EQ(cluster.BytesPerUsBetween(0, 1), one_link);
  EXPECT_EQ(cluster.BytesPerUsBetween(11, 8), 2 * one_link);  // 3 and 0 of the second host
  EXPECT_LT(cluster.BytesPerUsBetween(0, 7), one_link);       // through the host
  for (int from = 0; from < 8; ++from) {
    double linked = 0;
    for (int to = 0; to < 8; ++to) {
      const double rate = from == to ? 0 : cluster.BytesPerUsBetween(from, to);
      linked += rate < one_link ? 0 : rate;
    }
    EXPECT_DOUBLE_EQ(linked, cluster.intra_host.bytes_per_us) << from;
  }
  EXPECT_EQ(Cluster::FromJson(cluster.ToJson())->pair_bytes_per_us, cluster.pair_bytes_per_us);
  EXPECT_EQ(Cluster::Preset("dgx-1v:2x4")->pair_bytes_per_us.back().size(), 4U);
}

TEST(Cluster, PairsThatContradictAreRefused) {
  const auto message = [](std::vector<std::vector<double>> pairs) {
    Cluster cluster = Cluster::Local(2);
    cluster.pair_bytes_per_us = std::move(pairs);
    return Message(Cluster::FromJson(cluster.ToJson()).status());
  };
  EXPECT_EQ(message({{0, 5}, {5, 0}}), "");
  EXPECT_EQ(message({{0, 5}}), "cluster: pair_bytes_per_us does not have 2 rows of 2 devices");
  EXPECT_EQ(message({{0, 5}, {4, 0}}),
            "cluster: pair_bytes_per_us[1][0] is 4 and [0][1] 5, not the same above 0");
  EXPECT_EQ(message({{0, -5}, {-5, 0}}),
            "cluster: pair_bytes_per_us[1][0] is -5 and [0][1] -5, not the same above 0");
  Cluster torus = *Cluster::Preset("tpu-v5e");
  torus.pair_bytes_per_us.assign(8, std::vector<double>(8, 1));
  EXPECT_EQ(Message(Cluster::FromJson(torus.ToJson()).status()),
            "cluster: the devices of a torus have no pair_bytes_per_us");
}

TEST(Cluster, ToriHaveTheSizesSaid) {
  const Cluster cluster = *Cluster::Preset("tpu-v5p:4x4x8");
  EXPECT_EQ(cluster.num_hosts, 1);
  EXPECT_EQ(cluster.num_devices(), 128);
  EXPECT_FALSE(cluster.has_equal_links());
  const absl::StatusOr<Cluster> read = Cluster::FromJson(cluster.ToJson());
  ASSERT_TRUE(read.ok()) << Message(read.status());
  EXPECT_EQ(read->torus.sizes, (std::vector<int>{4, 4, 8}));
  EXPECT_EQ(read->torus.wraps_at, 4);
  EXPECT_EQ(
      Message(Cluster::Preset("tpu-v5p:4x8").status()),
      "cluster \"tpu-v5p:4x8\": tpu-v5p is a torus of 3 dimensions, so \":\" and 3 sizes with x "
      "between them follow its name");
  EXPECT_EQ(Message(Cluster::Preset("tpu-v5e:4x0").status()),
            "cluster \"tpu-v5e:4x0\": \"0\" is no number of devices along a dimension");
  Cluster contradictory = cluster;
  contradictory.devices_per_host = 64;
  EXPECT_EQ(Message(Cluster::FromJson(contradictory.ToJson()).status()),
            "cluster: the torus 4 x 4 x 8 has 128 devices, devices_per_host says 64");
}

TEST(Cluster, SaysWhoseCompilerItTakes) {
  EXPECT_EQ(Cluster::Local(8).platform(), Platform::kCpu);
  EXPECT_EQ(Cluster::Preset("p5.48xlarge")->platform(), Platform::kCuda);
}

TEST(Cluster, GpusOfThisMachineHaveTheRatesOfTheirKind) {
  Cluster cluster = Cluster::LocalCuda(2);
  EXPECT_EQ(cluster.num_devices(), 2);
  EXPECT_EQ(cluster.platform(), Platform::kCuda);
  EXPECT_TRUE(cluster.SetGpu("NVIDIA H100 80GB HBM3", 1000));
  EXPECT_EQ(cluster.device.name, "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(cluster.device.memory_bytes, 1000);
  EXPECT_EQ(cluster.device.peak_half_flops_per_us,
            Cluster::Preset("dgx-h100")->device.peak_half_flops_per_us);
  const auto rate_of = [&](std::string_view name) {
    EXPECT_TRUE(cluster.SetGpu(name, 1000)) << name;
    return cluster.device.memory_bytes_per_us;
  };
  EXPECT_LT(rate_of("NVIDIA A100-SXM4-40GB"), rate_of("NVIDIA A100-SXM4-80GB"));
  EXPECT_FALSE(cluster.SetGpu("Tesla T4", 1000));
  EXPECT_EQ(cluster.device.name, "Tesla T4");
}

TEST(Cluster, HostsOfSeveralKindsAreNamedTogether) {
  const auto kinds = Cluster::OfKinds("a100:2,v100:1x4,1080ti");
  ASSERT_TRUE(kinds.ok()) << Message(kinds.status());
  ASSERT_EQ(kinds->size(), 3U);
  EXPECT_EQ((*kinds)[0].name, "p4d.24xlarge");
  EXPECT_EQ((*kinds)[0].num_devices(), 16);
  EXPECT_EQ((*kinds)[1].num_devices(), 4);
  EXPECT_EQ((*kinds)[2].device.name, "gtx1080ti-11gb");
  EXPECT_EQ(Cluster::OfKinds("p3.16xlarge:8")->size(), 1U);
  const auto error = [](const char* names) { return Message(Cluster::OfKinds(names).status()); };
  EXPECT_EQ(error("a100,local"),
            "cluster \"a100,local\": local stands alone, not beside hosts of other kinds");
  EXPECT_EQ(
      error("a100,v100,h100,h200,b200"),
      "cluster \"a100,v100,h100,h200,b200\" has hosts of 5 kinds; 4 can be planned for at most");
  EXPECT_NE(error("a100,v10").find("unknown cluster \"v10\""), std::string::npos);
  EXPECT_NE(error("a100,").find("unknown cluster \"\""), std::string::npos);
}

TEST(Cluster, AFileIsNamedByItsEndingOrByBeingThere) {
  const std::string path = testing::TempDir() + "/cluster_of_three";
  ASSERT_TRUE(WriteFile(path, Cluster::Local(3).ToJson()).ok());
  EXPECT_EQ(Cluster::Named(path)->num_devices(), 3);
  EXPECT_EQ(Cluster::Named("p3.16xlarge")->num_devices(), 8);
  EXPECT_NE(Message(Cluster::Named("missing.json").status()).find("missing.json"),
            std::string::npos);
}

TEST(Cluster, JsonErrorsNameTheField) {
  EXPECT_NE(Message(Cluster::FromJson("{}").status()).find("device"), std::string::npos);
  Cluster cluster = Cluster::Local(8);
  cluster.num_hosts = 0;
  EXPECT_EQ(Message(Cluster::FromJson(cluster.ToJson()).status()),
            "cluster: num_hosts and devices_per_host must be at least 1, got 0 and 8");
  cluster = Cluster::Local(8);
  cluster.host_network_bytes_per_us = -1;
  EXPECT_NE(Message(Cluster::FromJson(cluster.ToJson()).status()).find("host_network_bytes_per_us"),
            std::string::npos);
}

TEST(Cluster, RatesBeyondTheirPeaksAreRefused) {
  const auto message = [](void (*change)(DeviceKind&)) {
    Cluster cluster = Cluster::Local(2);
    change(cluster.device);
    return Message(Cluster::FromJson(cluster.ToJson()).status());
  };
  EXPECT_EQ(message([](DeviceKind& device) { device.half_efficiency = 1; }), "");
  EXPECT_EQ(message([](DeviceKind& device) { device.half_efficiency = 1.5; }),
            "cluster: device.f32_efficiency is 1 and device.half_efficiency 1.5, not both above 0 "
            "and at most 1");
  EXPECT_EQ(message([](DeviceKind& device) { device.f32_efficiency = 0; }),
            "cluster: device.f32_efficiency is 0 and device.half_efficiency 1, not both above 0 "
            "and at most 1");
  EXPECT_EQ(message([](DeviceKind& device) { device.num_multiprocessors = -1; }),
            "cluster: device.num_multiprocessors is -1 and device.elementwise_per_us 0, not both 0 "
            "(not known) or more");
}

TEST(Cluster, NumbersThatMakeNoSenseAreRefused) {
  const std::string good = Cluster::Local(2).ToJson();
  const auto message = [&](const std::string& field, const std::string& value) {
    std::string text = good;
    const size_t at = text.find("\"" + field + "\": ") + field.size() + 4;
    text.replace(at, text.find_first_of(",\n", at) - at, value);
    return Message(Cluster::FromJson(text).status());
  };
  EXPECT_EQ(message("launch_us", "2"), "");
  EXPECT_EQ(message("num_hosts", "1.5"),
            "cluster: num_hosts is 1.5, not a whole number of at most 1073741824");
  EXPECT_EQ(message("devices_per_host", "4294967298"),
            "cluster: devices_per_host is 4294967298, not a whole number of at most 1073741824");
  EXPECT_EQ(message("memory_bytes", "1e30"),
            "cluster: memory_bytes is 1e+30, not a whole number of at most 1000000000000000");
  std::string torus = Cluster::Preset("tpu-v5e:2x2")->ToJson();
  torus.replace(torus.find("\"wraps_at\": 16"), 14, "\"wraps_at\": 16.5");
  EXPECT_EQ(Message(Cluster::FromJson(torus).status()),
            "cluster: wraps_at is 16.5, not a whole number of at most 1073741824");
  const std::string negative =
      "cluster: launch_us, latency_us and memory_bytes must be 0 or more (memory_bytes 0: not "
      "known, no limit)";
  EXPECT_EQ(message("memory_bytes", "-1"), negative);
  EXPECT_EQ(message("launch_us", "-1"), negative);
  EXPECT_EQ(message("latency_us", "-1"), negative);
}

TEST(Cluster, MoreDevicesThanCanBeCountedAreRefused) {
  EXPECT_EQ(Cluster::Preset("p3.16xlarge:512")->num_devices(), 4096);
  EXPECT_EQ(Message(Cluster::Preset("p3.16xlarge:300000000").status()),
            "cluster: 300000000 hosts of 8 devices are more than 1073741824 devices");
}

}  // namespace
}  // namespace minka
