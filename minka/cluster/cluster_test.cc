#include "minka/cluster/cluster.h"

#include "gtest/gtest.h"
#include "minka/base/status.h"

namespace minka {
namespace {

TEST(Cluster, PresetsRoundTripThroughJson) {
  const Cluster cluster = *Cluster::Preset("p4d.24xlarge:8");
  EXPECT_EQ(cluster.num_devices(), 64);
  EXPECT_EQ(Cluster::FromJson(cluster.ToJson())->ToJson(), cluster.ToJson());
}

TEST(Cluster, UnknownPresetNamesTheKnown) {
  EXPECT_EQ(Message(Cluster::Preset("p9").status()),
            "unknown cluster \"p9\"; known: p3.16xlarge, p4d.24xlarge, p4de.24xlarge, p5.48xlarge "
            "(with \":HOSTS\" for "
            "several hosts), or a JSON file");
  EXPECT_EQ(Message(Cluster::Preset("p4d.24xlarge:x").status()),
            "cluster \"p4d.24xlarge:x\": \"x\" is no number of hosts");
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

TEST(Cluster, MoreDevicesThanCanBeCountedAreRefused) {
  EXPECT_EQ(Cluster::Preset("p3.16xlarge:512")->num_devices(), 4096);
  EXPECT_EQ(Message(Cluster::Preset("p3.16xlarge:300000000").status()),
            "cluster: 300000000 hosts of 8 devices are more than 1073741824 devices");
}

}  // namespace
}  // namespace minka
