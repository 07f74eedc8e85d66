// How long an array takes from the devices of one process to those of another, tile by tile and, in
// turns with it, whole: put together on the host, sent in one message, cut at the other end.
//
//   resharding_benchmark                       a table of all cases
//   resharding_benchmark --filter "n-to-m 4"   of those whose names contain it
//   resharding_benchmark --update              also writes the committed table
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "benchmarks/support/run_apart.h"
#include "benchmarks/support/table.h"
#include "fmt/format.h"
#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/program/tile_messages.h"
#include "minka/runtime/mesh/local_devices.h"
#include "minka/runtime/mesh/mesh_array.h"
#include "minka/runtime/pipeline/tile_transfer.h"
#include "minka/runtime/transport/ucx_transport.h"
#include "minka/sharding/cross_mesh.h"
#include "nlohmann/json.hpp"

namespace minka {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr uint64_t kNonce = 1;
constexpr int kNumWarmUp = 3;

// Rates of a machine that may have been busier.
const std::vector<Criterion> kCriteria = {
    {.field = "bytes", .relative = 0},
    {.field = "messages", .relative = 0},
    {.field = "whole_over_tiles", .relative = 0.3, .is_better_large = true}};

struct Case {
  std::string name;
  std::string from_mesh, from, to_mesh, to;
  std::vector<int64_t> dims = {128, 256, 256};

  Shape shape() const { return {ElementType::kS32, dims}; }
};

// Those of Alpa's benchmark of cross-mesh resharding with a 64th of their elements (8 is 7 again),
// and what pipelines send most. Axis x is that of hosts there.
std::vector<Case> AllCases() {
  return {{"1-to-1", "1", "[-]", "1", "[-]", {8 << 20}},
          {"1-to-m (1,2)", "1", "[-]", "2", "[-]", {8 << 20}},
          {"1-to-m (1,4)", "1", "[-]", "4", "[-]", {8 << 20}},
          {"n-to-m 1", "2x4", "[x,-,-]", "2x4", "[x,-,-]"},
          {"n-to-m 2", "2x4", "[-,-,-]", "2x4", "[x,-,-]"},
          {"n-to-m 3", "2x4", "[-,x,-]", "2x4", "[x,-,-]"},
          {"n-to-m 4", "2x4", "[-,x+y,-]", "2x4", "[x+y,-,-]"},
          {"n-to-m 5", "2x4", "[y,-,-]", "2x4", "[x,-,-]"},
          {"n-to-m 6", "2x4", "[x,-,-]", "3x4", "[x,-,-]", {192, 256, 170}},
          {"n-to-m 7", "1x4", "[y,-,-]", "2x4", "[-,-,-]"},
          {"n-to-m 9", "2x4", "[-,x,-]", "2x4", "[-,-,x]"},
          {"batch 2-to-2, 8 MiB", "2", "[x,-]", "2", "[x,-]", {1024, 2048}},
          {"batch 2-to-2, 1 MiB", "2", "[x,-]", "2", "[x,-]", {256, 1024}},
          {"batch 2-to-2, 64 KiB", "2", "[x,-]", "2", "[x,-]", {64, 256}},
          {"batch to hidden, 1 MiB", "2", "[x,-]", "2", "[-,x]", {256, 1024}},
          {"scalar", "2", "[]", "2", "[]", {}}};
}

struct Side {
  ArrayLayout layout;
  ArrayOnMesh on_mesh;
};

Side SideOf(const Case& which, const std::string& mesh_text, const std::string& sharding,
            int host) {
  const Mesh mesh = Mesh::Parse(mesh_text).value();
  const Sharding parsed = ParseSharding(sharding, mesh).value();
  return {{which.shape(), parsed, mesh},
          {parsed, mesh, std::vector<int>(mesh.num_devices(), host)}};
}

struct Plan {
  explicit Plan(const Case& which)
      : from(SideOf(which, which.from_mesh, which.from, 0)),
        to(SideOf(which, which.to_mesh, which.to, 1)),
        lists(PackTiles(PlanCrossMesh(which.shape(), from.on_mesh, to.on_mesh), which.shape(),
                        from.on_mesh, to.on_mesh)) {}

  Side from, to;
  TileLists lists;
};

// One of the two processes: 0 sends, 1 receives. One channel, which leads to the other one.
class End : public MeshChannels {
 public:
  End(int self, int socket, const Mesh& mesh)
      : other_(1 - self),
        socket_(socket),
        devices_(OpenLocalDevices({.num_devices = static_cast<int>(mesh.num_devices())}).value()),
        transport_(
            UcxTransport::Create({.peer = self, .num_peers = 2, .job_nonce = kNonce}).value()) {
    std::vector<std::string> addresses(2);
    addresses[self] = transport_->address();
    char address[4096];
    MINKA_CHECK(write(socket, addresses[self].data(), addresses[self].size()) > 0);
    const ssize_t size = read(socket, address, sizeof address);
    MINKA_CHECK(size > 0);
    addresses[other_].assign(address, static_cast<size_t>(size));
    const absl::Status status = transport_->Connect(addresses);
    MINKA_CHECK(status.ok(), "{}", Message(status));
  }

  absl::Status Send(int, std::span<const char> bytes, std::shared_ptr<const void> owner) override {
    return transport_->Send(other_, /*tag=*/1, bytes, std::move(owner));
  }
  absl::Status Expect(int, std::span<char> destination) override {
    ASSIGN_OR_RETURN(expected_.emplace_back(), transport_->Receive(other_, /*tag=*/1, destination));
    return absl::OkStatus();
  }
  absl::Status Wait(int) override {
    const absl::Status status = expected_.front()->Wait();
    expected_.pop_front();
    return status;
  }

  // So that both begin together.
  void Signal() const { MINKA_CHECK(write(socket_, "", 1) == 1); }
  void AwaitSignal() const {
    char byte = 0;
    MINKA_CHECK(read(socket_, &byte, 1) == 1);
  }

  const pjrt::Client& client() const { return devices_.client; }

 private:
  const int other_, socket_;
  LocalDevices devices_;
  std::unique_ptr<UcxTransport> transport_;
  std::deque<std::unique_ptr<PendingReceive>> expected_;
};

// What is sent: each element holds its number.
Literal Counting(const Shape& shape) {
  std::string bytes(static_cast<size_t>(shape.num_bytes()), '\0');
  std::vector<int32_t> numbers(shape.num_elements());
  std::iota(numbers.begin(), numbers.end(), 0);
  std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return {shape, std::make_shared<const std::string>(std::move(bytes))};
}

absl::Status SendWhole(End& end, const ArrayLayout& layout, const MeshArray& array) {
  ASSIGN_OR_RETURN(const Literal value, GetArray(layout, array));
  return end.Send(0, *value.bytes, value.bytes);
}

absl::StatusOr<MeshArray> ReceiveWhole(End& end, const ArrayLayout& layout) {
  const auto bytes =
      std::make_shared<std::string>(static_cast<size_t>(layout.shape.num_bytes()), '\0');
  RETURN_IF_ERROR(end.Expect(0, *bytes));
  RETURN_IF_ERROR(end.Wait(0));
  return PutArray(end.client(), layout, Literal{layout.shape, bytes});
}

absl::StatusOr<MeshArray> ReceiveTiles(End& end, const TilePlayer& tiles, BlockPool& pool) {
  ASSIGN_OR_RETURN(TilePlayer::Incoming incoming, tiles.Expect(0, pool, end));
  return tiles.Receive(std::move(incoming), 0, end.client(), end);
}

// Of one process: what it copies of memory that is there already.
double MemcpyGbPerSecond() {
  constexpr size_t kBytes = size_t{32} << 20;
  const std::vector<char> from(kBytes, 'x');
  std::vector<char> to(kBytes, 'y');
  double best_us = 1e9;
  for (int i = 0; i < 10; ++i) {
    const Clock::time_point start = Clock::now();
    std::memcpy(to.data(), from.data(), kBytes);
    const std::chrono::duration<double, std::micro> elapsed = Clock::now() - start;
    MINKA_CHECK(to[i] == 'x');
    best_us = std::min(best_us, elapsed.count());
  }
  return kBytes / best_us / 1e3;
}

void Answer(const Case& which, int socket, int num_rounds) {
  const Plan plan(which);
  End end(/*self=*/0, socket, plan.from.layout.mesh);
  const MeshArray array = PutArray(end.client(), plan.from.layout, Counting(which.shape())).value();
  const TilePlayer tiles(plan.from.layout, plan.lists.sent);
  const auto pool = BlockPool::Create();
  for (int round = 0; round < num_rounds; ++round) {
    end.AwaitSignal();
    const absl::Status status =
        round % 2 == 0 ? tiles.Send(array, TilePlayer::Sending::kInPlace, 0, *pool, end)
                       : SendWhole(end, plan.from.layout, array);
    MINKA_CHECK(status.ok(), "{}", Message(status));
  }
  end.AwaitSignal();  // the last message is out
}

double Median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<int64_t>(values.size() / 2));
  return values[values.size() / 2];
}

double Rounded(double value) { return std::round(value * 1000) / 1000; }

// In the process that receives.
absl::StatusOr<Json> Receive(const Case& which, int socket, int num_rounds) {
  const Plan plan(which);
  const ArrayLayout& layout = plan.to.layout;
  End end(/*self=*/1, socket, layout.mesh);
  const Literal expected = Counting(which.shape());
  const TilePlayer tiles(layout, plan.lists.received);
  const auto pool = BlockPool::Create();
  std::vector<double> us[2];
  for (int round = 0; round < num_rounds; ++round) {
    const bool is_whole = round % 2 == 1;
    const Clock::time_point start = Clock::now();
    end.Signal();
    ASSIGN_OR_RETURN(const MeshArray array,
                     is_whole ? ReceiveWhole(end, layout) : ReceiveTiles(end, tiles, *pool));
    const std::chrono::duration<double, std::micro> elapsed = Clock::now() - start;
    if (round / 2 >= kNumWarmUp) us[is_whole].push_back(elapsed.count());
    if (round / 2 > 0) continue;
    ASSIGN_OR_RETURN(const Literal value, GetArray(layout, array));
    if (*value.bytes != *expected.bytes) return InternalError("other numbers arrive");
  }
  end.Signal();
  const int64_t bytes = BytesOf(plan.lists.sent, which.shape().type);
  const double tiles_us = Median(us[0]), whole_us = Median(us[1]);
  const double memcpy_gb = MemcpyGbPerSecond();
  return Json{{"name", which.name},
              {"bytes", bytes},
              {"least_bytes", NeededBytes(which.shape(), plan.to.on_mesh)},
              {"messages", plan.lists.sent.messages.size()},
              {"tiles_ms", Rounded(tiles_us / 1e3)},
              {"whole_ms", Rounded(whole_us / 1e3)},
              {"whole_over_tiles", Rounded(whole_us / tiles_us)},
              {"gb_per_second", Rounded(static_cast<double>(bytes) / tiles_us / 1e3)},
              {"memcpy_gb_per_second", Rounded(memcpy_gb)}};
}

absl::StatusOr<Json> Measure(const Case& which, int num_rounds) {
  return RunApart(which.name, [&]() -> absl::StatusOr<Json> {
    int sockets[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) != 0) return InternalError("no sockets");
    const int num_transfers = 2 * (num_rounds + kNumWarmUp);
    const pid_t child = fork();
    if (child == 0) {
      Answer(which, sockets[1], num_transfers);
      _exit(0);
    }
    absl::StatusOr<Json> row = Receive(which, sockets[0], num_transfers);
    waitpid(child, nullptr, 0);
    return row;
  });
}

constexpr char kHeader[] =
    "| case | from | to | bytes | least | messages | tiles, ms | whole, ms | whole / tiles | "
    "GB/s | memcpy, GB/s |\n|---|---|---|---|---|---|---|---|---|---|---|\n";

std::string TableRow(const Json& row) {
  const std::string name = row["name"].get<std::string>();
  const std::vector<Case> cases = AllCases();
  const auto which = std::ranges::find(cases, name, &Case::name);
  // Rows of cases that are no longer there have none.
  const auto side = [&](std::string Case::* mesh, std::string Case::* sharding) {
    return which == cases.end() ? "" : fmt::format("{} {}", (*which).*mesh, (*which).*sharding);
  };
  return fmt::format(
      "| {} | {} | {} | {} | {} | {} | {:.3f} | {:.3f} | {:.2f} | {:.2f} | {:.1f} |\n", name,
      side(&Case::from_mesh, &Case::from), side(&Case::to_mesh, &Case::to),
      row["bytes"].get<int64_t>(), row["least_bytes"].get<int64_t>(),
      row["messages"].get<int64_t>(), row["tiles_ms"].get<double>(), row["whole_ms"].get<double>(),
      row["whole_over_tiles"].get<double>(), row["gb_per_second"].get<double>(),
      row["memcpy_gb_per_second"].get<double>());
}

constexpr char kIntroduction[] =
    R"(# Arrays from mesh to mesh

Made by `resharding_benchmark --update`: an s32 array from the devices of one process to those of another, from the first
message until every device has its part; medians. *Tiles*: as pipelines send it. *Whole*, in turns with it: put together on the
host, sent in one message, cut at the other end. *Bytes*: what is sent, and the *least* that the receiving process needs. *GB/s*:
those bytes in that time, copies for other devices included; *memcpy*: what one thread copies. 10^9 bytes are a GB. The cases of n to m
are those of Alpa's benchmark with a 64th of their elements. Of two cores that something else uses, too, the ratios hold, but what
takes less than a time slice (4 ms) may wait for one.

)";

std::string Page(const Json& rows) {
  std::string text = fmt::format("{}{}", kIntroduction, kHeader);
  for (const Json& row : rows) text += TableRow(row);
  return text;
}

absl::Status MeasureAll(const std::string& filter, int num_rounds,
                        const std::function<void(Json)>& add) {
  fmt::print("{}", kHeader);
  for (const Case& which : AllCases()) {
    if (which.name.find(filter) == std::string::npos) continue;
    ASSIGN_OR_RETURN(Json row, Measure(which, num_rounds));
    fmt::print("{}", TableRow(row));
    std::fflush(stdout);
    add(std::move(row));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace minka

int main(int argc, char** argv) {
  std::string filter;
  int num_rounds = 20;
  minka::TableOptions table{.folder = "benchmarks/runtime/resharding"};
  CLI::App app("How long arrays take from mesh to mesh");
  app.add_option("--filter", filter, "only cases whose names contain this");
  app.add_option("--rounds", num_rounds, "of which the median counts")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  minka::AddTableOptions(app, table);
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = minka::MakeTable(
      {.criteria = minka::kCriteria,
       .measure = [&](const auto& add) { return minka::MeasureAll(filter, num_rounds, add); },
       .page = minka::Page},
      table);
  if (status.ok()) return EXIT_SUCCESS;
  fmt::print(stderr, "error: {}\n", minka::Message(status));
  return EXIT_FAILURE;
}
