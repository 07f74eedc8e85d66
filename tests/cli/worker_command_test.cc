// `minka worker`, `minka workers`, and `--hosts` and `--in-process` of `minka run` and `train`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <memory>

#include "command_test.h"
#include "nlohmann/json.hpp"
#include "tests/support/background_command.h"

namespace minka {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr const char* kSmallGpt =
    "gpt-tiny --layers 2 --sequence 32 --cost-model roofline --method pipeline --micro-batches 2";
// A worker that compiles when its driver goes does so to the end before it is idle.
constexpr auto kLong = seconds(60);
// Nothing listens on a port of the privileged ones that no service has.
constexpr const char* kNobody = "127.0.0.1:1";

class WorkerCommandTest : public CommandTest {
 protected:
  WorkerCommandTest() { Write("token", "sesame\n"); }

  std::unique_ptr<BackgroundCommand> Start(const std::string& name,
                                           std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), MINKA_BINARY);
    return std::make_unique<BackgroundCommand>(BackgroundCommandOptions{
        .arguments = std::move(arguments), .folder = Path("."), .name = name});
  }

  // Returns when it listens.
  std::unique_ptr<BackgroundCommand> StartWorker(const std::string& name) const {
    auto worker = Start(name, {"worker", "--token-file", "token"});
    EXPECT_TRUE(Await(seconds(10), [&] { return worker->Out().ends_with('\n'); }));
    return worker;
  }

  static std::string AddressOf(const BackgroundCommand& worker) {
    const std::string line = worker.Out();
    const std::string before = "minka worker listens on ";
    EXPECT_THAT(line, StartsWith(before + "127.0.0.1:"));
    return line.substr(before.size(), line.size() - before.size() - 1);
  }

  void WriteHosts(const std::vector<std::string>& addresses, int num_devices,
                  const std::string& token_file = "token") const {
    nlohmann::json hosts = {{"token_file", token_file}, {"workers", nlohmann::json::array()}};
    for (const std::string& address : addresses) {
      hosts["workers"].push_back({{"address", address}, {"num_devices", num_devices}});
    }
    Write("hosts.json", hosts.dump());
  }

  // On two workers of hosts.json.
  std::unique_ptr<BackgroundCommand> StartEndlessRun() const {
    std::vector<std::string> arguments = {"run"};
    std::istringstream words(fmt::format(
        "{} --num-devices 2 --random-inputs 1 --steps 1000000 --hosts hosts.json", kSmallGpt));
    for (std::string word; words >> word;) arguments.push_back(word);
    return Start("run", arguments);
  }

  std::string ErrorOf(const std::string& arguments) const {
    const Outcome outcome = Run(arguments);
    EXPECT_EQ(outcome.exit_code, 1) << arguments;
    return outcome.err;
  }

  nlohmann::json ListWorkers(int exit_code) const {
    const Outcome outcome = Run("workers --hosts hosts.json --json");
    EXPECT_EQ(outcome.exit_code, exit_code) << outcome.err;
    return nlohmann::json::parse(outcome.out)["workers"];
  }
};

TEST_F(WorkerCommandTest, RefusesWhatItCannotListenBy) {
  EXPECT_EQ(ErrorOf("worker"),
            "minka: who may use the worker? Give --token-file FILE, whose first line drivers must "
            "know\n");
  Write("empty", "\n");
  EXPECT_EQ(ErrorOf("worker --token-file empty"),
            "minka: the first line of empty is empty; it is the token\n");
  EXPECT_THAT(ErrorOf("worker --token-file nowhere"), HasSubstr("nowhere"));
  const auto refusal = [&](const std::string& address) {
    return ErrorOf("worker --token-file token --listen " + address);
  };
  for (const std::string address :
       {"127.0.0.1", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:65536", "127.0.0.1:-1"}) {
    EXPECT_EQ(refusal(address), fmt::format("minka: '{}' is no address to listen on; HOST:PORT is, "
                                            "with a port from 0 to 65535\n",
                                            address));
  }
  EXPECT_EQ(refusal("[::1]:0"), "minka: '[::1]' is no IPv4 address\n");
  EXPECT_EQ(refusal("192.0.2.1:0"), "minka: 192.0.2.1 is not an IPv4 address of this machine\n");
  EXPECT_EQ(refusal("0.0.0.0:0"),
            "minka: listening on all addresses, arrays would come in by which? Give one address to "
            "--listen, or a network device to --interface\n");
  const auto worker = StartWorker("worker");
  EXPECT_THAT(refusal(AddressOf(*worker)),
              HasSubstr(fmt::format("minka: cannot listen on {}: the port is taken, or the address "
                                    "is not this machine's\n",
                                    AddressOf(*worker))));
}

TEST_F(WorkerCommandTest, ListensOnAllAddressesWhereTheInterfaceIsNamed) {
  const auto worker = Start(
      "worker", {"worker", "--token-file", "token", "--listen", "0.0.0.0:0", "--interface", "lo"});
  EXPECT_TRUE(Await(seconds(10), [&] { return worker->Out().ends_with('\n'); }));
  EXPECT_THAT(worker->Out(), StartsWith("minka worker listens on 0.0.0.0:"));
}

TEST_F(WorkerCommandTest, EndsBySignalsWithoutComplaint) {
  for (const int signal : {SIGTERM, SIGINT}) {
    const auto worker = StartWorker("worker");
    worker->Signal(signal);
    EXPECT_EQ(worker->Wait(seconds(5)), 0);
    EXPECT_EQ(worker->Err(), "");
  }
}

TEST_F(WorkerCommandTest, WorkersAreListed) {
  const auto worker = StartWorker("worker");
  const std::string address = AddressOf(*worker);
  WriteHosts({address, kNobody}, 2);
  const Outcome table = Run("workers --hosts hosts.json");
  EXPECT_EQ(table.exit_code, 1);
  EXPECT_THAT(table.out,
              AllOf(StartsWith("worker  address"), HasSubstr(address), HasSubstr("idle\n"),
                    HasSubstr("it cannot be reached; minka worker "
                              "--listen 127.0.0.1:1 on that "
                              "machine starts one\n")));
  EXPECT_EQ(table.err, "minka: 1 of 2 workers cannot be used\n");

  const auto listed = ListWorkers(1);
  EXPECT_EQ(listed[0]["address"], address);
  EXPECT_EQ(listed[0]["num_devices"], 2);
  EXPECT_EQ(listed[0]["state"], "idle");
  EXPECT_GT(listed[0]["num_cpus"], 0);
  EXPECT_GT(listed[0]["memory_bytes"], listed[0]["available_memory_bytes"]);
  EXPECT_THAT(listed[1]["state"], StartsWith("it cannot be reached"));

  Write("other", "open\n");
  WriteHosts({address}, 2, "other");
  EXPECT_EQ(ListWorkers(1)[0]["state"], "wrong token");
  WriteHosts({address}, 2);
  ListWorkers(0);
}

TEST_F(WorkerCommandTest, AWorkerIsBusyWhileARunUsesItAndIdleWhenThatIsGone) {
  const auto first = StartWorker("first"), second = StartWorker("second");
  WriteHosts({AddressOf(*first), AddressOf(*second)}, 1);
  const auto states = [&] {
    const auto listed = ListWorkers(0);
    return listed[0]["state"].get<std::string>() + " " + listed[1]["state"].get<std::string>();
  };
  // Ends without a word to the workers, in the middle of a step.
  const auto run = StartEndlessRun();
  EXPECT_TRUE(Await(kLong, [&] { return states() == "busy busy"; })) << run->Err();
  run->Signal(SIGKILL);
  EXPECT_TRUE(Await(kLong, [&] { return states() == "idle idle"; }));
  const Outcome next = Run(fmt::format(
      "run {} --num-devices 2 --random-inputs 1 --steps 1 --hosts hosts.json --check --json",
      kSmallGpt));
  EXPECT_EQ(next.exit_code, 0) << next.err;
  EXPECT_EQ(nlohmann::json::parse(next.out)["check"], "ok");
  EXPECT_EQ(states(), "idle idle");
}

TEST_F(WorkerCommandTest, AWorkerDoesNotWaitForAnotherThatIsGone) {
  const auto first = StartWorker("first"), second = StartWorker("second");
  WriteHosts({AddressOf(*first), AddressOf(*second)}, 1);
  const auto run = StartEndlessRun();
  EXPECT_TRUE(Await(kLong, [&] { return ListWorkers(0)[1]["state"] == "busy"; }));
  second->Signal(SIGKILL);
  EXPECT_EQ(run->Wait(kLong), 1);
  EXPECT_THAT(run->Err(), HasSubstr(fmt::format("minka: worker 1 at {} does not answer any more",
                                                AddressOf(*second))));
  WriteHosts({AddressOf(*first)}, 1);
  EXPECT_TRUE(Await(kLong, [&] { return ListWorkers(0)[0]["state"] == "idle"; })) << first->Err();
  EXPECT_EQ(first->Out(), fmt::format("minka worker listens on {}\n", AddressOf(*first)));
}

TEST_F(WorkerCommandTest, HostsThatDoNotFitAreRefused) {
  const auto refusal = [&] {
    return ErrorOf(fmt::format(
        "run {} --num-devices 4 --stages 2 --random-inputs 1 --hosts hosts.json", kSmallGpt));
  };
  WriteHosts({kNobody}, 2);
  EXPECT_THAT(refusal(), HasSubstr("hosts.json names 1 workers; the plan has 2 meshes"));
  WriteHosts({kNobody, "127.0.0.1:2"}, 1);
  EXPECT_THAT(refusal(),
              HasSubstr("hosts.json: the worker at 127.0.0.1:1 has 1 devices; mesh 0 has 2"));
  WriteHosts({kNobody, "127.0.0.1:2"}, 2);
  EXPECT_THAT(refusal(), HasSubstr("worker 0 at 127.0.0.1:1 cannot be reached"));
  WriteHosts({kNobody, kNobody}, 2);
  EXPECT_THAT(refusal(), HasSubstr("hosts.json: workers[0] and workers[1] are both 127.0.0.1:1"));
  Write("hosts.json", "{\"token_file\": \"token\", \"workers\": [");
  EXPECT_THAT(refusal(), HasSubstr("hosts.json"));
  Write("hosts.json", "[]");
  EXPECT_THAT(refusal(), HasSubstr("hosts.json: it is no JSON object"));
}

TEST_F(WorkerCommandTest, HostsAndInProcessExcludeEachOther) {
  WriteHosts({kNobody}, 2);
  for (const std::string command : {"run --random-inputs 1", "train --steps 1"}) {
    const Outcome both = Run(command + " gpt-tiny --hosts hosts.json --in-process");
    EXPECT_GT(both.exit_code, 0);
    EXPECT_THAT(both.err, AllOf(HasSubstr("--in-process"), HasSubstr("--hosts")));
  }
}

// One mesh needs one worker, of those that are named the first.
TEST_F(WorkerCommandTest, OneMeshRunsInAWorkerOfTheFile) {
  const auto worker = StartWorker("worker");
  WriteHosts({AddressOf(*worker), kNobody}, 2);
  const Outcome run =
      Run("run gpt-tiny --layers 2 --sequence 32 --cost-model roofline --num-devices 2 --steps 2 "
          "--check --random-inputs 1 --hosts hosts.json --json");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(nlohmann::json::parse(run.out)["check"], "ok");
}

}  // namespace
}  // namespace minka
