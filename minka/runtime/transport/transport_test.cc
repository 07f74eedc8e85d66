#include "minka/runtime/transport/transport.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <ucs/debug/log_def.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/runtime/transport/testing/in_process_transport.h"
#include "minka/runtime/transport/ucx_transport.h"

namespace minka {
namespace {

using ::testing::Each;
using ::testing::IsEmpty;

// No wait of a test is longer: SIGALRM ends the program.
constexpr unsigned kMaxSeconds = 120;

constexpr size_t kMiB = size_t{1} << 20;
constexpr uint64_t kNonce = 0x0123456789abcdef;

using Bytes = std::vector<char>;
using Ends = std::vector<std::unique_ptr<Transport>>;

std::shared_ptr<const Bytes> Pattern(size_t num_bytes, uint64_t seed = 1) {
  auto bytes = std::make_shared<Bytes>(num_bytes);
  std::minstd_rand random(static_cast<unsigned>(seed + 1));
  for (char& byte : *bytes) byte = static_cast<char>(random());
  return bytes;
}

absl::Status Send(Transport& from, int peer, uint64_t tag,
                  const std::shared_ptr<const Bytes>& bytes) {
  return from.Send(peer, tag, *bytes, bytes);
}

std::unique_ptr<PendingReceive> Receive(Transport& at, int peer, uint64_t tag, Bytes& into) {
  auto pending = at.Receive(peer, tag, into);
  MINKA_CHECK(pending.ok(), "{}", Message(pending.status()));
  return *std::move(pending);
}

// Receives at once.
Bytes Received(Transport& at, int peer, uint64_t tag, size_t num_bytes) {
  Bytes bytes(num_bytes);
  const absl::Status status = Receive(at, peer, tag, bytes)->Wait();
  EXPECT_TRUE(status.ok()) << status;
  return bytes;
}

Ends MakeUcxEnds(int num_peers) {
  std::vector<std::unique_ptr<UcxTransport>> ends;
  std::vector<std::string> addresses;
  for (int peer = 0; peer < num_peers; ++peer) {
    auto end = UcxTransport::Create({.peer = peer, .num_peers = num_peers, .job_nonce = kNonce});
    MINKA_CHECK(end.ok(), "{}", Message(end.status()));
    addresses.push_back((*end)->address());
    ends.push_back(*std::move(end));
  }
  for (const auto& end : ends) {
    const absl::Status status = end->Connect(addresses);
    MINKA_CHECK(status.ok(), "{}", Message(status));
  }
  return {std::make_move_iterator(ends.begin()), std::make_move_iterator(ends.end())};
}

Ends MakeUcxEndsByTcp(int num_peers) {
  setenv("UCX_TLS", "self,tcp", /*overwrite=*/1);
  Ends ends = MakeUcxEnds(num_peers);
  unsetenv("UCX_TLS");
  return ends;
}

class EveryTest : public testing::Test {
 protected:
  void SetUp() override { alarm(kMaxSeconds); }
  void TearDown() override { alarm(0); }
};

struct Kind {
  std::string name;
  Ends (*make_ends)(int num_peers);
};

class TransportTest : public EveryTest, public testing::WithParamInterface<Kind> {
 protected:
  static Ends MakeEnds(int num_peers) { return GetParam().make_ends(num_peers); }
};

INSTANTIATE_TEST_SUITE_P(All, TransportTest,
                         testing::Values(Kind{"InProcess", MakeInProcessTransports},
                                         Kind{"Ucx", MakeUcxEnds},
                                         Kind{"UcxByTcp", MakeUcxEndsByTcp}),
                         [](const auto& kind) { return kind.param.name; });

void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

TEST_P(TransportTest, BytesOfAnySizeArriveWhoeverIsFirst) {
  const Ends ends = MakeEnds(2);
  uint64_t tag = 0;
  for (const size_t num_bytes : {size_t{0}, size_t{1}, size_t{1000}, 4 * kMiB, 64 * kMiB}) {
    const auto bytes = Pattern(num_bytes);
    ASSERT_TRUE(Send(*ends[0], 1, ++tag, bytes).ok());
    EXPECT_TRUE(Received(*ends[1], 0, tag, num_bytes) == *bytes) << num_bytes;

    Bytes destination(num_bytes);
    const auto pending = Receive(*ends[1], 0, ++tag, destination);
    ASSERT_TRUE(Send(*ends[0], 1, tag, bytes).ok());
    EXPECT_TRUE(pending->Wait().ok());
    EXPECT_TRUE(pending->Wait().ok());
    EXPECT_TRUE(destination == *bytes) << num_bytes;
  }
}

TEST_P(TransportTest, AProcessSendsToItself) {
  const Ends ends = MakeEnds(2);
  for (const size_t num_bytes : {size_t{0}, size_t{5}, 4 * kMiB}) {
    const auto bytes = Pattern(num_bytes);
    ASSERT_TRUE(Send(*ends[1], 1, 3, bytes).ok());
    EXPECT_TRUE(Received(*ends[1], 1, 3, num_bytes) == *bytes);
  }
}

TEST_P(TransportTest, TagsAreMatchedInWhateverOrder) {
  constexpr int kNumTags = 300;
  const Ends ends = MakeEnds(2);
  std::vector<int> order(kNumTags);
  std::iota(order.begin(), order.end(), 0);
  std::minstd_rand random(7);
  // From short ones to such as need a handshake.
  const auto size_of = [](int i) { return static_cast<size_t>(i) * i + 1; };
  // The highest bits of tags count, too.
  const auto tag_of = [](int i) { return (uint64_t{1} << kTagBits) - 1 - i; };
  std::vector<Bytes> destinations;
  std::vector<std::unique_ptr<PendingReceive>> pending(kNumTags);
  for (int i = 0; i < kNumTags; ++i) destinations.emplace_back(size_of(i));

  const auto receive_half = [&](int begin, int end) {
    for (int i = begin; i < end; ++i) {
      pending[order[i]] = Receive(*ends[1], 0, tag_of(order[i]), destinations[order[i]]);
    }
  };
  std::ranges::shuffle(order, random);
  receive_half(0, kNumTags / 2);
  std::vector<int> send_order = order;
  std::ranges::shuffle(send_order, random);
  for (const int i : send_order) {
    ASSERT_TRUE(Send(*ends[0], 1, tag_of(i), Pattern(size_of(i), i)).ok());
  }
  receive_half(kNumTags / 2, kNumTags);
  for (int i = 0; i < kNumTags; ++i) {
    ASSERT_TRUE(pending[i]->Wait().ok());
    EXPECT_TRUE(destinations[i] == *Pattern(size_of(i), i)) << i;
  }
}

TEST_P(TransportTest, OfEqualTagsTheFirstSentMeetsTheFirstExpected) {
  const Ends ends = MakeEnds(2);
  constexpr int kNumMessages = 20;
  const auto size_of = [](int i) { return i % 2 == 0 ? 100 * kMiB / 1000 : size_t{10}; };
  const auto send_all = [&] {
    for (int i = 0; i < kNumMessages; ++i) {
      ASSERT_TRUE(Send(*ends[0], 1, 9, Pattern(size_of(i), i)).ok());
    }
  };
  send_all();
  for (int i = 0; i < kNumMessages; ++i) {
    EXPECT_TRUE(Received(*ends[1], 0, 9, size_of(i)) == *Pattern(size_of(i), i)) << i;
  }

  std::vector<Bytes> destinations;
  for (int i = 0; i < kNumMessages; ++i) destinations.emplace_back(size_of(i));
  std::vector<std::unique_ptr<PendingReceive>> pending;
  for (Bytes& destination : destinations) {
    pending.push_back(Receive(*ends[1], 0, 9, destination));
  }
  send_all();
  for (int i = 0; i < kNumMessages; ++i) {
    ASSERT_TRUE(pending[i]->Wait().ok());
    EXPECT_TRUE(destinations[i] == *Pattern(size_of(i), i)) << i;
  }
}

TEST_P(TransportTest, SendersAreToldApart) {
  const Ends ends = MakeEnds(3);
  for (const int sender : {0, 1, 2}) {
    ASSERT_TRUE(Send(*ends[sender], 2, 5, Pattern(100, sender)).ok());
  }
  for (const int sender : {2, 0, 1}) {
    EXPECT_EQ(Received(*ends[2], sender, 5, 100), *Pattern(100, sender));
  }
}

TEST_P(TransportTest, ManyThreadsShareAnEnd) {
  constexpr int kNumThreads = 4, kNumMessages = 50;
  const Ends ends = MakeEnds(2);
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < kNumThreads; ++thread) {
    const auto tag_of = [thread](int i) { return static_cast<uint64_t>(thread) << 20 | i; };
    for (const int self : {0, 1}) {
      threads.emplace_back([&ends, tag_of, self] {
        for (int i = 0; i < kNumMessages; ++i) {
          const size_t num_bytes = size_t{1} << (i % 18);
          EXPECT_TRUE(Send(*ends[self], 1 - self, tag_of(i), Pattern(num_bytes, tag_of(i))).ok());
          EXPECT_TRUE(Received(*ends[self], 1 - self, tag_of(i), num_bytes) ==
                      *Pattern(num_bytes, tag_of(i)));
        }
      });
    }
  }
}

TEST_P(TransportTest, AMessageOfAnotherSizeIsRefusedWithBothSizes) {
  struct Sizes {
    size_t sent, expected;
  };
  const Ends ends = MakeEnds(2);
  for (const auto& [sent, expected] :
       {Sizes{8, 4}, Sizes{4, 8}, Sizes{0, 1}, Sizes{1, 0}, Sizes{20000, 100}, Sizes{100, 20000},
        Sizes{4 * kMiB, 8}, Sizes{8, 4 * kMiB}, Sizes{4 * kMiB, 2 * kMiB},
        Sizes{2 * kMiB, 4 * kMiB}}) {
    for (const bool is_expected_first : {true, false}) {
      Bytes destination(expected);
      std::unique_ptr<PendingReceive> pending;
      if (is_expected_first) pending = Receive(*ends[1], 0, 77, destination);
      ASSERT_TRUE(Send(*ends[0], 1, 77, Pattern(sent)).ok());
      if (!is_expected_first) pending = Receive(*ends[1], 0, 77, destination);
      const absl::Status status = pending->Wait();
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
      EXPECT_EQ(Message(status),
                fmt::format("peer 0 sent {} bytes with tag 77, {} were expected", sent, expected));
      EXPECT_EQ(pending->Wait(), status);
    }
  }
  // The refused ones are gone.
  ASSERT_TRUE(Send(*ends[0], 1, 77, Pattern(10)).ok());
  EXPECT_EQ(Received(*ends[1], 0, 77, 10), *Pattern(10));
}

TEST_P(TransportTest, PeersAndTagsOutOfRangeAreRefused) {
  const Ends ends = MakeEnds(2);
  Bytes destination(1);
  const auto bytes = Pattern(1);
  const uint64_t long_tag = uint64_t{1} << kTagBits;
  for (const absl::Status& status :
       {Send(*ends[0], 2, 0, bytes), ends[0]->Receive(2, 0, destination).status()}) {
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_EQ(Message(status), "no peer 2: the job has 2");
  }
  EXPECT_EQ(Message(Send(*ends[0], -1, 0, bytes)), "no peer -1: the job has 2");
  for (const absl::Status& status :
       {Send(*ends[0], 1, long_tag, bytes), ends[0]->Receive(1, long_tag, destination).status()}) {
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_EQ(Message(status), "tag 1099511627776 has more than 40 bits");
  }
}

TEST_P(TransportTest, BytesThatAreOutAreLetGo) {
  const Ends ends = MakeEnds(2);
  for (const size_t num_bytes : {size_t{10}, 4 * kMiB}) {
    auto bytes = Pattern(num_bytes);
    const std::weak_ptr<const Bytes> owner = bytes;
    ASSERT_TRUE(Send(*ends[0], 1, 1, bytes).ok());
    bytes.reset();
    Received(*ends[1], 0, 1, num_bytes);
    while (!owner.expired()) std::this_thread::yield();
  }
}

TEST_P(TransportTest, AnOwnerThatIsLetGoOfMaySend) {
  const Ends ends = MakeEnds(2);
  const auto answer = Pattern(10);
  const std::thread::id test = std::this_thread::get_id();
  std::vector<size_t> sizes(100, 10);
  sizes.push_back(4 * kMiB);
  for (const size_t num_bytes : sizes) {
    const auto bytes = Pattern(num_bytes);
    std::shared_ptr<const void> owner(bytes.get(), [&, bytes](const void*) {
      EXPECT_TRUE(Send(*ends[0], 1, /*tag=*/2, answer).ok());
      if (std::this_thread::get_id() != test) return;
      // Within Send; what comes back needs this end's other threads.
      EXPECT_TRUE(Send(*ends[0], 0, /*tag=*/3, answer).ok());
      EXPECT_TRUE(Received(*ends[0], 0, /*tag=*/3, 10) == *answer);
    });
    ASSERT_TRUE(ends[0]->Send(1, /*tag=*/1, *bytes, std::move(owner)).ok());
    EXPECT_TRUE(Received(*ends[1], 0, /*tag=*/1, num_bytes) == *bytes);
  }
  for (size_t i = 0; i < sizes.size(); ++i)
    EXPECT_TRUE(Received(*ends[1], 0, /*tag=*/2, 10) == *answer);
}

TEST_P(TransportTest, CancelEndsWaitsAndAllThatComesAfter) {
  const Ends ends = MakeEnds(2);
  Bytes small(10), large(4 * kMiB);
  const auto first = Receive(*ends[0], 1, 1, small);
  const auto second = Receive(*ends[0], 1, 2, large);
  std::jthread canceller([&] { ends[0]->Cancel(); });
  EXPECT_TRUE(absl::IsCancelled(first->Wait()));
  EXPECT_TRUE(absl::IsCancelled(second->Wait()));
  EXPECT_EQ(Message(second->Wait()), "the transport was cancelled");
  canceller.join();
  ends[0]->Cancel();
  EXPECT_TRUE(absl::IsCancelled(Send(*ends[0], 1, 1, Pattern(1))));
  EXPECT_TRUE(absl::IsCancelled(ends[0]->Receive(1, 1, small).status()));
}

TEST_P(TransportTest, CancelEndsWaitsOfSeveralThreads) {
  const Ends ends = MakeEnds(2);
  std::vector<std::jthread> threads;
  for (uint64_t tag = 0; tag < 4; ++tag) {
    threads.emplace_back([&ends, tag] {
      Bytes destination(100);
      const auto pending = ends[0]->Receive(1, tag, destination);
      EXPECT_TRUE(absl::IsCancelled(pending.ok() ? (*pending)->Wait() : pending.status()));
    });
  }
  ends[0]->Cancel();
}

TEST_P(TransportTest, CancelLetsGoOfWhatIsBeingSent) {
  const Ends ends = MakeEnds(2);
  auto bytes = Pattern(4 * kMiB);
  const std::weak_ptr<const Bytes> owner = bytes;
  ASSERT_TRUE(Send(*ends[0], 1, 1, bytes).ok());
  bytes.reset();
  ends[0]->Cancel();
  while (!owner.expired()) std::this_thread::yield();
}

TEST_P(TransportTest, DestructionEndsPendingOperations) {
  Ends ends = MakeEnds(3);
  std::vector<Bytes> destinations(3, Bytes(4 * kMiB));
  std::vector<std::unique_ptr<PendingReceive>> pending;
  for (int peer = 0; peer < 3; ++peer) {
    ASSERT_TRUE(Send(*ends[0], peer, 1, Pattern(4 * kMiB)).ok());
    ASSERT_TRUE(Send(*ends[0], peer, 2, Pattern(10)).ok());
    pending.push_back(Receive(*ends[0], peer, 3, destinations[peer]));
  }
  ends[0].reset();
  for (const auto& receive : pending) EXPECT_TRUE(absl::IsCancelled(receive->Wait()));
  // The others can still talk to each other, and to nobody.
  ASSERT_TRUE(Send(*ends[1], 0, 3, Pattern(4 * kMiB)).ok());
  ASSERT_TRUE(Send(*ends[1], 2, 4, Pattern(4 * kMiB)).ok());
  EXPECT_TRUE(Received(*ends[2], 1, 4, 4 * kMiB) == *Pattern(4 * kMiB));
}

TEST_P(TransportTest, ADroppedReceiveLeavesTheMessageToTheNext) {
  const Ends ends = MakeEnds(2);
  for (const size_t num_bytes : {size_t{10}, 4 * kMiB}) {
    Bytes dropped(num_bytes), kept(num_bytes);
    Receive(*ends[1], 0, 1, dropped).reset();
    const auto pending = Receive(*ends[1], 0, 1, kept);
    ASSERT_TRUE(Send(*ends[0], 1, 1, Pattern(num_bytes)).ok());
    ASSERT_TRUE(pending->Wait().ok());
    EXPECT_TRUE(kept == *Pattern(num_bytes));
    EXPECT_THAT(dropped, Each(0));
  }
}

TEST_P(TransportTest, DroppingAReceiveThatIsUnderWayEndsTheWriting) {
  const Ends ends = MakeEnds(2);
  for (uint64_t tag = 0; tag < 20; ++tag) {
    Bytes destination(8 * kMiB);
    auto pending = Receive(*ends[1], 0, tag, destination);
    ASSERT_TRUE(Send(*ends[0], 1, tag, Pattern(8 * kMiB)).ok());
    pending.reset();
    const Bytes before = destination;
    ASSERT_TRUE(Send(*ends[0], 1, 100, Pattern(1)).ok());
    Received(*ends[1], 0, 100, 1);
    EXPECT_TRUE(destination == before);
  }
}

class UcxTransportTest : public EveryTest {};

TEST_F(UcxTransportTest, OptionsOutOfRangeAreRefused) {
  const auto message = [](const UcxTransportOptions& options) {
    const auto end = UcxTransport::Create(options);
    EXPECT_TRUE(absl::IsInvalidArgument(end.status()));
    return Message(end.status());
  };
  EXPECT_EQ(message({.peer = 0, .num_peers = 0}), "a job of 0 peers: 1 to 4096 are possible");
  EXPECT_EQ(message({.peer = 0, .num_peers = 4097}), "a job of 4097 peers: 1 to 4096 are possible");
  EXPECT_EQ(message({.peer = 2, .num_peers = 2}), "no peer 2: the job has 2");
}

TEST_F(UcxTransportTest, AddressesOfOthersAreRefused) {
  const auto end = UcxTransport::Create({.peer = 0, .num_peers = 1, .job_nonce = 1});
  const auto of_other_job = UcxTransport::Create({.peer = 0, .num_peers = 1, .job_nonce = 2});
  const auto of_other_peer = UcxTransport::Create({.peer = 1, .num_peers = 2, .job_nonce = 1});
  ASSERT_TRUE(end.ok() && of_other_job.ok() && of_other_peer.ok());
  const auto message = [&](const std::vector<std::string>& addresses) {
    const absl::Status status = (*end)->Connect(addresses);
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    return Message(status);
  };
  EXPECT_EQ(message({}), "0 addresses for 1 peers");
  EXPECT_EQ(message({""}), "the address of peer 0 is none: 0 bytes");
  EXPECT_EQ(message({(*of_other_job)->address()}), "the address of peer 0 is one of another job");
  EXPECT_EQ(message({(*of_other_peer)->address()}), "the address of peer 0 is that of peer 1");

  EXPECT_EQ(Message(Send(**end, 0, 1, Pattern(1))), "not connected yet");
  EXPECT_TRUE((*end)->Connect({(*end)->address()}).ok());
  EXPECT_EQ(Message((*end)->Connect({(*end)->address()})), "connected already");
}

TEST_F(UcxTransportTest, AnUnknownInterfaceIsRefused) {
  const auto end = UcxTransport::Create({.peer = 0, .num_peers = 1, .interface = "no_such_device"});
  EXPECT_TRUE(absl::IsNotFound(end.status()));
  EXPECT_EQ(Message(end.status()), "no network device no_such_device; ucx_info -d names all");
}

// The local addresses, in hexadecimal, of this process's TCP sockets that listen.
std::set<std::string> ListeningAddresses() {
  std::set<std::string> inodes, addresses;
  for (const auto& fd : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code closed_meanwhile;
    const std::string target = std::filesystem::read_symlink(fd, closed_meanwhile);
    if (target.starts_with("socket:[")) inodes.insert(target.substr(8, target.size() - 9));
  }
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream lines(table);
    std::string line;
    while (std::getline(lines, line)) {
      std::istringstream words(line);
      std::vector<std::string> fields;
      for (std::string word; words >> word;) fields.push_back(word);
      constexpr size_t kLocal = 1, kState = 3, kInode = 9;
      if (fields.size() <= kInode || fields[kState] != "0A" || !inodes.contains(fields[kInode])) {
        continue;
      }
      addresses.insert(fields[kLocal].substr(0, fields[kLocal].find(':')));
    }
  }
  return addresses;
}

TEST_F(UcxTransportTest, WhatUcxSaysGoesToTheStandardError) {
  const Ends ends = MakeUcxEnds(1);
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  ucs_error("peer %d is gone", 7);
  ucs_log_flush();
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "UCX ERROR: peer 7 is gone\n");
}

TEST_F(UcxTransportTest, OnlyLoopbackIsListenedOnUnlessToldOtherwise) {
  const Ends ends = MakeUcxEnds(2);
  EXPECT_EQ(ListeningAddresses(), std::set<std::string>{"0100007F"});  // 127.0.0.1
}

// Between processes: this program is started again with --child ROLE, and talks to its parent by a
// socket.

constexpr int kChildSocket = 3;

void WriteFrame(int socket, const std::string& bytes) {
  const uint32_t size = static_cast<uint32_t>(bytes.size());
  std::string frame(reinterpret_cast<const char*>(&size), sizeof size);
  frame += bytes;
  MINKA_CHECK(write(socket, frame.data(), frame.size()) == static_cast<ssize_t>(frame.size()));
}

std::string ReadFrame(int socket) {
  uint32_t size = 0;
  MINKA_CHECK(recv(socket, &size, sizeof size, MSG_WAITALL) == sizeof size);
  std::string bytes(size, '\0');
  MINKA_CHECK(recv(socket, bytes.data(), size, MSG_WAITALL) == static_cast<ssize_t>(size));
  return bytes;
}

// Peer `self` of two, connected with the other behind the socket.
std::unique_ptr<UcxTransport> MakeEndOfTwo(int self, int socket) {
  auto end = UcxTransport::Create({.peer = self, .num_peers = 2, .job_nonce = kNonce});
  MINKA_CHECK(end.ok(), "{}", Message(end.status()));
  WriteFrame(socket, (*end)->address());
  std::vector<std::string> addresses(2);
  addresses[self] = (*end)->address();
  addresses[1 - self] = ReadFrame(socket);
  const absl::Status status = (*end)->Connect(addresses);
  MINKA_CHECK(status.ok(), "{}", Message(status));
  return *std::move(end);
}

constexpr size_t kEchoSizes[] = {0, 1, 1000, 100'000, 4 * kMiB, 64 * kMiB};

int RunChild(const std::string& role) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  alarm(kMaxSeconds);
  const std::unique_ptr<UcxTransport> end = MakeEndOfTwo(1, kChildSocket);
  if (role == "echo") {
    for (const size_t num_bytes : kEchoSizes) {
      auto bytes = std::make_shared<Bytes>(Received(*end, 0, num_bytes, num_bytes));
      MINKA_CHECK(Send(*end, 0, num_bytes, std::move(bytes)).ok());
    }
  } else {
    MINKA_CHECK(role == "send_and_hang");
    MINKA_CHECK(Send(*end, 0, 1, Pattern(64 * kMiB)).ok());
    MINKA_CHECK(Send(*end, 0, 2, Pattern(8)).ok());
  }
  // Until the parent has all it wants.
  ReadFrame(kChildSocket);
  return 0;
}

class Child {
 public:
  explicit Child(const std::string& role) {
    int ends[2];
    MINKA_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    socket_ = ends[0];
    std::string program = "/proc/self/exe", option = "--child", argument = role;
    char* arguments[] = {program.data(), option.data(), argument.data(), nullptr};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    // On to itself dup2 would leave it to be closed; fcntl's copy lies above what the child wants.
    const int copy = fcntl(ends[1], F_DUPFD_CLOEXEC, kChildSocket + 1);
    posix_spawn_file_actions_adddup2(&actions, copy, kChildSocket);
    MINKA_CHECK(posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments, environ) == 0);
    posix_spawn_file_actions_destroy(&actions);
    close(copy);
    close(ends[1]);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() { close(socket_); }

  int socket() const { return socket_; }
  pid_t pid() const { return pid_; }
  void Kill() const { kill(pid_, SIGKILL); }
  // What waitpid says.
  int AwaitEnd() const {
    int status = 0;
    MINKA_CHECK(waitpid(pid_, &status, 0) == pid_);
    return status;
  }

 private:
  int socket_ = -1;
  pid_t pid_ = -1;
};

std::set<std::string> SharedMemoryNames() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    names.insert(entry.path().filename());
  }
  return names;
}

// The System V segments that the process made.
std::vector<std::string> SegmentsOf(pid_t pid) {
  std::ifstream lines("/proc/sysvipc/shm");
  std::vector<std::string> segments;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string key, id, permissions, size, creator;
    words >> key >> id >> permissions >> size >> creator;
    if (creator == std::to_string(pid)) segments.push_back(line);
  }
  return segments;
}

// By UCX's choice, shared memory, and by TCP.
class ProcessTest : public EveryTest, public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    EveryTest::SetUp();
    if (GetParam() != std::string("auto")) setenv("UCX_TLS", "self,tcp", /*overwrite=*/1);
    names_before_ = SharedMemoryNames();
  }
  void TearDown() override {
    unsetenv("UCX_TLS");
    // Other programs of this host may have names for a while.
    for (const std::string& name : SharedMemoryNames()) {
      if (names_before_.contains(name)) continue;
      while (SharedMemoryNames().contains(name)) std::this_thread::yield();
    }
    EveryTest::TearDown();
  }

 private:
  std::set<std::string> names_before_;
};

INSTANTIATE_TEST_SUITE_P(All, ProcessTest, testing::Values("auto", "tcp"),
                         [](const auto& kind) { return std::string(kind.param); });

TEST_P(ProcessTest, BytesGoToAnotherProcessAndBack) {
  const Child child("echo");
  {
    const auto end = MakeEndOfTwo(0, child.socket());
    for (const size_t num_bytes : kEchoSizes) {
      const auto bytes = Pattern(num_bytes);
      ASSERT_TRUE(Send(*end, 1, num_bytes, bytes).ok());
      EXPECT_TRUE(Received(*end, 1, num_bytes, num_bytes) == *bytes) << num_bytes;
    }
  }
  WriteFrame(child.socket(), "done");
  EXPECT_EQ(child.AwaitEnd(), 0);
  EXPECT_THAT(SegmentsOf(child.pid()), IsEmpty());
}

TEST_P(ProcessTest, CancelEndsTheWaitForAKilledPeer) {
  const Child child("send_and_hang");
  auto end = MakeEndOfTwo(0, child.socket());
  Received(*end, 1, 2, 8);
  Bytes destination(100), half_sent(64 * kMiB);
  const auto never_sent = Receive(*end, 1, 3, destination);
  child.Kill();
  EXPECT_TRUE(WIFSIGNALED(child.AwaitEnd()));
  const auto sent_by_the_dead = Receive(*end, 1, 1, half_sent);
  std::ignore = Send(*end, 1, 4, Pattern(8));
  std::ignore = Send(*end, 1, 5, Pattern(64 * kMiB));
  std::jthread canceller([&] { end->Cancel(); });
  EXPECT_FALSE(never_sent->Wait().ok());
  EXPECT_FALSE(sent_by_the_dead->Wait().ok());
  canceller.join();
  EXPECT_TRUE(absl::IsCancelled(Send(*end, 1, 6, Pattern(8))));
  EXPECT_THAT(SegmentsOf(child.pid()), IsEmpty());
}

TEST_P(ProcessTest, AKilledPeerIsLostToWhoWaitsForTheRestOfItsMessage) {
  const Child child("send_and_hang");
  const auto end = MakeEndOfTwo(0, child.socket());
  Received(*end, 1, 2, 8);
  child.Kill();
  EXPECT_TRUE(WIFSIGNALED(child.AwaitEnd()));
  Bytes half_sent(64 * kMiB), never_sent(8);
  const auto first = Receive(*end, 1, 1, half_sent);
  const auto second = Receive(*end, 1, 3, never_sent);
  for (PendingReceive* const pending : {first.get(), second.get()}) {
    const absl::Status status = pending->Wait();
    EXPECT_TRUE(absl::IsUnavailable(status));
    EXPECT_THAT(Message(status), testing::StartsWith("lost peer 1: "));
  }
}

TEST_P(ProcessTest, DestructionDoesNotWaitForAKilledPeer) {
  const Child child("send_and_hang");
  auto end = MakeEndOfTwo(0, child.socket());
  Received(*end, 1, 2, 8);
  child.Kill();
  EXPECT_TRUE(WIFSIGNALED(child.AwaitEnd()));
  std::ignore = Send(*end, 1, 5, Pattern(64 * kMiB));
  Bytes destination(100);
  const auto pending = end->Receive(1, 3, destination);
  end.reset();
  EXPECT_FALSE(pending.ok() && (*pending)->Wait().ok());
}

TEST_P(ProcessTest, DestructionDoesNotWaitForAPeerThatNeverConnected) {
  const auto create = [](int peer) {
    return UcxTransport::Create({.peer = peer, .num_peers = 2, .job_nonce = kNonce});
  };
  auto end = create(0);
  const auto silent = create(1);
  ASSERT_TRUE(end.ok() && silent.ok());
  ASSERT_TRUE((*end)->Connect({(*end)->address(), (*silent)->address()}).ok());
  ASSERT_TRUE(Send(**end, 1, 5, Pattern(4 * kMiB)).ok());
  ASSERT_TRUE(Send(**end, 1, 6, Pattern(4)).ok());
  end->reset();
}

}  // namespace
}  // namespace minka

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--child") return minka::RunChild(argv[2]);
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
