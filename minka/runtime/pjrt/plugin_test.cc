#include "minka/runtime/pjrt/plugin.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/file.h"
#include "minka/base/status.h"
#include "minka/runtime/pjrt/client.h"

namespace minka::pjrt {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class PluginFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    unsetenv("MINKA_PJRT_PLUGIN");
    root_ = (fs::temp_directory_path() / fmt::format("minka_plugin_{}", getpid())).string();
    fs::create_directories(root_);
  }
  void TearDown() override {
    unsetenv("MINKA_PJRT_PLUGIN");
    fs::remove_all(root_);
  }

  std::string Touch(const std::string& relative) {
    const std::string path = root_ + "/" + relative;
    fs::create_directories(fs::path(path).parent_path());
    EXPECT_TRUE(WriteFile(path, "not a shared object").ok());
    return path;
  }

  std::string root_;
};

TEST_F(PluginFiles, TheErrorListsEveryPlaceTried) {
  const auto found =
      FindPlugin({.kind = Platform::kCuda, .venv = "/nowhere/venv", .python = "/nowhere/python3"});
  EXPECT_EQ(Message(found.status()),
            "no PJRT plugin for cuda; tried\n"
            "  --plugin: not given\n"
            "  MINKA_PJRT_PLUGIN: not set\n"
            "  /nowhere/venv/lib/python3*/site-packages/jax_plugins/xla_cuda*/xla_cuda_plugin.so: "
            "no such file\n"
            "  jax_plugins/xla_cuda*/xla_cuda_plugin.so in the module path of /nowhere/python3: no "
            "such file\n"
            "Run 'pip install jax[cuda13]', or name the file with --plugin.");
}

TEST_F(PluginFiles, TheFlagGoesBeforeTheVariableAndTheVariableBeforeTheEnvironment) {
  const std::string flag = Touch("flag.so");
  const std::string variable = Touch("variable.so");
  const std::string venv =
      Touch("lib/python3.11/site-packages/xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so");
  setenv("MINKA_PJRT_PLUGIN", variable.c_str(), 1);
  EXPECT_EQ(*FindPlugin({.path = flag, .venv = root_}), flag);
  EXPECT_EQ(*FindPlugin({.venv = root_}), variable);
  unsetenv("MINKA_PJRT_PLUGIN");
  EXPECT_EQ(*FindPlugin({.venv = root_}), venv);
}

TEST_F(PluginFiles, OfSeveralCudaPackagesTheNewestIsTaken) {
  Touch("lib/python3.11/site-packages/jax_plugins/xla_cuda12/xla_cuda_plugin.so");
  const std::string newest =
      Touch("lib/python3.11/site-packages/jax_plugins/xla_cuda13/xla_cuda_plugin.so");
  EXPECT_EQ(*FindPlugin({.kind = Platform::kCuda, .venv = root_}), newest);
}

TEST_F(PluginFiles, PythonsModulePathIsSearchedLast) {
  const std::string file = Touch("site/xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so");
  EXPECT_EQ(*FindPlugin({.venv = "/nowhere", .python = "PYTHONPATH=" + root_ + "/site python3"}),
            file);
}

TEST_F(PluginFiles, AGivenPathThatDoesNotExistIsAnErrorAndNotSkipped) {
  EXPECT_EQ(Message(FindPlugin({.path = "/nowhere/x.so"}).status()),
            "--plugin names /nowhere/x.so, which does not exist");
  setenv("MINKA_PJRT_PLUGIN", root_.c_str(), 1);
  EXPECT_EQ(Message(FindPlugin({}).status()),
            "MINKA_PJRT_PLUGIN names " + root_ + ", which is a folder; name the plugin's .so file");
}

TEST_F(PluginFiles, AFileThatIsNoPluginGivesAMessage) {
  const std::string text = Touch("text.so");
  EXPECT_EQ(Message(Plugin::Load(text).status()),
            text + " is no PJRT plugin: " + text + ": file too short");
  EXPECT_EQ(Message(Plugin::Load("/nowhere/x.so").status()), "plugin /nowhere/x.so does not exist");
  // A library of the system that certainly is none.
  const std::string library = "/usr/lib/x86_64-linux-gnu/libz.so";
  if (!fs::exists(library)) GTEST_SKIP() << "no " << library;
  EXPECT_EQ(Message(Plugin::Load(library).status()),
            library + " is no PJRT plugin: it does not export GetPjrtApi");
}

TEST(Plugin, TheCpuPluginOfTheBuildLoadsTwiceAndTellsItsVersion) {
  const auto path = FindPlugin({});
  ASSERT_TRUE(path.ok()) << path.status();
  const auto first = Plugin::Load(*path);
  const auto second = Plugin::Load(*path);
  ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
  EXPECT_EQ(first->api(), second->api());
  EXPECT_GE(first->api_minor_version(), 81);
  EXPECT_EQ(first->kind(), Platform::kCpu);
  EXPECT_THAT(first->attributes().at("stablehlo_current_version"), HasSubstr("1."));
}

TEST(Client, GivesTheDevicesAskedFor) {
  const auto plugin = Plugin::Load(*FindPlugin({}));
  ASSERT_TRUE(plugin.ok()) << plugin.status();
  const auto client = Client::Create(*plugin, {.num_devices = 3});
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_EQ(client->platform(), "cpu");
  ASSERT_EQ(client->num_devices(), 3);
  EXPECT_EQ(client->devices()[2].id, 2);
  EXPECT_FALSE(client->allocator_bytes(0).has_value());
  EXPECT_EQ(Message(Client::Create(*plugin, {.num_devices = -1}).status()), "-1 devices asked for");
}

TEST(PrepareEnvironment, KeepsWhatTheUserHasSet) {
  setenv("XLA_FLAGS", "--xla_cpu_collective_call_warn_stuck_timeout_seconds=3", 1);
  PrepareEnvironment(Platform::kCpu);
  EXPECT_STREQ(getenv("XLA_FLAGS"),
               "--xla_cpu_collective_call_warn_stuck_timeout_seconds=3 "
               "--xla_cpu_collective_call_terminate_timeout_seconds=540");
  unsetenv("XLA_FLAGS");
}

}  // namespace
}  // namespace minka::pjrt
