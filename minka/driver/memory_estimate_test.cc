// The estimated tier against the compiled one: never below, and little above.
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "fmt/format.h"
#include "gtest/gtest.h"
#include "minka/base/file.h"
#include "minka/base/status.h"
#include "minka/driver/compile.h"
#include "minka/driver/plan_step.h"
#include "minka/ir/hlo_proto.h"
#include "minka/models/registry.h"
#include "minka/runtime/mesh/local_devices.h"

namespace minka {
namespace {

struct PlannedModel {
  std::string_view model;
  ElementType type;
  const char* mesh;
  Method method;
  int num_micro_batches = 1;
  RematPolicy remat = RematPolicy::kNone;
};

std::string NameOf(const PlannedModel& planned) {
  return fmt::format("{} {} by {} on {}, {} micro-batches{}", planned.model, TypeName(planned.type),
                     MethodName(planned.method), planned.mesh, planned.num_micro_batches,
                     planned.remat == RematPolicy::kNone ? "" : ", rematerialised");
}

using ElementType::kF32, ElementType::kBF16;

constexpr std::string_view kScannedLstm = "scanned lstm";

constexpr PlannedModel kPlanned[] = {
    {"mlp", kF32, "8", Method::kData},
    {"mlp", kBF16, "2x4", Method::kShard},
    {"mlp", kF32, "4", Method::kZero3},
    {"mlp", kF32, "4", Method::kZero3, 2},
    {"gpt-tiny", kF32, "2x4", Method::kShard},
    {"gpt-tiny", kF32, "8", Method::kZero3},
    {"gpt-tiny", kBF16, "4", Method::kData},
    {"gpt-tiny", kF32, "4", Method::kZero2, 4},
    {"gpt-tiny", kF32, "8", Method::kData, 1, RematPolicy::kAll},
    {"moe-tiny", kF32, "2x2", Method::kShard},
    {"wresnet-tiny", kF32, "8", Method::kData},
    {kScannedLstm, kF32, "8", Method::kData},
    {kScannedLstm, kF32, "2x4", Method::kShard},
    {"unet-tiny", kF32, "2x4", Method::kShard},
};

// A scan by JAX, see tests/testdata/jax.
absl::StatusOr<Step> ScannedLstm() {
  const std::filesystem::path root =
      std::filesystem::path(MINKA_TESTDATA).parent_path().parent_path().parent_path();
  const std::filesystem::path path = root / "tests" / "testdata" / "jax" / "small_lstm.pb";
  ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path.string()));
  ASSIGN_OR_RETURN(Module module, ImportHlo(bytes));
  return MakeStep(std::move(module), {.batch_inputs = {"46", "47"}});
}

absl::StatusOr<Step> StepOf(const PlannedModel& planned) {
  if (planned.model == kScannedLstm) return ScannedLstm();
  ModelOptions options{.dtype = planned.type};
  const bool needs_two = planned.model == "moe-tiny" || planned.remat != RematPolicy::kNone;
  if (planned.model != "mlp") options.num_layers = needs_two ? 2 : 1;
  ASSIGN_OR_RETURN(TracedStep traced, TraceModel(planned.model, options));
  return std::move(traced.step);
}

absl::StatusOr<double> EstimatedOverCompiled(const PlannedModel& planned,
                                             const LocalDevices& devices) {
  ASSIGN_OR_RETURN(const Step step, StepOf(planned));
  ASSIGN_OR_RETURN(const Mesh mesh, Mesh::Parse(planned.mesh));
  PlanRequest request{.cluster = Cluster::Local(8), .meshes = {mesh}, .methods = {planned.method}};
  request.micro_batches.num_micro_batches = planned.num_micro_batches;
  request.remat = RematChoice{planned.remat};
  request.search.gap = 0.05;
  ASSIGN_OR_RETURN(const PlanResult result, PlanStep(step, request));
  const Plan& plan = result.candidates[result.best].plan;
  EXPECT_EQ(plan.memory_tier, MemoryTier::kEstimated);
  LocalSession session(devices);
  ASSIGN_OR_RETURN(const CompiledStep compiled,
                   Compile(step, [&](const Step&, std::optional<int64_t>) { return plan; }, session,
                           {.preparation = {.micro_batches = request.micro_batches}}));
  return static_cast<double>(plan.peak_memory_bytes) /
         static_cast<double>(compiled.plan.peak_memory_bytes);
}

TEST(MemoryEstimate, IsNeverBelowTheCompiledMemoryAndLittleAbove) {
  const auto devices = OpenLocalDevices({.num_devices = 8});
  ASSERT_TRUE(devices.ok()) << Message(devices.status());
  double sum = 0;
  for (const PlannedModel& planned : kPlanned) {
    SCOPED_TRACE(NameOf(planned));
    const auto ratio = EstimatedOverCompiled(planned, *devices);
    ASSERT_TRUE(ratio.ok()) << Message(ratio.status());
    EXPECT_GE(*ratio, 1);
    sum += *ratio;
  }
  EXPECT_LE(sum / std::size(kPlanned), 1.15);
}

}  // namespace
}  // namespace minka
