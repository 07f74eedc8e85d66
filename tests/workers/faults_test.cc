// Workers that die, are silent or are not those wanted: the driver says so within seconds, and
// nothing is left.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "minka/base/check.h"
#include "minka/base/file.h"
#include "minka/runtime/mesh/step_runner.h"
#include "minka/runtime/worker/worker_process.h"
#include "small_pipeline.h"
#include "tests/support/temporary_folder.h"

namespace minka {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr int kMeshes = 3;
// Steps until a fault is noticed, at most.
constexpr int kMostSteps = 200'000;
constexpr auto kNoticed = std::chrono::seconds(5);

std::set<std::string> SharedMemory() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    names.insert(entry.path().filename());
  }
  return names;
}

// What other tests have there at this time goes with their processes.
void ExpectNoMoreSharedMemoryThan(const std::set<std::string>& before) {
  const Clock::time_point deadline = Clock::now() + std::chrono::minutes(1);
  for (const std::string& name : SharedMemory()) {
    if (before.contains(name)) continue;
    while (SharedMemory().contains(name)) {
      if (Clock::now() > deadline) {
        ADD_FAILURE() << "shared memory left over: " << name;
        break;
      }
      std::this_thread::sleep_for(milliseconds(10));
    }
  }
}

const SmallPipeline& Small() {
  static const SmallPipeline small = PlanSmallPipeline(kMeshes);
  return small;
}

// A job, and a fault that comes to one of its workers at some time.
struct Disturbed {
  absl::Status status;  // what the driver is told
  int worker = 0;
  std::chrono::duration<double> until_told{};
};

// From loading on, until the driver is told.
absl::Status RunUntilTold(PlannedPipeline planned, Session& session) {
  auto executor = CompilePipeline(planned, session);
  if (!executor.ok()) return executor.status();
  StepRunner runner(planned.prepared, *std::move(executor));
  const ParameterValues values = Small().Values();
  ASSIGN_OR_RETURN(State state, runner.CreateState(values));
  for (int step = 0; step < kMostSteps; ++step) {
    ASSIGN_OR_RETURN(StepOutput output, runner.Run(std::move(state), values));
    state = std::move(output.state);
  }
  return absl::OkStatus();
}

Disturbed Disturb(int signal, uint64_t seed) {
  const std::set<std::string> before = SharedMemory();
  std::mt19937_64 random(seed);
  auto session = StartWorkers(Small().planned.num_devices(), {.binary = MINKA_BINARY});
  MINKA_CHECK(session.ok(), "{}", Message(session.status()));
  Workers& workers = dynamic_cast<WorkersSession&>(**session).workers();
  std::vector<int> pids;
  for (int i = 0; i < kMeshes; ++i) pids.push_back(workers.pid(i));
  Disturbed out{.worker = static_cast<int>(random() % kMeshes)};
  // Compiling takes about as long as the rest of the range.
  const milliseconds when(random() % 2000);
  Clock::time_point sent;
  std::thread fault([&] {
    std::this_thread::sleep_for(when);
    sent = Clock::now();
    kill(pids[out.worker], signal);
  });
  out.status = RunUntilTold(Small().planned, **session);
  const Clock::time_point told = Clock::now();
  fault.join();
  out.until_told = told - sent;
  session->reset();
  for (const int pid : pids) EXPECT_NE(kill(pid, 0), 0) << "worker left over: " << pid;
  ExpectNoMoreSharedMemoryThan(before);
  return out;
}

// MINKA_TEST_KILLS=50 for more.
int NumKills() {
  const char* const text = std::getenv("MINKA_TEST_KILLS");
  return text == nullptr ? 5 : std::atoi(text);
}

TEST(Faults, AKilledWorkerIsNamedAtOnce) {
  for (int i = 0; i < NumKills(); ++i) {
    const Disturbed out = Disturb(SIGKILL, static_cast<uint64_t>(i) + 1);
    EXPECT_EQ(out.status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(Message(out.status), AllOf(StartsWith(fmt::format("worker {}", out.worker)),
                                           HasSubstr("died of SIGKILL (Killed)")));
    EXPECT_LT(out.until_told, kNoticed);
    fmt::print("{:.3f} s: {}\n", out.until_told.count(), Message(out.status));
  }
}

TEST(Faults, AnAbortIsNamed) {
  EXPECT_THAT(Message(Disturb(SIGABRT, 3).status), HasSubstr("died of SIGABRT (Aborted)"));
}

TEST(Faults, AWorkerThatIsSilentIsGivenUp) {
  const Disturbed out = Disturb(SIGSTOP, 4);
  EXPECT_THAT(Message(out.status), HasSubstr("does not answer any more"));
  fmt::print("{:.3f} s: {}\n", out.until_told.count(), Message(out.status));
}

TEST(Faults, APluginThatAbortsEndsItsWorkerOnly) {
  const auto session = StartWorkers(Small().planned.num_devices(),
                                    {.binary = MINKA_BINARY, .plugin_path = ABORTING_PLUGIN});
  EXPECT_THAT(Message(session.status()),
              AllOf(HasSubstr("died of SIGABRT"), HasSubstr("while it opened")));
}

TEST(Faults, ABinaryThatIsNoWorkerIsNamed) {
  const auto session = StartWorkers(Small().planned.num_devices(), {.binary = "/bin/true"});
  EXPECT_THAT(Message(session.status()), HasSubstr("ended with exit code 0"));
}

// Workers that run already, as on other machines.
class ConnectTest : public testing::Test {
 protected:
  ConnectTest() : token_file_(TemporaryPath("token")) {
    MINKA_CHECK(WriteFile(token_file_, "sesame\n").ok());
  }

  std::unique_ptr<WorkerProcess> Serve(const std::string& listen = "127.0.0.1:0") const {
    auto process = TryToServe(listen);
    MINKA_CHECK(process.ok(), "{}", Message(process.status()));
    return *std::move(process);
  }

  absl::StatusOr<std::unique_ptr<WorkerProcess>> TryToServe(const std::string& listen) const {
    return WorkerProcess::Start(
        {.executable = MINKA_BINARY,
         .arguments = {"worker", "--listen", listen, "--token-file", token_file_}});
  }

  static absl::StatusOr<std::shared_ptr<Workers>> Connect(const std::string& address,
                                                          const std::string& token = "sesame",
                                                          const std::string& version = "0.1.0") {
    return Workers::Connect(
        {.workers = {{.address = address, .num_devices = 1}}, .token = token, .version = version});
  }

  const std::string token_file_;
};

TEST_F(ConnectTest, TokenAndVersionMustBeTheWorkers) {
  const auto worker = Serve();
  EXPECT_THAT(Message(Connect(worker->address(), "open").status()), HasSubstr("wrong token"));
  EXPECT_THAT(Message(Connect(worker->address(), "sesame", "0.0.9").status()),
              HasSubstr("the worker is minka 0.1.0, its driver 0.0.9"));
  EXPECT_THAT(Message(AskAboutWorker(worker->address(), "open").status()),
              HasSubstr("wrong token"));
  EXPECT_EQ(AskAboutWorker(worker->address(), "sesame")->version(), "0.1.0");
}

TEST_F(ConnectTest, AWorkerServesOneDriverAfterTheOther) {
  const auto worker = Serve();
  auto first = Connect(worker->address());
  ASSERT_TRUE(first.ok()) << Message(first.status());
  EXPECT_TRUE(AskAboutWorker(worker->address(), "sesame")->is_busy());
  EXPECT_THAT(Message(Connect(worker->address()).status()), HasSubstr("serves another driver"));
  first->reset();
  for (int i = 0; i < 100 && AskAboutWorker(worker->address(), "sesame")->is_busy(); ++i) {
    std::this_thread::sleep_for(milliseconds(50));
  }
  const auto second = Connect(worker->address());
  EXPECT_TRUE(second.ok()) << Message(second.status());
}

TEST_F(ConnectTest, APortThatIsTakenIsNamed) {
  const auto worker = Serve();
  EXPECT_THAT(Message(TryToServe(worker->address()).status()),
              HasSubstr("cannot listen on " + worker->address()));
}

TEST_F(ConnectTest, WhatIsNotThereCannotBeReached) {
  std::string address;
  {
    const auto worker = Serve();
    address = worker->address();
  }
  EXPECT_THAT(Message(Connect(address).status()), HasSubstr("cannot be reached"));
}

TEST_F(ConnectTest, ADriverIsToldWhenAWorkerIsGone) {
  auto worker = Serve();
  const auto workers = Connect(worker->address());
  ASSERT_TRUE(workers.ok()) << Message(workers.status());
  worker->Kill();
  worker::Request request;
  request.mutable_measure();
  const auto answer = (*workers)->Ask(0, std::move(request));
  (*workers)->Flush();
  EXPECT_THAT(Message((*workers)->Wait(*answer).status()), HasSubstr("does not answer any more"));
}

}  // namespace
}  // namespace minka
