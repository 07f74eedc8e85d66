// From a step to a program on the devices: every step of the compiler, one after the other.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/driver/dump.h"
#include "minka/driver/prepare.h"
#include "minka/ir/step.h"
#include "minka/lowering/spmd.h"
#include "minka/plan/plan.h"
#include "minka/planner/intra_op/search_result.h"
#include "minka/runtime/pipeline/pipeline_executor.h"
#include "minka/runtime/pipeline/session.h"

namespace minka {

// Gives the plan of a step, which says how the step is prepared for it. The limit is that of
// CompileOptions at first, a little higher where nothing is estimated to fit, lower where the
// compiled program of an earlier plan needed more than was predicted.
using PlanSource =
    std::function<SearchResult<Plan>(const Step& step, std::optional<int64_t> memory_limit_bytes)>;

// The plan of a file, for every limit the same.
PlanSource PlanFromText(std::string json);

// The steps by name, in order.
inline constexpr std::string_view kCompileSteps[] = {"import", "prepare", "plan", "check",
                                                     "lower",  "verify",  "xla"};

struct CompileOptions {
  // How the step is prepared before it is planned; the plan may ask for more.
  Preparation preparation;
  std::optional<int64_t> memory_limit_bytes;         // per device, checked on the compiled program
  std::string dump_dir;                              // empty: nothing is written
  std::string stop_after;                            // one of kCompileSteps; empty: all run
  std::map<std::string, std::string> configuration;  // for the dump's manifest
  // Called when a step begins: XLA can abort the process, and then somebody else must say where.
  std::function<void(std::string_view step)> on_step;
};

struct CompiledStep {
  Step prepared;
  Plan plan;  // memory_tier kCompiled if the program was compiled
  SpmdProgram program;
  std::unique_ptr<PipelineExecutor> executor;  // null where stop_after came first
  std::vector<CompileTime> times;

  const Mesh& mesh() const { return plan.stage.mesh; }
};

// The session compiles and runs the program. Plans again, at most three times, while the compiled
// program does not fit the limit; ResourceExhausted then says what would.
absl::StatusOr<CompiledStep> Compile(const Step& step, const PlanSource& plan_source,
                                     Session& session, const CompileOptions& options);

}  // namespace minka
