#include "tests/oracle/break_runs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "fmt/format.h"
#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/ir/hlo_proto.h"
#include "minka/ir/verifier.h"
#include "tests/support/must.h"

namespace minka {
namespace {

constexpr int kSteps = 2;
constexpr uint64_t kSeed = 7;

// A fault is made in the first program that has a place for it.
const std::array<SubjectPlan, 5> kPlans = {{{.method = "zero2", .num_micro_batches = 4},
                                            {.method = "zero3", .mesh = "4"},
                                            {.method = "shard", .has_pins = true},
                                            {.method = "zero2"},
                                            {.method = "data", .num_micro_batches = 4}}};

}  // namespace

BreakRuns::BreakRuns(const Subject& subject, const LocalDevices& devices)
    : subject_(subject),
      devices_(devices),
      traced_(TraceSubject(subject)),
      inputs_(InputsOf(traced_, kSeed, /*num_equal_slices=*/1)),
      programs_(kPlans.size()) {}

BreakRuns::Program& BreakRuns::ProgramOf(size_t plan) {
  std::unique_ptr<Program>& program = programs_[plan];
  if (program) return *program;
  program = std::make_unique<Program>();
  program->plan = kPlans[plan];
  const PlanRequest request =
      Must(RequestFor(Cluster::Local(4), MethodOf(subject_, kPlans[plan]), CostModelChoice{}));
  const PlanSource source = [&](const Step& step, std::optional<int64_t>) -> SearchResult<Plan> {
    ASSIGN_OR_RETURN(PlanResult planned, PlanStep(step, request));
    return std::move(planned.candidates[planned.best].plan);
  };
  LocalSession session(devices_);
  program->compiled = Must(
      Compile(traced_.step, source, session,
              {.preparation = {.micro_batches = request.micro_batches}, .stop_after = "verify"}));
  return *program;
}

MeshResults BreakRuns::RunProgram(const Program& program, const Module& module) const {
  const absl::Status verified = Verify(module);
  MINKA_CHECK(verified.ok(), "{}", Message(verified));
  const Mesh& mesh = program.compiled.mesh();
  pjrt::Executable executable = Must(pjrt::Executable::Compile(
      devices_.client, ExportHlo(module), {.num_replicas = static_cast<int>(mesh.num_devices())}));
  const Step& prepared = program.compiled.prepared;
  StepRunner runner(prepared, MeshExecutor(devices_.client, std::move(executable), mesh,
                                           SignatureOf(prepared.module, program.compiled.program)));
  return Must(RunOnMesh(runner, inputs_, kSteps));
}

Outcome BreakRuns::Run(const Break& fault) {
  for (size_t plan = 0; plan < programs_.size(); ++plan) {
    Program& program = ProgramOf(plan);
    const std::optional<Module> broken = fault.apply(program.compiled);
    if (!broken) continue;
    if (!program.one_device) {
      program.one_device =
          Must(RunOnOneDevice(traced_.step, PreparationOf(program.compiled.plan).micro_batches,
                              devices_.client, inputs_, kSteps));
    }
    const MeshResults results = RunProgram(program, *broken);
    const OracleReport report = CompareResults(traced_.step, results, *program.one_device);
    explanation_ =
        fmt::format("{} {}: {}", program.plan.method, program.plan.mesh, report.Failures());
    if (!report.ok()) return Outcome::kRefused;
    return IsWithinRounding(program, results) ? Outcome::kWithinRounding : Outcome::kMissed;
  }
  explanation_.clear();
  return Outcome::kNoPlace;
}

bool BreakRuns::IsWithinRounding(const Program& program, const MeshResults& broken) {
  auto& right = const_cast<Program&>(program).right;
  if (!right) right = RunProgram(program, program.compiled.program.module);
  const OracleReport of_right = CompareResults(traced_.step, *right, *program.one_device);
  const OracleReport moved =
      CompareResults(traced_.step, broken, {.single = right->values, .reference = right->values});
  double most = 0;
  std::string where;
  for (size_t i = 0; i < moved.outputs.size(); ++i) {
    const OutputComparison& output = moved.outputs[i];
    if (output.rule == ComparisonRule::kExact && !output.ok()) return false;
    const std::vector<Norms>& parts = of_right.outputs[i].parts;
    for (size_t part = 0; part < parts.size(); ++part) {
      const double share = std::sqrt(static_cast<double>(parts[part].num_elements) /
                                     static_cast<double>(parts[0].num_elements));
      const double noise = std::max({parts[part].error, parts[part].single_error,
                                     share * parts[0].error, share * parts[0].single_error,
                                     Epsilon(output.shape.type) * parts[part].reference, 1e-300});
      if (output.parts[part].error <= most * noise) continue;
      most = output.parts[part].error / noise;
      where = fmt::format("{} part {}", output.name, part);
    }
  }
  explanation_ += fmt::format("results move by up to {:.3g} roundings, {}", most, where);
  return most <= 2;
}

}  // namespace minka
