// How fast UcxTransport moves messages between two processes of this host, alternating with UCX's
// own benchmark, which polls or, as ours does, sleeps while it waits.
//
//   transport_benchmark                    a table of all sizes
//   transport_benchmark --filter "4 MiB"   of the sizes whose names contain it
//   transport_benchmark --update           also writes the committed table
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <semaphore>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "benchmarks/runtime/ucx_perftest.h"
#include "benchmarks/support/run_apart.h"
#include "benchmarks/support/table.h"
#include "fmt/format.h"
#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/runtime/transport/ucx_transport.h"
#include "nlohmann/json.hpp"

namespace minka {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kNonce = 1;
constexpr int kMaxInFlight = 64;  // messages that are sent or expected ahead

// Rates of a machine that may have been busier.
const std::vector<Criterion> kCriteria = {
    {.field = "of_ucx", .relative = 0.3, .is_better_large = true},
    {.field = "round_trip_us", .relative = 0.5}};

struct Case {
  std::string name;
  size_t num_bytes = 0;
  int num_messages = 0;
  bool is_latency = false;

  int num_warm_up_messages() const { return num_messages / 10 + 1; }
};

// About 4 GiB of each.
std::vector<Case> AllCases() {
  return {{.name = "64 KiB", .num_bytes = size_t{64} << 10, .num_messages = 40000},
          {.name = "1 MiB", .num_bytes = size_t{1} << 20, .num_messages = 4000},
          {.name = "4 MiB", .num_bytes = size_t{4} << 20, .num_messages = 1000},
          {.name = "16 MiB", .num_bytes = size_t{16} << 20, .num_messages = 250},
          {.name = "64 MiB", .num_bytes = size_t{64} << 20, .num_messages = 64},
          {.name = "8 bytes and back", .num_bytes = 8, .num_messages = 20000, .is_latency = true}};
}

// One of the two processes.
class End {
 public:
  End(int self, int socket) : other_(1 - self) {
    auto transport = UcxTransport::Create({.peer = self, .num_peers = 2, .job_nonce = kNonce});
    MINKA_CHECK(transport.ok(), "{}", Message(transport.status()));
    transport_ = *std::move(transport);
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

  void SendAll(std::span<const char> bytes, int num_messages) {
    std::counting_semaphore<kMaxInFlight> room(kMaxInFlight);
    for (int i = 0; i < num_messages; ++i) {
      room.acquire();
      // Let go of, it makes room for another one.
      const std::shared_ptr<const void> owner(bytes.data(),
                                              [&room](const void*) { room.release(); });
      MINKA_CHECK(transport_->Send(other_, /*tag=*/1, bytes, owner).ok());
    }
    for (int i = 0; i < kMaxInFlight; ++i) room.acquire();
  }
  // All to the same place, as ucx_perftest does: it is the transport that is measured, not memory.
  void ReceiveAll(std::span<char> destination, int num_messages) {
    std::vector<std::unique_ptr<PendingReceive>> pending(kMaxInFlight);
    for (int i = 0; i < num_messages + kMaxInFlight; ++i) {
      auto& slot = pending[i % kMaxInFlight];
      if (slot != nullptr) MINKA_CHECK(slot->Wait().ok());
      slot = i < num_messages ? Expect(destination) : nullptr;
    }
  }
  void SendOne(std::span<const char> bytes) {
    MINKA_CHECK(transport_->Send(other_, /*tag=*/1, bytes, nullptr).ok());
  }
  void ReceiveOne(std::span<char> destination) { MINKA_CHECK(Expect(destination)->Wait().ok()); }

 private:
  std::unique_ptr<PendingReceive> Expect(std::span<char> destination) {
    auto pending = transport_->Receive(other_, /*tag=*/1, destination);
    MINKA_CHECK(pending.ok(), "{}", Message(pending.status()));
    return *std::move(pending);
  }

  int other_;
  std::unique_ptr<UcxTransport> transport_;
};

// The part of the process that measures.
double MeasureMicroseconds(End& end, const Case& which, std::span<char> bytes) {
  using Clock = std::chrono::steady_clock;
  char answer[1];
  Clock::time_point start;
  for (const int num_messages : {which.num_warm_up_messages(), which.num_messages}) {
    start = Clock::now();
    if (which.is_latency) {
      for (int i = 0; i < num_messages; ++i) {
        end.SendOne(bytes);
        end.ReceiveOne(bytes);
      }
    } else {
      end.SendAll(bytes, num_messages);
      end.ReceiveOne(answer);
    }
  }
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count() /
         which.num_messages;
}

// That of the other one.
void Answer(End& end, const Case& which, std::span<char> bytes) {
  const char answer[1] = {};
  for (const int num_messages : {which.num_warm_up_messages(), which.num_messages}) {
    if (which.is_latency) {
      for (int i = 0; i < num_messages; ++i) {
        end.ReceiveOne(bytes);
        end.SendOne(bytes);
      }
    } else {
      end.ReceiveAll(bytes, num_messages);
      end.SendOne(answer);
    }
  }
}

// Microseconds per message, or there and back.
absl::StatusOr<double> MeasureOurs(const Case& which) {
  const auto measure = [&]() -> absl::StatusOr<Json> {
    int sockets[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) != 0) return InternalError("no sockets");
    const pid_t child = fork();
    std::vector<char> bytes(which.num_bytes, 'x');
    const int self = child == 0 ? 1 : 0;
    End end(self, sockets[self]);
    char done = 0;
    if (child == 0) {
      Answer(end, which, bytes);
      // The last message may still be on its way.
      std::ignore = read(sockets[1], &done, sizeof done);
      _exit(0);
    }
    const double microseconds = MeasureMicroseconds(end, which, bytes);
    std::ignore = write(sockets[0], &done, sizeof done);
    waitpid(child, nullptr, 0);
    return Json(microseconds);
  };
  ASSIGN_OR_RETURN(const Json microseconds, RunApart(which.name, measure));
  return microseconds.get<double>();
}

absl::StatusOr<UcxPerftestResult> MeasureUcx(const Case& which, bool sleeps) {
  return RunUcxPerftest({.test = which.is_latency ? "tag_lat" : "tag_bw",
                         .sleeps = sleeps,
                         .num_bytes = which.num_bytes,
                         .num_messages = which.num_messages,
                         .num_warm_up_messages = which.num_warm_up_messages()});
}

double Median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + values.size() / 2);
  return values[values.size() / 2];
}

double Rounded(double value) { return std::round(value * 100) / 100; }

absl::StatusOr<Json> Measure(const Case& which, int num_rounds, bool with_ucx) {
  const auto number_of = [&](double microseconds) {
    return which.is_latency ? microseconds : which.num_bytes / microseconds / 1e3;
  };
  std::vector<double> ours, polling, sleeping;
  for (int round = 0; round < num_rounds; ++round) {
    ASSIGN_OR_RETURN(const double microseconds, MeasureOurs(which));
    ours.push_back(number_of(microseconds));
    if (!with_ucx) continue;
    for (const bool sleeps : {false, true}) {
      ASSIGN_OR_RETURN(const UcxPerftestResult ucx, MeasureUcx(which, sleeps));
      (sleeps ? sleeping : polling)
          .push_back(which.is_latency ? 2 * ucx.message_us : ucx.gb_per_second);
    }
  }
  const std::string unit = which.is_latency ? "round_trip_us" : "gb_per_second";
  Json row = {{"name", which.name}, {unit, Rounded(Median(ours))}};
  if (!with_ucx) return row;
  row["ucx_polling_" + unit] = Rounded(Median(polling));
  row["ucx_sleeping_" + unit] = Rounded(Median(sleeping));
  if (!which.is_latency) {
    row["of_ucx"] = Rounded(Median(ours) / std::max(Median(polling), Median(sleeping)));
  }
  return row;
}

std::string TableRow(const Json& row) {
  const bool is_latency = row.contains("round_trip_us");
  const std::string unit = is_latency ? "round_trip_us" : "gb_per_second";
  const auto cell = [&](const std::string& field) {
    return row.contains(field) ? fmt::format("{:.2f}", row[field].get<double>()) : "-";
  };
  return fmt::format("| {} | {} | {} | {} | {} | {} |\n", row["name"].get<std::string>(),
                     is_latency ? "us" : "GB/s", cell(unit), cell("ucx_polling_" + unit),
                     cell("ucx_sleeping_" + unit), cell("of_ucx"));
}

constexpr char kHeader[] =
    "| message | unit | minka | ucx_perftest, polling | ucx_perftest, sleeping | of the better |\n"
    "|---|---|---|---|---|---|\n";

constexpr char kIntroduction[] =
    "# Messages between two processes of a host\n\n"
    "Made by `transport_benchmark --update`: `UcxTransport`, and UCX's own `ucx_perftest` "
    "(`tag_bw`, `tag_lat`) on the same\n"
    "devices, shared memory, in turns; medians. It polls, or sleeps while it waits (`-E sleep`), "
    "as `UcxTransport` does after\n"
    "a moment. The goal is 0.7 *of the better* from 4 MiB on. 10^9 bytes are a GB.\n\n";

std::string Page(const Json& rows) {
  std::string text = fmt::format("{}{}", kIntroduction, kHeader);
  for (const Json& row : rows) text += TableRow(row);
  return text;
}

absl::Status MeasureAll(const std::string& filter, int num_rounds, bool is_committed,
                        const std::function<void(Json)>& add) {
  const bool with_ucx = IsUcxPerftestInstalled();
  if (!with_ucx && is_committed) {
    return absl::FailedPreconditionError(
        "a table without ucx_perftest compares nothing; it is in Debian's ucx-utils");
  }
  if (!with_ucx) fmt::print("no ucx_perftest to compare with: it is in Debian's ucx-utils\n");
  fmt::print("{}", kHeader);
  for (const Case& which : AllCases()) {
    if (which.name.find(filter) == std::string::npos) continue;
    ASSIGN_OR_RETURN(Json row, Measure(which, num_rounds, with_ucx));
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
  int num_rounds = 5;
  minka::TableOptions table{.folder = "benchmarks/runtime"};
  CLI::App app("How fast messages go between two processes");
  app.add_option("--filter", filter, "only messages whose names contain this");
  app.add_option("--rounds", num_rounds, "of which the median counts")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  minka::AddTableOptions(app, table);
  CLI11_PARSE(app, argc, argv);
  const absl::Status status =
      minka::MakeTable({.criteria = minka::kCriteria,
                        .measure =
                            [&](const auto& add) {
                              return minka::MeasureAll(filter, num_rounds, table.update, add);
                            },
                        .page = minka::Page},
                       table);
  if (status.ok()) return EXIT_SUCCESS;
  fmt::print(stderr, "error: {}\n", minka::Message(status));
  return EXIT_FAILURE;
}
