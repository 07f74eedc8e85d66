#include "minka/cost/cross_mesh_load.h"

#include "gtest/gtest.h"

namespace minka {
namespace {

constexpr double kByte = 4;  // of an element

// Two hosts of four devices; 10 us and 1,000 bytes per us within one, 50 us and 100 between them,
// 200 for all of a host together.
Cluster TwoHosts() {
  Cluster cluster{.num_hosts = 2, .devices_per_host = 4};
  cluster.device.name = "v100-16gb";
  cluster.intra_host = {.latency_us = 10, .bytes_per_us = 1000};
  cluster.inter_host = {.latency_us = 50, .bytes_per_us = 100};
  cluster.host_network_bytes_per_us = 200;
  return cluster;
}

struct Side {
  const char *mesh, *sharding;
  int64_t first_device;
};

double UsOf(const Cluster& cluster, const Shape& shape, const Side& from, const Side& to) {
  const Mesh from_mesh = *Mesh::Parse(from.mesh), to_mesh = *Mesh::Parse(to.mesh);
  CrossMeshLoad load({cluster, from_mesh, from.first_device}, {cluster, to_mesh, to.first_device});
  load.Add(shape, *ParseSharding(from.sharding, from_mesh), *ParseSharding(to.sharding, to_mesh));
  return load.Us();
}

constexpr int64_t kElements = 1 << 20;
const Shape kShape{ElementType::kF32, {kElements}};
constexpr double kBytes = kElements * kByte;

TEST(CrossMeshLoad, NothingTakesNoTime) {
  const Mesh mesh = *Mesh::Parse("2");
  const Cluster cluster = TwoHosts();
  EXPECT_EQ(CrossMeshLoad({cluster, mesh, 0}, {cluster, mesh, 2}).Us(), 0);
}

TEST(CrossMeshLoad, EveryDeviceSendsItsPart) {
  EXPECT_DOUBLE_EQ(UsOf(TwoHosts(), kShape, {"1", "[x]", 0}, {"1", "[x]", 1}), 10 + kBytes / 1000);
  EXPECT_DOUBLE_EQ(UsOf(TwoHosts(), kShape, {"2", "[x]", 0}, {"2", "[x]", 2}),
                   10 + kBytes / 2 / 1000);
}

TEST(CrossMeshLoad, PairsSendAsFastAsTheirLinks) {
  Cluster cluster = TwoHosts();
  cluster.pair_bytes_per_us = {
      {0, 100, 200, 50}, {100, 0, 400, 200}, {200, 400, 0, 100}, {50, 200, 100, 0}};
  EXPECT_DOUBLE_EQ(UsOf(cluster, kShape, {"1", "[x]", 0}, {"1", "[x]", 3}), 10 + kBytes / 50);
  EXPECT_DOUBLE_EQ(UsOf(cluster, kShape, {"1", "[x]", 5}, {"1", "[x]", 6}), 10 + kBytes / 400);
  EXPECT_DOUBLE_EQ(UsOf(cluster, kShape, {"2", "[x]", 0}, {"2", "[x]", 2}), 10 + kBytes / 2 / 200);
}

TEST(LeastSendUs, IsWhatEvenPartsTake) {
  const Cluster cluster = TwoHosts();
  const auto bytes = static_cast<int64_t>(kBytes);
  EXPECT_EQ(LeastSendUs(0, {cluster, 4}, {cluster, 4}, true), 0);
  EXPECT_DOUBLE_EQ(LeastSendUs(bytes, {cluster, 2}, {cluster, 1}, false), 10 + kBytes / 1000);
  EXPECT_DOUBLE_EQ(LeastSendUs(bytes, {cluster, 2}, {cluster, 2}, false),
                   UsOf(cluster, kShape, {"2", "[x]", 0}, {"2", "[x]", 2}));
  EXPECT_DOUBLE_EQ(LeastSendUs(bytes, {cluster, 4}, {cluster, 4}, true),
                   UsOf(cluster, kShape, {"4", "[x]", 0}, {"4", "[x]", 4}));
  EXPECT_DOUBLE_EQ(LeastSendUs(bytes, {cluster, 8}, {cluster, 1}, true), 50 + kBytes / 100);
}

// Hosts of one kind send 100 bytes a microsecond from each device and 200 in all, those of the
// other 30 and 60, with a longer latency.
TEST(CrossMeshLoad, HostsOfTwoKindsSendAsFastAsTheSlower) {
  const Cluster fast = TwoHosts();
  Cluster slow = TwoHosts();
  slow.intra_host.bytes_per_us = 500;
  slow.inter_host = {.latency_us = 80, .bytes_per_us = 30};
  slow.host_network_bytes_per_us = 60;
  const Mesh four = *Mesh::Parse("4"), one = *Mesh::Parse("1");
  const auto us = [](const PlacedMesh& from, const PlacedMesh& to, const char* to_sharding) {
    CrossMeshLoad load(from, to);
    load.Add(kShape, *ParseSharding("[x]", from.mesh), *ParseSharding(to_sharding, to.mesh));
    return load.Us();
  };
  EXPECT_DOUBLE_EQ(us({fast, four, 0}, {slow, four, 0}, "[x]"), 80 + kBytes / 60);
  EXPECT_DOUBLE_EQ(us({slow, four, 4}, {fast, four, 0}, "[x]"), 80 + kBytes / 60);
  EXPECT_DOUBLE_EQ(us({fast, one, 0}, {slow, one, 0}, "[x]"), 80 + kBytes / 30);
  EXPECT_DOUBLE_EQ(us({fast, one, 0}, {slow, one, 0}, "[x]"),
                   LeastSendUs(static_cast<int64_t>(kBytes), {fast, 1}, {slow, 1}, true));
  EXPECT_DOUBLE_EQ(us({fast, four, 0}, {slow, four, 0}, "[x]"),
                   LeastSendUs(static_cast<int64_t>(kBytes), {fast, 4}, {slow, 4}, true));
  for (const int64_t num_slow : {1, 4}) {
    const Mesh& of_slow = num_slow == 1 ? one : four;
    EXPECT_DOUBLE_EQ(
        us({fast, num_slow == 1 ? four : one, 0}, {slow, of_slow, 0}, "[x]"),
        LeastSendUs(static_cast<int64_t>(kBytes), {fast, 5 - num_slow}, {slow, num_slow}, true));
  }
  // Each of the slow devices gets a quarter from outside and three from the others.
  slow.host_network_bytes_per_us = 0;
  EXPECT_DOUBLE_EQ(us({fast, four, 0}, {slow, four, 0}, "[-]"),
                   80 + std::max(kBytes / 200, kBytes / 4 / 30 + kBytes * 3 / 4 / 500));
}

TEST(CrossMeshLoad, HostsShareTheirNetwork) {
  EXPECT_DOUBLE_EQ(UsOf(TwoHosts(), kShape, {"4", "[x]", 0}, {"4", "[x]", 4}), 50 + kBytes / 200);
  Cluster cluster = TwoHosts();
  cluster.host_network_bytes_per_us = 0;
  EXPECT_DOUBLE_EQ(UsOf(cluster, kShape, {"4", "[x]", 0}, {"4", "[x]", 4}), 50 + kBytes / 4 / 100);
}

// Each of four devices receives a quarter from outside and three from the others.
TEST(CrossMeshLoad, ReplicasAreCopiedWithinTheHost) {
  const double copied = kBytes * 3 / 4 / 1000;
  Cluster cluster = TwoHosts();
  cluster.host_network_bytes_per_us = 0;
  EXPECT_DOUBLE_EQ(UsOf(cluster, kShape, {"4", "[-]", 0}, {"4", "[-]", 4}),
                   50 + kBytes / 4 / 100 + copied);
  // Virtual devices have one memory: one of them receives all.
  cluster.device.name = kCpuDevice;
  EXPECT_DOUBLE_EQ(UsOf(cluster, kShape, {"4", "[-]", 0}, {"4", "[-]", 4}), 50 + kBytes / 100);
}

// Of two hosts that want all of it one passes on each half, so that no network carries it twice.
TEST(CrossMeshLoad, HostsPassOnWhatOthersWant) {
  Cluster cluster = TwoHosts();
  cluster.num_hosts = 3;
  EXPECT_DOUBLE_EQ(UsOf(cluster, kShape, {"4", "[x]", 0}, {"8", "[-]", 4}), 50 + kBytes / 200);
  // A message that is done before the next could begin is not worth waiting for.
  const Shape small{ElementType::kF32, {8}};
  EXPECT_DOUBLE_EQ(UsOf(cluster, small, {"4", "[x]", 0}, {"8", "[-]", 4}),
                   50 + 2 * 8 * kByte / 200);
}

// One host needs all of it once, however its devices share it; two need it twice.
TEST(CrossMeshLoad, TilesAreCountedOncePerHost) {
  const auto bytes = [](const char* from_text, const char* to_text, const char* sharding) {
    const Mesh from = *Mesh::Parse(from_text), to = *Mesh::Parse(to_text);
    const Cluster cluster = TwoHosts();
    CrossMeshLoad load({cluster, from, /*first_device=*/0}, {cluster, to, /*first_device=*/2});
    load.Add(kShape, *ParseSharding("[x]", from), *ParseSharding(sharding, to));
    return static_cast<double>(load.tile_bytes());
  };
  EXPECT_EQ(bytes("2", "2", "[x]"), kBytes);
  EXPECT_EQ(bytes("2", "2", "[-]"), kBytes);
  EXPECT_EQ(bytes("2", "4", "[x]"), kBytes);
  EXPECT_EQ(bytes("2", "4", "[-]"), 2 * kBytes);
}

TEST(CrossMeshLoad, ArraysAddUp) {
  const Cluster cluster = TwoHosts();
  const Mesh mesh = *Mesh::Parse("2");
  const Sharding whole = Sharding::Replicated(1);
  const Mesh one = *Mesh::Parse("1");
  CrossMeshLoad load({cluster, mesh, 0}, {cluster, one, 2});
  load.Add(kShape, whole, whole);
  load.Add(kShape, whole, whole);
  // One from each of the two that have it; the receiver gets both.
  EXPECT_DOUBLE_EQ(load.Us(), 10 + 2 * kBytes / 1000);
}

}  // namespace
}  // namespace minka
