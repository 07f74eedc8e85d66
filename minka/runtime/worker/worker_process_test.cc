#include "minka/runtime/worker/worker_process.h"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <future>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/status.h"

namespace minka {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using testing::StartsWith;

constexpr seconds kLong{20};  // what takes longer, never happens

// A shell as a worker.
WorkerProcessOptions Shell(const std::string& script) {
  return {
      .executable = "/bin/sh", .arguments = {"-c", script}, .name = "worker 1", .token = "secret"};
}
constexpr const char* kListen = "echo minka worker listens on here:1; ";

// This program as a worker, which runs one of the tests `InWorker` below.
WorkerProcessOptions Self(const std::string& test) {
  return {
      .arguments = {"--gtest_also_run_disabled_tests", "--gtest_filter=InWorker.DISABLED_" + test},
      .name = "worker 1",
      .token = "secret"};
}

std::unique_ptr<WorkerProcess> Started(WorkerProcessOptions options) {
  auto process = WorkerProcess::Start(std::move(options));
  EXPECT_TRUE(process.ok()) << Message(process.status());
  return process.ok() ? *std::move(process) : nullptr;
}

std::string ErrorOf(WorkerProcessOptions options) {
  return Message(WorkerProcess::Start(std::move(options)).status());
}

// The death of a worker that nobody asked to end.
WorkerDeath DeathOf(
    WorkerProcessOptions options,
    const std::function<void(WorkerProcess&)>& cause = [](WorkerProcess&) {}) {
  std::promise<WorkerDeath> promise;
  std::future<WorkerDeath> death = promise.get_future();
  options.on_death = [&](const WorkerDeath& of_worker) { promise.set_value(of_worker); };
  const auto process = Started(std::move(options));
  if (!process) return {};
  cause(*process);
  EXPECT_EQ(death.wait_for(kLong), std::future_status::ready);
  return death.get();
}

bool IsReapedChild(pid_t pid) { return ::waitpid(pid, nullptr, WNOHANG) == -1 && errno == ECHILD; }

int NumOpenFiles() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return static_cast<int>(std::distance(begin(files), end(files)));
}

TEST(WorkerProcess, SaysWhereItListens) {
  const auto process = Started(Shell("echo hello; echo minka worker listens on 127.0.0.1:17; cat"));
  ASSERT_TRUE(process);
  EXPECT_EQ(process->address(), "127.0.0.1:17");
  EXPECT_EQ(process->name(), "worker 1");
}

TEST(WorkerProcess, OneThatEndsBeforeItListensIsAnError) {
  EXPECT_EQ(
      ErrorOf(Shell("echo not today >&2; exit 3")),
      "worker 1: ended with exit code 3 while it started; the last that it wrote:\nnot today");
  EXPECT_EQ(ErrorOf(Shell("kill -ABRT $$")),
            "worker 1: died of SIGABRT (Aborted) while it started; it wrote nothing");
}

TEST(WorkerProcess, OneThatDoesNotListenInTimeIsAnError) {
  WorkerProcessOptions options = Shell("printf thinking >&2; exec sleep 1000");
  options.start_timeout = milliseconds(300);
  EXPECT_EQ(ErrorOf(options),
            "worker 1: does not listen after 0.3 s; the last that it wrote:\nthinking");
}

TEST(WorkerProcess, NoTimeAtAllIsAnError) {
  WorkerProcessOptions options = Shell("exec sleep 1000");
  options.start_timeout = milliseconds(0);
  EXPECT_THAT(ErrorOf(options), StartsWith("worker 1: does not listen after 0 s; "));
}

TEST(WorkerProcess, WhatCannotBeStartedIsAnError) {
  WorkerProcessOptions options = Shell("");
  options.cpus = {1023};
  EXPECT_EQ(ErrorOf(options),
            "worker 1: '/bin/sh' cannot run on the CPUs wanted: Invalid argument");
  options.cpus = {-1};
  EXPECT_EQ(ErrorOf(options), "worker 1: there is no CPU -1");
  options = {.executable = "/no/such/file"};
  EXPECT_EQ(ErrorOf(options),
            "worker: '/no/such/file' cannot be executed: No such file or directory");
}

TEST(WorkerProcess, ExitCodesAreReported) {
  const WorkerDeath death = DeathOf(Shell(std::string(kListen) + "echo bye >&2; exit 5"));
  EXPECT_EQ(death.exit_code, 5);
  EXPECT_EQ(death.messages, "bye\n");
}

TEST(WorkerProcess, AKillIsNoticedAtOnce) {
  std::chrono::steady_clock::time_point killed;
  const WorkerDeath death =
      DeathOf(Shell(std::string(kListen) + "exec sleep 1000"), [&](WorkerProcess& process) {
        killed = std::chrono::steady_clock::now();
        ::kill(process.pid(), SIGKILL);
      });
  EXPECT_LT(std::chrono::steady_clock::now() - killed, seconds(2));
  EXPECT_EQ(death.exit_code, std::nullopt);
  EXPECT_EQ(ToString(death), "died of SIGKILL (Killed) while it started; it wrote nothing");
}

TEST(WorkerProcess, TheLastThatItWroteIsKept) {
  const WorkerDeath death =
      DeathOf(Shell(std::string(kListen) + "seq 100000 >&2; echo out; printf half >&2; exit 1"));
  EXPECT_LE(death.messages.size(), size_t{64} << 10);
  EXPECT_THAT(death.messages, HasSubstr("\n99999\n100000\n"));
  EXPECT_THAT(death.messages, HasSubstr("out\n"));
  EXPECT_THAT(death.messages, HasSubstr("half\n"));
  EXPECT_THAT(ToString(death), StartsWith("ended with exit code 1 while it started; the last that "
                                          "it wrote:\n"));
}

TEST(WorkerProcess, MessagesAreForwardedWhereThatIsWanted) {
  WorkerProcessOptions options = Shell(std::string(kListen) + "echo one >&2; echo two >&2");
  testing::internal::CaptureStderr();
  DeathOf(options);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  options.forwards_messages = true;
  testing::internal::CaptureStderr();
  DeathOf(options);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("worker 1: one\nworker 1: two\n"));
}

TEST(WorkerProcess, AnEndThatIsAskedForIsNoDeath) {
  WorkerProcessOptions options = Shell(std::string(kListen) + "cat");
  options.on_death = [](const WorkerDeath& death) { ADD_FAILURE() << ToString(death); };
  auto process = Started(options);
  ASSERT_TRUE(process);
  pid_t pid = process->pid();
  const auto begin = std::chrono::steady_clock::now();
  process.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, milliseconds(900));
  EXPECT_TRUE(IsReapedChild(pid));

  process = Started(options);
  ASSERT_TRUE(process);
  pid = process->pid();
  process->Kill();
  EXPECT_TRUE(IsReapedChild(pid));
  process->Kill();
}

TEST(WorkerProcess, OneThatDoesNotWantToEndIsKilled) {
  auto process =
      Started(Shell(std::string("trap '' TERM INT HUP; ") + kListen + "exec sleep 1000"));
  ASSERT_TRUE(process);
  const pid_t pid = process->pid();
  const auto begin = std::chrono::steady_clock::now();
  process.reset();
  const auto elapsed = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(elapsed, milliseconds(900));
  EXPECT_LT(elapsed, seconds(10));
  EXPECT_TRUE(IsReapedChild(pid));
}

// What a worker starts may keep its pipes open.
TEST(WorkerProcess, ADeathIsNoticedWhileOthersHoldItsPipes) {
  const WorkerDeath death = DeathOf(Shell(std::string(kListen) + "sleep 3 & exit 4"));
  EXPECT_EQ(death.exit_code, 4);
}

// Others can read a process's arguments and environment.
TEST(WorkerProcess, TheTokenComesByStandardInputAlone) {
  const auto process = Started(Shell("read token; echo minka worker listens on $token; cat"));
  ASSERT_TRUE(process);
  EXPECT_EQ(process->address(), "secret");
  const WorkerDeath death = DeathOf(Shell(
      std::string(kListen) + "cat /proc/$$/cmdline /proc/$$/environ | grep -c 'sec[r]et' >&2"));
  EXPECT_EQ(death.messages, "0\n");
}

// Looked at without a pipe or a folder that the shell itself would hold open.
TEST(WorkerProcess, FilesOfTheDriverStayWithIt) {
  std::vector<FileDescriptor> inheritable;
  for (int i = 0; i < 20; ++i) inheritable.emplace_back(::dup(STDERR_FILENO));
  ASSERT_GE(inheritable.back().number(), 20);
  const WorkerDeath death = DeathOf(
      Shell(std::string(kListen) +
            "file=0; while [ $file -lt 60 ]; do [ -e /proc/$$/fd/$file ] && open=\"$open $file\"; "
            "file=$((file + 1)); done; echo \"$open\" >&2"));
  EXPECT_EQ(death.messages, " 0 1 2 3 4 5\n");
}

TEST(WorkerProcess, TheEnvironmentIsThisOnesWithChanges) {
  ASSERT_EQ(::setenv("MINKA_TEST_KEPT", "kept", 1), 0);
  ASSERT_EQ(::setenv("MINKA_TEST_CHANGED", "old", 1), 0);
  ASSERT_EQ(::setenv("MINKA_TEST_REMOVED", "old", 1), 0);
  WorkerProcessOptions options = Shell(
      "echo minka worker listens on $MINKA_TEST_KEPT $MINKA_TEST_CHANGED $MINKA_TEST_ADDED "
      "${MINKA_TEST_REMOVED-gone}");
  options.environment = {{"MINKA_TEST_CHANGED", "new"},
                         {"MINKA_TEST_ADDED", "added"},
                         {"MINKA_TEST_REMOVED", std::nullopt}};
  const auto process = Started(options);
  ASSERT_TRUE(process);
  EXPECT_EQ(process->address(), "kept new added gone");
}

// A group of its own, default signals and the CPUs wanted.
TEST(WorkerProcess, TheDriversTerminalAndSignalsAreNotTheWorkers) {
  cpu_set_t allowed;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  int cpu = 0;
  while (!CPU_ISSET(cpu, &allowed)) ++cpu;
  ::signal(SIGUSR1, SIG_IGN);
  WorkerProcessOptions options = Shell(
      "echo minka worker listens on $(grep -E 'SigIgn|SigBlk|Cpus_allowed_list' "
      "/proc/$$/status | tr '\\n\\t' '  '); cat");
  options.cpus = {cpu};
  const auto process = Started(options);
  ::signal(SIGUSR1, SIG_DFL);
  ASSERT_TRUE(process);
  EXPECT_EQ(::getpgid(process->pid()), process->pid());
  uint64_t blocked = 0, ignored = 0;
  int allowed_cpu = -1;
  ASSERT_EQ(std::sscanf(process->address().c_str(),
                        "SigBlk: %" SCNx64 " SigIgn: %" SCNx64 " Cpus_allowed_list: %d", &blocked,
                        &ignored, &allowed_cpu),
            3)
      << process->address();
  EXPECT_EQ(blocked, 0u);
  // The C library keeps signals 32 and 33 to itself, and whoever started the test may ignore them.
  EXPECT_EQ(ignored & ~(uint64_t{3} << 31), 0u);
  EXPECT_EQ(allowed_cpu, cpu);
}

TEST(WorkerProcess, StartsLeaveNothingBehind) {
  Started(Shell(std::string(kListen) + "exec sleep 1000"))->Kill();
  const int num_files = NumOpenFiles();
  for (int i = 0; i < 50; ++i) {
    const auto process = Started(Shell(std::string(kListen) + "exec sleep 1000"));
    ASSERT_TRUE(process);
    process->Kill();
    ASSERT_TRUE(IsReapedChild(process->pid()));
  }
  EXPECT_EQ(NumOpenFiles(), num_files);
  // No child at all, not even one that nobody knows.
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

TEST(WorkerProcess, SeveralMayStartAndEndAtOnce) {
  std::vector<std::future<std::unique_ptr<WorkerProcess>>> starting;
  for (int i = 0; i < 8; ++i) {
    starting.push_back(std::async(std::launch::async,
                                  [] { return Started(Shell(std::string(kListen) + "cat")); }));
  }
  std::vector<std::unique_ptr<WorkerProcess>> processes;
  for (auto& process : starting) processes.push_back(process.get());
  // They live on, though the threads that asked for them have ended.
  std::this_thread::sleep_for(milliseconds(50));
  for (const auto& process : processes) {
    ASSERT_TRUE(process);
    EXPECT_EQ(::kill(process->pid(), 0), 0);
    process->AskToEnd();
  }
}

TEST(WorkerProcess, ADeadWorkersProgressIsKnown) {
  WorkerProcessOptions options = Self("NotesProgressAndDies");
  const WorkerDeath death = DeathOf(options);
  EXPECT_THAT(ToString(death),
              StartsWith("died of SIGKILL (Killed) at step 12, instruction 7 of program 3; "));
}

TEST(WorkerProcess, AWorkerReadsItsTokenAndEndsWithItsInput) {
  auto process = Started(Self("AnswersItsToken"));
  ASSERT_TRUE(process);
  EXPECT_EQ(process->address(), "secret");
  EXPECT_EQ(process->progress().activity, WorkerActivity::kWaiting);
  const auto begin = std::chrono::steady_clock::now();
  process.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, milliseconds(900));
}

TEST(WorkerProcess, AWorkerDiesWithItsDriver) {
  const auto driver = Started(Self("StartsAWorkerAndWaits"));
  ASSERT_TRUE(driver);
  pid_t pid = 0;
  const std::string& text = driver->address();
  std::from_chars(text.data(), text.data() + text.size(), pid);
  ASSERT_GT(pid, 0);
  const FileDescriptor worker(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  ASSERT_GE(worker.number(), 0);
  driver->Kill();
  pollfd poll = {worker.number(), POLLIN, 0};
  EXPECT_EQ(::poll(&poll, 1, 10'000), 1);
}

// What runs in workers of the tests above.

TEST(InWorker, DISABLED_NotesProgressAndDies) {
  ProgressPage page = ProgressPage::OfThisWorker().value();
  page.NoteStep(3, 12);
  page.NoteInstruction(7);
  AnnounceAddress("here:1");
  ::raise(SIGKILL);
}

TEST(InWorker, DISABLED_AnswersItsToken) {
  ProgressPage page = ProgressPage::OfThisWorker().value();
  page.Note(WorkerActivity::kWaiting);
  AnnounceAddress(ReadToken().value());
  AwaitEndOfInput();
}

TEST(InWorker, DISABLED_StartsAWorkerAndWaits) {
  // Neither the end of its input nor a signal ends it.
  const auto process =
      Started(Shell(std::string("trap '' TERM INT HUP; ") + kListen + "exec sleep 1000"));
  AnnounceAddress(std::to_string(process->pid()));
  AwaitEndOfInput();
}

}  // namespace
}  // namespace minka
