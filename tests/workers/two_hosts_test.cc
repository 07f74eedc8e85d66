// Workers on two hosts: namespaces of this machine with a control and a data link between them, so
// that messages go over real TCP at a rate that the test sets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "nlohmann/json.hpp"
#include "tests/support/background_command.h"
#include "tests/support/temporary_folder.h"

namespace minka {
namespace {

using std::chrono::seconds;

constexpr auto kQuick = seconds(10);
constexpr auto kRunTime = seconds(120);
constexpr const char* kModel = "gpt-tiny --layers 2 --sequence 32";
constexpr const char* kPipeline = "--cost-model roofline --method pipeline --submeshes 1x2,1x2";
// Without traffic shaping: more than all messages need.
constexpr double kFastBytesPerUs = 2000;
constexpr double kBytesPerUsOfMbit = 0.125;

std::vector<std::string> Words(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream stream(text);
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

struct Result {
  std::optional<int> exit_code;  // nullopt: it took too long
  std::string out, err;
};

Result Execute(std::vector<std::string> arguments, std::chrono::milliseconds timeout = kQuick) {
  BackgroundCommand command({.arguments = std::move(arguments),
                             .folder = std::filesystem::path(TemporaryPath("x")).parent_path(),
                             .name = "command"});
  const std::optional<int> exit_code = command.Wait(timeout);
  return {exit_code, command.Out(), command.Err()};
}

// Network and /sys of their own, as long as the process lives that holds them; links and queues
// between go with them.
class Host {
 public:
  Host(std::string name, std::string folder)
      : name_(std::move(name)),
        folder_(std::move(folder)),
        holder_({.arguments = {"unshare", "--net", "--mount", "sh", "-c",
                               "mount -t sysfs sysfs /sys && echo up && exec sleep infinity"},
                 .folder = folder_,
                 .name = name_}) {}

  // Empty: it can be used.
  std::string WhyNot() {
    if (Await(kQuick, [&] { return holder_.Out() == "up\n" || holder_.Wait({}); }) &&
        !holder_.Wait({})) {
      return "";
    }
    return "no namespaces: " + holder_.Err();
  }

  pid_t pid() const { return holder_.pid(); }

  std::vector<std::string> Inside(const std::string& command) const {
    std::vector<std::string> words = {"nsenter",         "--net",    "--mount",
                                      "--wd=" + folder_, "--target", std::to_string(pid())};
    for (std::string& word : Words(command)) words.push_back(std::move(word));
    return words;
  }

  std::unique_ptr<BackgroundCommand> Start(const std::string& name,
                                           const std::string& command) const {
    return std::make_unique<BackgroundCommand>(
        BackgroundCommandOptions{.arguments = Inside(command),
                                 // Shared memory reaches from one namespace into the other.
                                 .environment = {{"UCX_TLS", "tcp"}},
                                 .folder = folder_,
                                 .name = name});
  }

  Result Run(const std::string& command, std::chrono::milliseconds timeout = kQuick) const {
    const auto running = Start(name_ + "_command", command);
    const std::optional<int> exit_code = running->Wait(timeout);
    return {exit_code, running->Out(), running->Err()};
  }

  int64_t SentBytes(const std::string& device) const {
    return std::stoll(Run("cat /sys/class/net/" + device + "/statistics/tx_bytes").out);
  }

 private:
  const std::string name_, folder_;
  BackgroundCommand holder_;
};

class TwoHostsTest : public testing::Test {
 protected:
  TwoHostsTest() : folder_(std::filesystem::path(TemporaryPath("x")).parent_path()) {}

  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "namespaces need root";
    for (const std::string tool : {"unshare --version", "nsenter --version", "ip -V", "tc -V"}) {
      const Result result = Execute(Words(tool));
      if (result.exit_code != 0) GTEST_SKIP() << tool << ": " << result.err;
    }
    for (const char* name : {"a", "b"}) {
      Host& host = *hosts_.emplace_back(std::make_unique<Host>(name, folder_));
      if (const std::string why = host.WhyNot(); !why.empty()) GTEST_SKIP() << why;
      Must(host.Run("ip link set lo up"));
    }
    for (int link = 0; link < 2; ++link) {
      const std::string device = link == 0 ? "control" : "data";
      const Result made =
          Execute(Words(fmt::format("ip link add {0} netns {1} type veth peer name {0} netns {2}",
                                    device, hosts_[0]->pid(), hosts_[1]->pid())));
      if (made.exit_code != 0) GTEST_SKIP() << "no veth: " << made.err;
      for (size_t i = 0; i < hosts_.size(); ++i) {
        Must(hosts_[i]->Run(
            fmt::format("ip address add 10.77.{}.{}/24 dev {}", link, i + 1, device)));
        Must(hosts_[i]->Run(fmt::format("ip link set {} up", device)));
      }
      for (const auto& host : hosts_) {
        const auto state = [&] {
          return host->Run(fmt::format("cat /sys/class/net/{}/operstate", device)).out;
        };
        ASSERT_TRUE(Await(kQuick, [&] { return state() == "up\n"; }));
      }
    }
    std::ofstream(folder_ + "/token") << "sesame\n";
  }

  static void Must(const Result& result) { ASSERT_EQ(result.exit_code, 0) << result.err; }

  // On both hosts; arrays come in by the device listened on, or by the one named.
  void StartWorkers(const std::string& interface) {
    workers_.clear();
    auto list = nlohmann::json::array();
    for (size_t i = 0; i < hosts_.size(); ++i) {
      workers_.push_back(hosts_[i]->Start(
          fmt::format("worker{}", i),
          fmt::format("{} worker --listen 10.77.0.{}:7001 --token-file token {}", MINKA_BINARY,
                      i + 1, interface.empty() ? "" : "--interface " + interface)));
      ASSERT_TRUE(Await(kQuick, [&] { return workers_[i]->Out().ends_with('\n'); }))
          << workers_[i]->Err();
      list.push_back({{"address", fmt::format("10.77.0.{}:7001", i + 1)}, {"num_devices", 2}});
    }
    std::ofstream(folder_ + "/hosts.json")
        << nlohmann::json{{"token_file", "token"}, {"workers", list}};
  }

  // From the first host; what it prints as JSON.
  nlohmann::json Minka(const std::string& arguments) const {
    const Result result =
        hosts_[0]->Run(fmt::format("{} {} --json", MINKA_BINARY, arguments), kRunTime);
    EXPECT_EQ(result.exit_code, 0) << arguments << "\n" << result.err;
    return nlohmann::json::parse(result.out, nullptr, /*allow_exceptions=*/false);
  }

  // nullopt: no limit. What leaves either host by the data link.
  void LimitRate(std::optional<int> mbit_per_s) const {
    for (const auto& host : hosts_) {
      host->Run("tc qdisc delete dev data root");
      if (!mbit_per_s) continue;
      Must(host->Run(fmt::format("tc qdisc add dev data root tbf rate {}mbit burst 16kb limit 4mb",
                                 *mbit_per_s)));
    }
  }

  // Of a step on two such hosts with so fast a link between them.
  double PredictedUs(int micro_batches, double bytes_per_us) const {
    std::ofstream(folder_ + "/cluster.json")
        << nlohmann::json{{"name", "two-hosts"},
                          {"num_hosts", 2},
                          {"devices_per_host", 2},
                          {"device",
                           {{"name", "cpu"},
                            {"peak_flops_per_us", 1e5},
                            {"memory_bytes_per_us", 1.5e4},
                            {"launch_us", 2}}},
                          {"shared_compute_pool", true},
                          {"intra_host", {{"latency_us", 20}, {"bytes_per_us", 2000}}},
                          {"inter_host", {{"latency_us", 50}, {"bytes_per_us", bytes_per_us}}},
                          {"host_network_bytes_per_us", bytes_per_us}};
    return Minka(fmt::format("plan {} {} --micro-batches {} --cluster cluster.json --out plan.json",
                             kModel, kPipeline, micro_batches))
        .at("step_time_us");
  }

  nlohmann::json RunPlanned() const {
    return Minka(
        fmt::format("run {} --plan plan.json --random-inputs 1 --steps 3 "
                    "--hosts hosts.json",
                    kModel));
  }

  // The faster steps: others are slow when the machine does something else.
  static double MeasuredUs(const nlohmann::json& run) {
    return run.at("measured_step_time_quartiles_us").at(0);
  }

  const std::string folder_;
  std::vector<std::unique_ptr<Host>> hosts_;
  std::vector<std::unique_ptr<BackgroundCommand>> workers_;
};

TEST_F(TwoHostsTest, APipelineRunsOverTheirLink) {
  ASSERT_NO_FATAL_FAILURE(StartWorkers(""));
  const auto listed = Minka("workers --hosts hosts.json")["workers"];
  ASSERT_EQ(listed.size(), 2u);
  for (const auto& worker : listed) EXPECT_EQ(worker["state"], "idle");
  const int64_t data_before = hosts_[0]->SentBytes("data");
  const int64_t sent_before = hosts_[1]->SentBytes("control");
  const auto run = Minka(fmt::format(
      "run {} {} --num-devices 4 --micro-batches 2 --random-inputs 1 --steps 3 --hosts hosts.json "
      "--check",
      kModel, kPipeline));
  EXPECT_EQ(run["check"], "ok");
  EXPECT_GT(hosts_[1]->SentBytes("control"), sent_before);
  // Arrays come in by the device listened on.
  EXPECT_LT(hosts_[0]->SentBytes("data") - data_before, 10'000);
  for (const auto& worker : workers_) {
    worker->Signal(SIGTERM);
    EXPECT_EQ(worker->Wait(kQuick), 0) << worker->Err();
  }
}

TEST_F(TwoHostsTest, StepsTakeAsMuchLongerOnASlowLinkAsPredicted) {
  ASSERT_NO_FATAL_FAILURE(StartWorkers("data"));
  for (const int micro_batches : {1, 2}) {
    LimitRate(std::nullopt);
    const double predicted_us = PredictedUs(micro_batches, kFastBytesPerUs);
    const int64_t sent_before = hosts_[0]->SentBytes("data");
    const auto unlimited = RunPlanned();
    const int64_t sent = hosts_[0]->SentBytes("data") - sent_before;
    int64_t planned = 0;  // to send in a step, from mesh 0 to mesh 1
    for (const auto& transfers : unlimited.at("transfers")) {
      if (transfers.at(0) == 0) planned += transfers.back().get<int64_t>();
    }
    const int64_t steps = unlimited.at("num_measured_steps").get<int64_t>() + 2;  // that warm up
    EXPECT_GE(sent, steps * planned);
    EXPECT_LE(sent, steps * planned * 5 / 4);
    const double measured_us = MeasuredUs(unlimited);
    fmt::print(
        "{} micro-batches, no limit: {:.0f} ms predicted, {:.0f} ms measured; {} bytes in "
        "{} steps, {} on the link\n",
        micro_batches, predicted_us / 1e3, measured_us / 1e3, steps * planned, steps, sent);
    for (const int mbit : {12, 6}) {
      LimitRate(mbit);
      const double more_predicted_us =
          PredictedUs(micro_batches, mbit * kBytesPerUsOfMbit) - predicted_us;
      const double more_measured_us = MeasuredUs(RunPlanned()) - measured_us;
      const double ratio = more_measured_us / more_predicted_us;
      fmt::print(
          "{} micro-batches, {} Mbit/s: {:.0f} ms more predicted, {:.0f} ms more measured, "
          "ratio {:.2f}\n",
          micro_batches, mbit, more_predicted_us / 1e3, more_measured_us / 1e3, ratio);
      EXPECT_GT(ratio, 1 / 1.5);
      // Headers take a twentieth. Messages that are on their way at a time share the link, so that
      // the first comes later than one that has it alone.
      EXPECT_LT(ratio, micro_batches == 1 ? 1.5 : 2);
    }
  }
}

}  // namespace
}  // namespace minka
