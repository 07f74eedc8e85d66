// Whatever the plan, eight devices compute what one computes: random programs under random plans,
// bit for bit. MINKA_RANDOM_PROGRAMS says how many (default 100), MINKA_RANDOM_SEED the first seed.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/status.h"
#include "minka/ir/hlo_proto.h"
#include "minka/lowering/spmd.h"
#include "minka/runtime/pjrt/client.h"
#include "minka/runtime/pjrt/executable.h"
#include "minka/runtime/pjrt/plugin.h"
#include "minka/sharding/op_rule.h"
#include "tests/support/random_modules.h"
#include "tests/support/random_plan.h"
#include "tests/support/shards.h"

namespace minka {
namespace {

constexpr int kNumDevices = 8;

int FromEnvironment(const char* name, int otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::atoi(value);
}

// How often each opcode ran, ran split, and took partial operands, on meshes of three axes and in
// all.
struct Coverage {
  struct Counts {
    int all = 0, split = 0, split_three_axes = 0, partial = 0, partial_three_axes = 0;
  };
  std::map<std::string, Counts> opcodes;
  std::map<std::string, int> steps;  // reshard steps by kind, combined ones as "kind (combined)"

  void Add(const Module& module, const StagePlan& stage) {
    const Computation& computation = module.entry_computation();
    const bool three_axes = stage.mesh.num_axes() >= 3;
    for (InstructionId id = 0; id < computation.num_instructions(); ++id) {
      Counts& counts = opcodes[std::string(OpcodeName(computation.instructions[id].opcode))];
      const std::vector<AxisUse>& axes = stage.ops[id].strategy.axes;
      const auto uses = [&](AxisUse::Kind kind) {
        return std::any_of(axes.begin(), axes.end(),
                           [&](const AxisUse& use) { return use.kind == kind; });
      };
      ++counts.all;
      counts.split += uses(AxisUse::Kind::kFactor);
      counts.split_three_axes += three_axes && uses(AxisUse::Kind::kFactor);
      counts.partial += uses(AxisUse::Kind::kLinear);
      counts.partial_three_axes += three_axes && uses(AxisUse::Kind::kLinear);
    }
    for (const Reshard& reshard : stage.reshards) {
      for (const ReshardStep& step : reshard.steps) {
        ++steps[std::string(ToString(step.kind))];
      }
    }
    for (const PlannedCollective& collective : ListCollectives(module, stage)) {
      if (collective.num_values > 1) ++steps[collective.kind + " (combined)"];
    }
  }

  // Whatever has a rule must have run split, and where it is linear with partial operands.
  void ExpectAll(int num_programs) const {
    if (num_programs < 100) return;
    for (const auto& [name, counts] : opcodes) {
      const bool is_whole = name == "rng-bit-generator" || counts.all < 20;
      EXPECT_TRUE(is_whole || counts.split > 0) << name;
    }
    for (const char* name : {"add",
                             "subtract",
                             "multiply",
                             "divide",
                             "negate",
                             "select",
                             "dot",
                             "reduce",
                             "broadcast",
                             "reshape",
                             "transpose",
                             "slice",
                             "pad",
                             "concatenate",
                             "reverse",
                             "dynamic-slice",
                             "dynamic-update-slice",
                             "gather",
                             "scatter",
                             "opt-barrier",
                             "real",
                             "imag",
                             "complex"}) {
      const auto found = opcodes.find(name);
      ASSERT_NE(found, opcodes.end()) << name;
      EXPECT_GT(found->second.partial, 0) << name;
    }
  }

  void Print() const {
    std::printf("%-24s %7s %7s %9s %7s %9s\n", "opcode", "all", "split", "3 axes", "partial",
                "3 axes");
    for (const auto& [name, counts] : opcodes) {
      std::printf("%-24s %7d %7d %9d %7d %9d\n", name.c_str(), counts.all, counts.split,
                  counts.split_three_axes, counts.partial, counts.partial_three_axes);
    }
    for (const auto& [name, count] : steps) std::printf("%-36s %7d\n", name.c_str(), count);
  }
};

// A program on some devices, with how its inputs and outputs lie on them.
struct Placed {
  const Module& module;
  Mesh mesh;
  std::vector<Sharding> parameters, results;
};

class RandomPrograms : public ::testing::Test {
 protected:
  static pjrt::Client MakeClient() {
    pjrt::PrepareEnvironment(pjrt::PluginKind::kCpu);
    const auto plugin = pjrt::Plugin::Load(*pjrt::FindPlugin({}));
    return *pjrt::Client::Create(*plugin, {.num_devices = kNumDevices});
  }

  absl::StatusOr<std::vector<std::string>> Run(const Placed& program,
                                               const std::vector<Literal>& inputs,
                                               const Computation& source) {
    const int num_devices = static_cast<int>(program.mesh.num_devices());
    pjrt::CompileOptions options{.num_replicas = num_devices};
    options.overrides = {{"xla_llvm_disable_expensive_passes", true},
                         {"xla_backend_optimization_level", int64_t{0}}};
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
    ASSIGN_OR_RETURN(const SpmdProgram lowered, LowerSpmd(program.module, plan.stages[0]));
    const Placed placed{lowered.module, plan.stages[0].mesh, lowered.parameters, lowered.results};
    return Run(placed, program.inputs, program.module.entry_computation());
  }

  pjrt::Client client_ = MakeClient();
};

// The first difference; zeros of either sign are equal, because a sum may turn one into the other.
std::optional<std::string> Difference(const std::string& got, const std::string& want,
                                      const Shape& shape, bool is_exact) {
  const Literal got_literal{shape, std::make_shared<const std::string>(got)};
  const Literal want_literal{shape, std::make_shared<const std::string>(want)};
  for (int64_t i = 0; i < shape.num_elements(); ++i) {
    const double a = ElementAsDouble(got_literal, i);
    const double b = ElementAsDouble(want_literal, i);
    if (a == b || (std::isnan(a) && std::isnan(b))) continue;
    if (!is_exact && std::abs(a - b) <= 1e-5 * (std::abs(a) + std::abs(b))) continue;
    return fmt::format("element {} of {} is {}, on one device {}", i, ToString(shape), a, b);
  }
  return std::nullopt;
}

TEST_F(RandomPrograms, ComputeOnEightDevicesWhatOneComputes) {
  const int num_programs = FromEnvironment("MINKA_RANDOM_PROGRAMS", 100);
  const int first_seed = FromEnvironment("MINKA_RANDOM_SEED", 1);
  const char* const meshes[] = {"2x2x2", "4x2", "2x2x2", "8", "2x2x2", "2x4"};
  Coverage coverage;
  int num_failed = 0;
  for (int seed = first_seed; seed < first_seed + num_programs && num_failed < 5; ++seed) {
    const RandomProgram program = MakeRandomProgram(seed);
    const Mesh mesh = *Mesh::Parse(meshes[seed % 6]);
    const Plan plan = RandomPlan(program.module, mesh, seed);
    coverage.Add(program.module, plan.stages[0]);
    const auto on_one = RunOnOne(program);
    ASSERT_TRUE(on_one.ok()) << "seed " << seed << ": " << on_one.status();
    const auto on_mesh = RunOnMesh(program, plan);
    ASSERT_TRUE(on_mesh.ok()) << "seed " << seed << ": " << on_mesh.status();
    const Computation& entry = program.module.entry_computation();
    for (size_t i = 0; i < on_one->size(); ++i) {
      const std::optional<std::string> difference = Difference(
          (*on_mesh)[i], (*on_one)[i], entry.shape(entry.results[i]), program.is_exact[i]);
      if (!difference) continue;
      ++num_failed;
      ADD_FAILURE() << "seed " << seed << ", mesh " << mesh.ToString() << ", result " << i << " ("
                    << entry.instruction(entry.results[i]).name << "): " << *difference;
      break;
    }
  }
  coverage.Print();
  coverage.ExpectAll(num_programs);
}

}  // namespace
}  // namespace minka
