// Whatever the plan, eight devices compute what one computes: random programs under random plans,
// bit for bit. MINKA_RANDOM_PROGRAMS says how many (default 100), MINKA_RANDOM_SEED the first seed,
// MINKA_RANDOM_PARTS of how many parts one runs (default 1, see results.h);
// into the folder MINKA_RANDOM_DUMP, if given, go the programs as written and as lowered.
// Those of CI, seeds 1 to 500, take every way of every op rule at least fifty times.
#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/file.h"
#include "minka/base/status.h"
#include "minka/ir/hlo_proto.h"
#include "minka/lowering/spmd.h"
#include "minka/runtime/pjrt/client.h"
#include "minka/runtime/pjrt/executable.h"
#include "minka/runtime/pjrt/plugin.h"
#include "tests/random_programs/coverage.h"
#include "tests/random_programs/results.h"
#include "tests/support/random_modules.h"
#include "tests/support/random_plan.h"
#include "tests/support/shards.h"

namespace minka {
namespace {

constexpr int kNumDevices = 8;

Plan PlanOf(const RandomProgram& program, int seed) {
  static constexpr const char* kMeshes[] = {"2x2x2", "4x2", "2x2x2", "8", "2x2x2", "2x4"};
  return RandomPlan(program.module, *Mesh::Parse(kMeshes[seed % 6]), seed);
}

// Code that is made fast: nearly all time goes into compiling. Some programs are compiled as
// everybody's are, on every kind of mesh.
pjrt::Overrides CompilerOptions(int seed) {
  if (seed % 37 == 0) return {};
  return {{"xla_llvm_disable_expensive_passes", true},
          {"xla_backend_optimization_level", int64_t{0}},
          {"xla_cpu_use_fusion_emitters", false},
          {"xla_cpu_parallel_codegen_split_count", int64_t{1}}};
}

// A program on some devices, with how its inputs and outputs lie on them.
struct Placed {
  const Module& module;
  Mesh mesh;
  std::vector<Sharding> parameters, results;
};

class RandomPrograms : public ::testing::Test {
 protected:
  static pjrt::Client MakeClient() {
    pjrt::PrepareEnvironment(Platform::kCpu);
    const auto plugin = pjrt::Plugin::Load(*pjrt::FindPlugin({}));
    return *pjrt::Client::Create(*plugin, {.num_devices = kNumDevices});
  }

  absl::StatusOr<std::vector<std::string>> Run(const Placed& program,
                                               const std::vector<Literal>& inputs,
                                               const Computation& source) {
    const int num_devices = static_cast<int>(program.mesh.num_devices());
    const pjrt::CompileOptions options{.num_replicas = num_devices, .overrides = overrides_};
    ASSIGN_OR_RETURN(const pjrt::Executable executable,
                     pjrt::Executable::Compile(client_, ExportHlo(program.module), options));
    std::vector<std::vector<pjrt::Buffer>> buffers(num_devices);
    std::vector<std::vector<pjrt::Buffer*>> arguments(num_devices);
    for (int device = 0; device < num_devices; ++device) {
      for (size_t i = 0; i < inputs.size(); ++i) {
        const Shape& shape = inputs[i].shape;
        ASSIGN_OR_RETURN(
            pjrt::Buffer buffer,
            client_.CopyFromHost(
                device, LocalShape(shape, program.parameters[i], program.mesh),
                PartOf(*inputs[i].bytes, shape, program.parameters[i], program.mesh, device)));
        buffers[device].push_back(std::move(buffer));
      }
      for (pjrt::Buffer& buffer : buffers[device]) arguments[device].push_back(&buffer);
    }
    ASSIGN_OR_RETURN(const pjrt::Launch launch, executable.Execute(arguments));
    RETURN_IF_ERROR(launch.Await());
    std::vector<std::string> results;
    for (size_t i = 0; i < source.results.size(); ++i) {
      std::vector<std::string> parts(num_devices);
      for (int device = 0; device < num_devices; ++device) {
        ASSIGN_OR_RETURN(parts[device], launch.results[device][i].ToHost());
      }
      absl::StatusOr<std::string> whole =
          Assemble(parts, source.shape(source.results[i]), program.results[i], program.mesh);
      if (!whole.ok()) return WithContext(whole.status(), fmt::format("result {}", i));
      results.push_back(*std::move(whole));
    }
    return results;
  }

  // Lowered too, because XLA takes liberties with inits and scalar operands of a module as it is.
  absl::StatusOr<std::vector<std::string>> RunOnOne(const RandomProgram& program) {
    const Mesh mesh = *Mesh::Parse("1");
    return RunOnMesh(program,
                     PlanOfStrategies(program.module, mesh, WholeStrategies(program.module, mesh)));
  }

  absl::StatusOr<std::vector<std::string>> RunOnMesh(const RandomProgram& program,
                                                     const Plan& plan) {
    RETURN_IF_ERROR(CheckPlan(plan, program.module));
    ASSIGN_OR_RETURN(const SpmdProgram lowered,
                     LowerSpmd(program.module, plan.stage, Platform::kCpu));
    if (const char* const folder = std::getenv("MINKA_RANDOM_DUMP")) {
      RETURN_IF_ERROR(WriteFile(fmt::format("{}/program.txt", folder), HloText(program.module)));
      RETURN_IF_ERROR(
          WriteFile(fmt::format("{}/lowered_for_{}.txt", folder, plan.stage.mesh.num_devices()),
                    HloText(lowered.module)));
    }
    const Placed placed{lowered.module, plan.stage.mesh, lowered.parameters, lowered.results};
    return Run(placed, program.inputs, program.module.entry_computation());
  }

  pjrt::Client client_ = MakeClient();
  pjrt::Overrides overrides_;
};

TEST_F(RandomPrograms, ComputeOnEightDevicesWhatOneComputes) {
  const int num_programs = FromEnvironment("MINKA_RANDOM_PROGRAMS", 100);
  const int first_seed = FromEnvironment("MINKA_RANDOM_SEED", 1);
  int num_failed = 0;
  for (int seed = first_seed; seed < first_seed + num_programs && num_failed < 5; ++seed) {
    if (!IsOfThisRun(seed)) continue;
    const RandomProgram program = MakeRandomProgram(seed);
    const Plan plan = PlanOf(program, seed);
    overrides_ = CompilerOptions(seed);
    const auto on_one = RunOnOne(program);
    ASSERT_TRUE(on_one.ok()) << "seed " << seed << ": " << on_one.status();
    const auto on_mesh = RunOnMesh(program, plan);
    ASSERT_TRUE(on_mesh.ok()) << "seed " << seed << ": " << on_mesh.status();
    const Computation& entry = program.module.entry_computation();
    for (size_t i = 0; i < on_one->size(); ++i) {
      const std::optional<std::string> difference =
          Difference((*on_mesh)[i], (*on_one)[i], entry.shape(entry.results[i]), program.noise[i]);
      if (!difference) continue;
      ++num_failed;
      ADD_FAILURE() << "seed " << seed << ", mesh " << plan.stage.mesh.ToString() << ", result "
                    << i << " (" << entry.instruction(entry.results[i]).name
                    << "): " << *difference;
      break;
    }
  }
}

TEST(RandomProgramsCoverage, TakesEveryWayOfEveryRuleAtLeastFiftyTimes) {
  Coverage coverage;
  for (int seed = 1; seed <= 500; ++seed) {
    const RandomProgram program = MakeRandomProgram(seed);
    coverage.Add(program.module, PlanOf(program, seed).stage);
  }
  coverage.Print();
  EXPECT_THAT(coverage.Missing(50), ::testing::IsEmpty());
}

}  // namespace
}  // namespace minka
