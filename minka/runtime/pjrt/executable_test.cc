#include "minka/runtime/pjrt/executable.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/file.h"
#include "minka/base/parallel.h"
#include "minka/base/status.h"
#include "minka/runtime/pjrt/plugin.h"

namespace minka::pjrt {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::string ModuleBytes(const std::string& name) {
  return *ReadFile(fmt::format("{}/{}.pb", MINKA_TESTDATA, name));
}

// Instructions of serialised HloModuleProto bytes with the opcode: field 2 of an instruction is its
// opcode's name.
int CountOpcode(const std::string& module, const std::string& opcode) {
  const std::string field = std::string("\x12") + static_cast<char>(opcode.size()) + opcode;
  int count = 0;
  for (size_t at = module.find(field); at != std::string::npos; at = module.find(field, at + 1))
    ++count;
  return count;
}

template <typename T>
std::string Bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::vector<float> Floats(const Buffer& buffer) {
  const auto bytes = buffer.ToHost();
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  if (!bytes.ok()) return {};
  std::vector<float> values(bytes->size() / sizeof(float));
  std::memcpy(values.data(), bytes->data(), bytes->size());
  return values;
}

class OnCpu : public ::testing::Test {
 protected:
  static Client MakeClient(int num_devices) {
    PrepareEnvironment(Platform::kCpu);
    const auto plugin = Plugin::Load(*FindPlugin({}));
    return *Client::Create(*plugin, {.num_devices = num_devices});
  }

  Buffer Put(int device, const std::vector<float>& values) {
    return *client_.CopyFromHost(device, {ElementType::kF32, {static_cast<int64_t>(values.size())}},
                                 Bytes(values));
  }

  Executable Compile(const std::string& name, const CompileOptions& options = {}) {
    auto executable = Executable::Compile(client_, ModuleBytes(name), options);
    EXPECT_TRUE(executable.ok()) << executable.status();
    return *std::move(executable);
  }

  // State {10, ...} and x {device, ...} on every device.
  void PutAccumulateArguments(int num_devices) {
    for (int device = 0; device < num_devices; ++device) {
      states_.push_back(Put(device, {10, 20, 30, 40}));
      inputs_.push_back(Put(device, std::vector<float>(4, static_cast<float>(device))));
    }
    for (int device = 0; device < num_devices; ++device)
      arguments_.push_back({&states_[device], &inputs_[device]});
  }

  Client client_ = MakeClient(8);
  std::vector<Buffer> states_, inputs_;
  std::vector<std::vector<Buffer*>> arguments_;
};

TEST(ClientOverrides, KeepOperationsWholeWhereDevicesKeepTheCoresBusy) {
  const auto passes = [](int num_devices) {
    return std::get<std::string>(MergeOverrides(RequiredOverrides(Platform::kCpu),
                                                ClientOverrides(Platform::kCpu, num_devices))
                                     .at("xla_disable_hlo_passes"));
  };
  const int num_cores = NumHardwareThreads();
  EXPECT_THAT(passes(num_cores),
              AllOf(HasSubstr("cpu-all-reduce-combiner"), HasSubstr("cpu-parallel-task-assigner")));
  if (num_cores == 1) GTEST_SKIP() << "one core is busy with one device";
  EXPECT_THAT(passes(1), Not(HasSubstr("cpu-parallel-task-assigner")));
}

TEST_F(OnCpu, AllReduceOverEightDevicesGivesEveryDeviceTheSum) {
  const Executable accumulate = Compile("accumulate", {.num_replicas = 8});
  EXPECT_EQ(accumulate.name(), "accumulate");
  EXPECT_THAT(accumulate.devices(), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_EQ(ToString(accumulate.parameter_shape(1)), "f32[4]");
  EXPECT_EQ(accumulate.num_outputs(), 2);
  PutAccumulateArguments(8);
  const auto launch = accumulate.Execute(arguments_);
  ASSERT_TRUE(launch.ok()) << launch.status();
  ASSERT_TRUE(launch->Await().ok());
  for (int device = 0; device < 8; ++device) {
    EXPECT_THAT(Floats(launch->results[device][0]), ElementsAre(38, 48, 58, 68));
    EXPECT_THAT(Floats(launch->results[device][1]), Each(28));
  }
}

TEST_F(OnCpu, ResultsFeedTheNextLaunchWithoutWaiting) {
  const Executable accumulate = Compile("accumulate", {.num_replicas = 8});
  PutAccumulateArguments(8);
  std::vector<Launch> launches;
  for (int step = 0; step < 20; ++step) {
    auto launch = accumulate.Execute(arguments_);
    ASSERT_TRUE(launch.ok()) << launch.status();
    for (int device = 0; device < 8; ++device) {
      states_[device] = std::move(launch->results[device][0]);
      arguments_[device][0] = &states_[device];
    }
  }
  EXPECT_THAT(Floats(states_[7]), ElementsAre(570, 580, 590, 600));
}

TEST_F(OnCpu, ReplicasRunOnTheDevicesNamed) {
  const Executable accumulate = Compile("accumulate", {.num_replicas = 2, .devices = {6, 3}});
  EXPECT_THAT(accumulate.devices(), ElementsAre(6, 3));
  Buffer state6 = Put(6, {0, 0, 0, 0}), x6 = Put(6, {6, 6, 6, 6});
  Buffer state3 = Put(3, {1, 1, 1, 1}), x3 = Put(3, {3, 3, 3, 3});
  const std::vector<std::vector<Buffer*>> arguments = {{&state6, &x6}, {&state3, &x3}};
  const auto launch = accumulate.Execute(arguments);
  ASSERT_TRUE(launch.ok()) << launch.status();
  EXPECT_EQ(launch->results[1][0].device(), 3);
  EXPECT_THAT(Floats(launch->results[0][0]), Each(9));
  EXPECT_THAT(Floats(launch->results[1][0]), Each(10));
}

TEST_F(OnCpu, ADonatedArgumentIsGoneAfterwards) {
  const Executable accumulate = Compile("accumulate", {.num_replicas = 8});
  EXPECT_THAT(accumulate.donated_parameters(), ElementsAre(0));
  PutAccumulateArguments(8);
  ASSERT_TRUE(accumulate.Execute(arguments_).ok());
  EXPECT_EQ(states_[5].state(), BufferState::kDonated);
  EXPECT_EQ(inputs_[5].state(), BufferState::kAlive);
  EXPECT_EQ(Message(states_[5].ToHost().status()),
            "the buffer f32[4] on device 5 was donated to a launch");
  EXPECT_EQ(Message(accumulate.Execute(arguments_).status()),
            "'accumulate', replica 0: argument 0: the buffer was donated to an earlier launch");
}

TEST_F(OnCpu, LentContentsStayWhateverHappensToTheBuffer) {
  Buffer x = Put(0, {1, 2});
  const auto lent = x.Lend(), again = x.Lend();
  ASSERT_TRUE(lent.ok()) << lent.status();
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(lent->bytes.data(), again->bytes.data());  // no copies
  const int64_t live_bytes = client_.meter().live_bytes(0);
  x.Delete();
  EXPECT_EQ(client_.meter().live_bytes(0), live_bytes - 8);
  EXPECT_EQ(Message(x.Lend().status()), "the buffer was deleted");
  EXPECT_EQ(std::string(lent->bytes.begin(), lent->bytes.end()), Bytes<float>({1, 2}));
}

TEST_F(OnCpu, ALaunchDoesNotWriteToWhatIsLent) {
  const Executable accumulate = Compile("accumulate", {.num_replicas = 8});
  PutAccumulateArguments(8);
  const auto lent = states_[3].Lend();
  ASSERT_TRUE(lent.ok()) << lent.status();
  const auto launch = accumulate.Execute(arguments_);
  ASSERT_TRUE(launch.ok()) << launch.status();
  ASSERT_TRUE(launch->Await().ok());
  EXPECT_THAT(Floats(launch->results[3][0]), ElementsAre(38, 48, 58, 68));
  EXPECT_EQ(std::string(lent->bytes.begin(), lent->bytes.end()), Bytes<float>({10, 20, 30, 40}));
}

// Memory aligned as a device wants it, and whether it was given back.
class AlignedMemory {
 public:
  std::shared_ptr<char> Make(const std::string& bytes) {
    char* const memory = static_cast<char*>(std::aligned_alloc(Client::kAlignment, 256));
    std::ranges::copy(bytes, memory);
    auto promise = std::make_shared<std::promise<void>>();
    given_back_ = promise->get_future();
    return {memory, [promise = std::move(promise)](char* no_longer_needed) {
              std::free(no_longer_needed);
              promise->set_value();
            }};
  }
  // A plugin's thread may hold a buffer for a moment longer than a launch takes.
  bool IsGivenBack(std::chrono::seconds wait = std::chrono::seconds(0)) const {
    return given_back_.wait_for(wait) == std::future_status::ready;
  }

 private:
  std::future<void> given_back_;
};

TEST_F(OnCpu, AdoptedMemoryIsTheDevicesUntilItsBufferGoes) {
  AlignedMemory memory;
  std::shared_ptr<char> contents = memory.Make(Bytes<float>({1, 2}));
  const char* const address = contents.get();
  auto buffer = client_.Adopt(5, {ElementType::kF32, {2}}, std::move(contents));
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  EXPECT_EQ(buffer->device(), 5);
  EXPECT_THAT(Floats(*buffer), ElementsAre(1, 2));
  EXPECT_EQ(buffer->Lend()->bytes.data(), address);  // no copies
  EXPECT_EQ(client_.meter().live_bytes(5), 8);
  EXPECT_FALSE(memory.IsGivenBack());
  buffer->Delete();
  EXPECT_TRUE(memory.IsGivenBack(std::chrono::seconds(20)));
  EXPECT_EQ(client_.meter().live_bytes(5), 0);
}

TEST_F(OnCpu, MemoryThatIsNotAdoptedIsGivenBack) {
  AlignedMemory memory;
  EXPECT_EQ(Message(client_.Adopt(8, {ElementType::kF32, {2}}, memory.Make("")).status()),
            "device 8 of a client with 8 devices");
  EXPECT_TRUE(memory.IsGivenBack());
}

TEST_F(OnCpu, AdoptedMemoryCanBeDonated) {
  const Executable accumulate = Compile("accumulate", {.num_replicas = 8});
  PutAccumulateArguments(8);
  AlignedMemory memory;
  states_[2] = *client_.Adopt(2, {ElementType::kF32, {4}}, memory.Make(Bytes<float>({1, 2, 3, 4})));
  {
    const auto launch = accumulate.Execute(arguments_);
    ASSERT_TRUE(launch.ok()) << launch.status();
    ASSERT_TRUE(launch->Await().ok());
    EXPECT_THAT(Floats(launch->results[2][0]), ElementsAre(29, 30, 31, 32));
  }
  states_.clear();
  EXPECT_TRUE(memory.IsGivenBack(std::chrono::seconds(20)));
}

TEST_F(OnCpu, WhatOneReplicaWouldRefuseIsRefusedBeforeAnyReplicaStarts) {
  const Executable accumulate = Compile("accumulate", {.num_replicas = 8});
  PutAccumulateArguments(8);
  const auto refused = [&](int device, int argument, Buffer* buffer) {
    std::vector<std::vector<Buffer*>> arguments = arguments_;
    arguments[device][argument] = buffer;
    return Message(accumulate.Execute(arguments).status());
  };
  EXPECT_EQ(refused(7, 1, &states_[7]),
            "'accumulate', replica 7: argument 0 is donated and the same buffer is argument 1 too");
  EXPECT_EQ(refused(3, 1, &inputs_[4]),
            "'accumulate', replica 3: argument 1: the buffer is on device 4, the replica runs on "
            "device 3");
  Buffer longer = Put(2, {1, 2, 3, 4, 5});
  EXPECT_EQ(refused(2, 0, &longer),
            "'accumulate', replica 2: argument 0: the buffer is f32[5], the program wants f32[4]");
  Buffer integers = *client_.CopyFromHost(2, {ElementType::kS32, {4}}, std::string(16, '\0'));
  EXPECT_EQ(refused(2, 0, &integers),
            "'accumulate', replica 2: argument 0: the buffer is s32[4], the program wants f32[4]");
  Buffer deleted = Put(1, {1, 2, 3, 4});
  deleted.Delete();
  deleted.Delete();
  EXPECT_EQ(refused(1, 1, &deleted), "'accumulate', replica 1: argument 1: the buffer was deleted");
  const Client other = MakeClient(2);
  Buffer foreign = *other.CopyFromHost(1, {ElementType::kF32, {4}}, std::string(16, '\0'));
  EXPECT_EQ(refused(1, 1, &foreign),
            "'accumulate', replica 1: argument 1: the buffer is of another client");
  // Nothing was consumed by the refused launches.
  EXPECT_TRUE(accumulate.Execute(arguments_).ok());
}

TEST_F(OnCpu, WrongNumbersOfReplicasAndArgumentsAreNamed) {
  const Executable accumulate = Compile("accumulate", {.num_replicas = 8});
  PutAccumulateArguments(7);
  EXPECT_EQ(Message(accumulate.Execute(arguments_).status()),
            "'accumulate' runs on 8 devices, arguments are given for 7");
  PutAccumulateArguments(0);
  arguments_.push_back({});
  EXPECT_EQ(Message(accumulate.Execute(arguments_).status()),
            "'accumulate', replica 7: 0 arguments for 2 parameters");
}

TEST_F(OnCpu, WhatDoesNotCompileIsAStatus) {
  const auto error = [&](std::string_view module, const CompileOptions& options) {
    return Message(Executable::Compile(client_, module, options).status());
  };
  EXPECT_EQ(error("\xff\xff garbage", {}), "10 bytes that are no HloModuleProto");
  EXPECT_EQ(error("", {}), "module '' has no host_program_shape (field 4)");
  EXPECT_EQ(error(ModuleBytes("tuple_parameter"), {}),
            "parameter 0 of the module is not an array; tuples must be passed as flat parameters");
  const std::string module = ModuleBytes("accumulate");
  EXPECT_EQ(error(module, {.num_replicas = 9}), "9 replicas on a client with 8 devices");
  EXPECT_EQ(error(module, {.num_replicas = 2, .devices = {1}}), "1 devices named for 2 replicas");
  EXPECT_EQ(error(module, {.devices = {8}}), "device 8 of a client with 8 devices");
  EXPECT_THAT(error(module, {.overrides = {{"xla_no_such_option", true}}}),
              HasSubstr("XLA does not compile 'accumulate': No such compile option"));
}

TEST_F(OnCpu, EveryTypeGoesInAndOut) {
  const Executable types = Compile("types");
  const std::vector<std::string> in = {
      std::string("\1\0\1", 3),
      Bytes<uint16_t>({0x3c00, 0x4000}),  // 1, 2
      Bytes<uint16_t>({0x3f80, 0x4000}),  // 1, 2
      Bytes<float>({1, -2}),
      Bytes<int8_t>({-3, 4}),
      Bytes<uint64_t>({uint64_t{1} << 40}),
      "",
      Bytes<int8_t>({-8, 7, 1}),
      Bytes<uint8_t>({0x38, 0x40}),
  };
  const std::vector<std::string> out = {
      std::string("\0\1\0", 3),
      Bytes<uint16_t>({0x4000, 0x4400}),
      Bytes<uint16_t>({0x4000, 0x4080}),
      Bytes<float>({2, -4}),
      Bytes<int8_t>({-6, 8}),
      Bytes<uint64_t>({uint64_t{1} << 41}),
      "",
      Bytes<int8_t>({0x08, 7, 1})  // only the low four bits count
      ,
      Bytes<uint8_t>({0x38, 0x40}),
  };
  std::vector<Buffer> buffers;
  for (size_t i = 0; i < in.size(); ++i) {
    auto buffer = client_.CopyFromHost(0, types.parameter_shape(static_cast<int>(i)), in[i]);
    ASSERT_TRUE(buffer.ok()) << i << buffer.status();
    buffers.push_back(*std::move(buffer));
  }
  std::vector<std::vector<Buffer*>> arguments(1);
  for (Buffer& buffer : buffers) arguments[0].push_back(&buffer);
  const auto launch = types.Execute(arguments);
  ASSERT_TRUE(launch.ok()) << launch.status();
  for (size_t i = 0; i < out.size(); ++i) {
    const auto bytes = launch->results[0][i].ToHost();
    ASSERT_TRUE(bytes.ok()) << i << bytes.status();
    EXPECT_EQ(*bytes, out[i]) << "output " << i;
  }
}

TEST_F(OnCpu, HostBytesAreRowMajorWhateverTheLayout) {
  const Executable transposed = Compile("transposed");
  Buffer x =
      *client_.CopyFromHost(0, {ElementType::kF32, {2, 3}}, Bytes<float>({1, 2, 3, 4, 5, 6}));
  const std::vector<std::vector<Buffer*>> arguments = {{&x}};
  const auto launch = transposed.Execute(arguments);
  ASSERT_TRUE(launch.ok()) << launch.status();
  EXPECT_THAT(Floats(launch->results[0][0]), ElementsAre(1, 2, 3, 4, 5, 6));
}

// A transposed slice of a constant, negated: XLA's reshape mover would let it fold in a wrong
// order.
TEST_F(OnCpu, ConstantsFoldAsTheyCompute) {
  const Executable folded = Compile("folded");
  const auto launch = folded.Execute(std::vector<std::vector<Buffer*>>(1));
  ASSERT_TRUE(launch.ok()) << launch.status();
  EXPECT_THAT(Floats(launch->results[0][0]), ElementsAre(-1, -7, -3, -9, -5, -11));
}

TEST_F(OnCpu, HostBytesOfTheWrongSizeAreRefused) {
  EXPECT_EQ(Message(client_.CopyFromHost(0, {ElementType::kBF16, {3}}, "1234").status()),
            "bf16[3] takes 6 bytes, not 4");
  EXPECT_EQ(Message(client_.CopyFromHost(8, {ElementType::kBF16, {2}}, "1234").status()),
            "device 8 of a client with 8 devices");
  EXPECT_EQ(Message(client_.CopyFromHost(0, {ElementType::kToken, {}}, "").status()),
            "a device cannot keep an array of token");
  std::string small(3, '\0');
  EXPECT_EQ(Message(Put(0, {1}).CopyToHost(small).status()),
            "f32[1] takes 4 bytes, the destination has 3");
}

TEST_F(OnCpu, StatisticsDescribeTheProgram) {
  const Executable layers = Compile("two_layers");
  EXPECT_EQ(layers.memory().argument_bytes, 2 * 64 * 64 * 4);
  EXPECT_EQ(layers.memory().output_bytes, 64 * 64 * 4);
  EXPECT_EQ(layers.memory().alias_bytes, 0);
  EXPECT_GE(layers.memory().temp_bytes, 64 * 64 * 4);
  EXPECT_EQ(layers.memory().total_bytes(), 3 * 64 * 64 * 4 + layers.memory().temp_bytes);
  EXPECT_EQ(Compile("accumulate").memory().alias_bytes, 16);
  const auto costs = layers.CostAnalysis();
  ASSERT_TRUE(costs.ok()) << costs.status();
  EXPECT_GE(costs->at("flops"), 2 * 2 * 64 * 64 * 64);
  const auto optimized = layers.OptimizedModule();
  ASSERT_TRUE(optimized.ok()) << optimized.status();
  EXPECT_THAT(*optimized, HasSubstr("two_layers"));
  const auto fingerprint = layers.Fingerprint();
  ASSERT_TRUE(fingerprint.ok()) << fingerprint.status();
  EXPECT_EQ(*fingerprint, *Compile("two_layers").Fingerprint());
}

TEST_F(OnCpu, XlaNeitherMergesRepeatedGathersNorCombinesAllReduces) {
  const auto optimized = Compile("repeats", {.num_replicas = 2}).OptimizedModule();
  ASSERT_TRUE(optimized.ok()) << optimized.status();
  EXPECT_EQ(CountOpcode(*optimized, "all-gather"), 2);
  EXPECT_EQ(CountOpcode(*optimized, "all-reduce"), 2);
}

TEST_F(OnCpu, TheOptimizedModuleCompilesAgain) {
  const auto again = Executable::Compile(client_, *Compile("two_layers").OptimizedModule(), {});
  EXPECT_TRUE(again.ok()) << again.status();
}

TEST_F(OnCpu, ASerializedExecutableRunsInAnotherClient) {
  const auto bytes = Compile("accumulate", {.num_replicas = 2, .devices = {3, 1}}).Serialize();
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  client_ = MakeClient(4);
  const auto loaded = Executable::Deserialize(client_, *bytes);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_THAT(loaded->devices(), ElementsAre(3, 1));
  EXPECT_THAT(loaded->donated_parameters(), ElementsAre(0));
  Buffer state3 = Put(3, {0, 0, 0, 0}), x3 = Put(3, {1, 2, 3, 4});
  Buffer state1 = Put(1, {0, 0, 0, 0}), x1 = Put(1, {1, 1, 1, 1});
  const std::vector<std::vector<Buffer*>> arguments = {{&state3, &x3}, {&state1, &x1}};
  const auto launch = loaded->Execute(arguments);
  ASSERT_TRUE(launch.ok()) << launch.status();
  EXPECT_THAT(Floats(launch->results[1][0]), ElementsAre(2, 3, 4, 5));
  EXPECT_EQ(Message(Executable::Deserialize(client_, "\xff\xff").status()),
            "2 bytes that are no executable of minka");
}

TEST_F(OnCpu, TheMeterFollowsBuffersAndLaunches) {
  const Executable layers = Compile("two_layers");
  const int64_t matrix = 64 * 64 * 4;
  const Shape shape = {ElementType::kF32, {64, 64}};
  {
    Buffer x = *client_.CopyFromHost(0, shape, std::string(matrix, '\0'));
    Buffer w = *client_.CopyFromHost(0, shape, std::string(matrix, '\0'));
    EXPECT_EQ(client_.meter().live_bytes(0), 2 * matrix);
    const std::vector<std::vector<Buffer*>> arguments = {{&x, &w}};
    const auto launch = layers.Execute(arguments);
    ASSERT_TRUE(launch.ok()) << launch.status();
    EXPECT_EQ(client_.meter().live_bytes(0), 3 * matrix);
    EXPECT_EQ(client_.peak_bytes(0), layers.memory().total_bytes());
    w.Delete();
    EXPECT_EQ(client_.meter().live_bytes(0), 2 * matrix);
    Buffer moved = std::move(x);
    EXPECT_EQ(client_.meter().live_bytes(0), 2 * matrix);
  }
  EXPECT_EQ(client_.meter().live_bytes(0), 0);
  EXPECT_EQ(client_.meter().peak_bytes(1), 0);
}

TEST_F(OnCpu, DonationKeepsTheStateCountedOnce) {
  const Executable accumulate = Compile("accumulate", {.num_replicas = 8});
  PutAccumulateArguments(8);
  const auto launch = accumulate.Execute(arguments_);
  ASSERT_TRUE(launch.ok()) << launch.status();
  EXPECT_EQ(client_.meter().live_bytes(4), 48);
  EXPECT_EQ(client_.meter().peak_bytes(4), 48);
  // The compiler also counts the table of the result tuple, a pointer per result.
  EXPECT_EQ(accumulate.memory().total_bytes(), 48 + 2 * 8);
}

TEST_F(OnCpu, BuffersOutliveClientAndExecutable) {
  std::vector<Buffer> kept;
  {
    PutAccumulateArguments(8);
    auto launch = Compile("accumulate", {.num_replicas = 8}).Execute(arguments_);
    ASSERT_TRUE(launch.ok()) << launch.status();
    kept.push_back(std::move(launch->results[0][1]));
    states_.clear();
    inputs_.clear();
    client_ = MakeClient(1);
  }
  EXPECT_THAT(Floats(kept[0]), Each(28));
}

TEST_F(OnCpu, EventsCallBackAndThreadsMayLaunchOnTheirOwnDevices) {
  const Executable layers = Compile("two_layers");
  Buffer x =
      *client_.CopyFromHost(0, {ElementType::kF32, {64, 64}}, std::string(64 * 64 * 4, '\0'));
  std::atomic<int> completed = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int step = 0; step < 50; ++step) {
        const std::vector<std::vector<Buffer*>> arguments = {{&x, &x}};
        const auto launch = layers.Execute(arguments);
        ASSERT_TRUE(launch.ok()) << launch.status();
        ASSERT_TRUE(launch->completions[0]
                        .OnReady([&](const absl::Status& status) {
                          if (status.ok()) ++completed;
                        })
                        .ok());
        ASSERT_TRUE(launch->Await().ok());
        ASSERT_TRUE(launch->results[0][0].Ready()->Await().ok());
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(Event().IsReady());
  // Callbacks may still be on their way when Await returns.
  while (completed < 200) std::this_thread::yield();
  EXPECT_EQ(client_.meter().live_bytes(0), 64 * 64 * 4);
}

}  // namespace
}  // namespace minka::pjrt
