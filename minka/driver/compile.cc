#include "minka/driver/compile.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "minka/base/hash.h"
#include "minka/base/status.h"
#include "minka/driver/prepared_steps.h"
#include "minka/ir/hlo_proto.h"
#include "minka/ir/verifier.h"

namespace minka {
namespace {

constexpr int kMaxPlans = 4;  // the first and three more

// The plan under `limit`, or, where none fits, under the smallest limit known to work if that is
// less than `estimated`, what the plan before was estimated to need: estimates err by some per cent
// to either side, and the compiled program says what is needed. `limit` becomes what was taken.
SearchResult<Plan> NextPlan(const PlanSource& source, const Step& step, int64_t estimated,
                            std::optional<int64_t>& limit) {
  SearchResult<Plan> plan = source(step, limit);
  const std::optional<int64_t> smallest = plan.status().smallest_limit_bytes;
  if (!smallest || *smallest >= estimated) return plan;
  limit = smallest;
  return source(step, limit);
}

// Says that a step begins, times it, and remembers whether it is the last one wanted.
class Progress {
 public:
  Progress(const CompileOptions& options, std::vector<CompileTime>& times)
      : options_(options), times_(times) {}
  ~Progress() { Stop(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Begin(std::string_view step) {
    Stop();
    step_ = std::string(step);
    start_ = std::chrono::steady_clock::now();
    if (options_.on_step) options_.on_step(step);
  }
  // True after the step that options.stop_after names.
  bool Done() {
    const bool last = step_ == options_.stop_after;
    Stop();
    return last;
  }

 private:
  void Stop() {
    if (step_.empty()) return;
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
    times_.push_back({std::exchange(step_, {}), elapsed.count()});
  }

  const CompileOptions& options_;
  std::vector<CompileTime>& times_;
  std::string step_;
  std::chrono::steady_clock::time_point start_;
};

absl::Status CheckOptions(const CompileOptions& options) {
  if (options.stop_after.empty()) return absl::OkStatus();
  std::string known;
  for (const std::string_view step : kCompileSteps) {
    if (step == options.stop_after) return absl::OkStatus();
    known += fmt::format("{}{}", known.empty() ? "" : ", ", step);
  }
  return InvalidArgument("no step \"{}\" to stop after; there are {}", options.stop_after, known);
}

absl::Status PrepareFor(PreparedSteps& steps, const Preparation& preparation,
                        const DumpFolder& dump, CompiledStep& out) {
  ASSIGN_OR_RETURN(const Step* prepared, steps.With(preparation.remat, preparation.micro_batches));
  out.prepared = *prepared;
  RETURN_IF_ERROR(dump.Write("02-prepared.txt", HloText(ToModule(out.prepared))));
  return Verify(out.prepared.module);
}

absl::Status DumpOptimized(const DumpFolder& dump, PipelineExecutor& executor) {
  if (!dump.enabled()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string bytes, executor.OptimizedModule(/*mesh=*/0, /*program=*/0));
  ASSIGN_OR_RETURN(const Module optimized, ImportHlo(bytes));
  return dump.Write("05-optimized.hlo.txt", HloText(optimized));
}

// `plan` was made under a lower limit than `first`, which only raises its bounds: the first's hold
// for the limit that was asked for.
void KeepBoundsOf(const Plan& first, Plan& plan) {
  if (plan.objective <= 0) return;
  std::optional<double> least;  // of the whole search
  if (first.gap) least = first.objective * (1 - *first.gap);
  const bool is_of_one_search = plan.method == first.method && plan.remat == first.remat &&
                                plan.stage.mesh == first.stage.mesh;
  const double bound = is_of_one_search ? first.lower_bound : least.value_or(0);
  plan.lower_bound = std::min(plan.lower_bound, bound);
  plan.sharding_gap = (plan.objective - plan.lower_bound) / plan.objective;
  plan.gap.reset();
  if (least) plan.gap = (plan.objective - *least) / plan.objective;
}

// A plan that was loaded has those of its first lowering.
void AddNotes(const std::vector<std::string>& added, std::vector<std::string>& notes) {
  for (const std::string& note : added) {
    if (std::ranges::find(notes, note) == notes.end()) notes.push_back(note);
  }
}

}  // namespace

PlanSource PlanFromText(std::string json) {
  return [json = std::move(json)](const Step& step, std::optional<int64_t>) -> SearchResult<Plan> {
    ASSIGN_OR_RETURN(const Preparation preparation, PreparationOfJson(json));
    ASSIGN_OR_RETURN(const Step prepared, Prepare(step, preparation));
    ASSIGN_OR_RETURN(Plan plan, PlanFromJson(json, prepared.module));
    return plan;
  };
}

absl::StatusOr<CompiledStep> Compile(const Step& step, const PlanSource& plan_source,
                                     Session& session, const CompileOptions& options) {
  RETURN_IF_ERROR(CheckOptions(options));
  DumpFolder dump;
  if (!options.dump_dir.empty()) {
    ASSIGN_OR_RETURN(dump, DumpFolder::Create(options.dump_dir));
  }
  CompiledStep out;
  Progress progress(options, out.times);

  progress.Begin("import");
  RETURN_IF_ERROR(dump.Write("01-imported.txt", HloText(ToModule(step))));
  RETURN_IF_ERROR(Verify(step.module));
  if (progress.Done()) return out;

  progress.Begin("prepare");
  Preparation preparation = options.preparation;
  ASSIGN_OR_RETURN(Step simplified, Simplify(step));
  PreparedSteps steps(std::move(simplified));
  RETURN_IF_ERROR(PrepareFor(steps, preparation, dump, out));
  if (progress.Done()) return out;

  std::optional<int64_t> limit = options.memory_limit_bytes;
  // Far above the limit nothing is tried: no estimate errs by half.
  int64_t estimated = limit.value_or(0) + limit.value_or(0) / 2;
  std::optional<Plan> first;
  for (int plans = 1;; ++plans) {
    progress.Begin("plan");
    ASSIGN_OR_RETURN(out.plan, NextPlan(plan_source, step, estimated, limit));
    if (first) KeepBoundsOf(*first, out.plan);
    if (!first) first = out.plan;
    if (PreparationOf(out.plan) != preparation) {
      preparation = PreparationOf(out.plan);
      RETURN_IF_ERROR(PrepareFor(steps, preparation, dump, out));
    }
    RETURN_IF_ERROR(dump.Write("03-plan.json", PlanToJson(out.plan, out.prepared.module)));
    if (progress.Done()) return out;

    progress.Begin("check");
    RETURN_IF_ERROR(CheckPlan(out.plan, out.prepared.module));
    if (progress.Done()) return out;

    progress.Begin("lower");
    ASSIGN_OR_RETURN(out.program,
                     LowerSpmd(out.prepared.module, out.plan.stage, session.platform()));
    AddNotes(out.program.notes, out.plan.notes);
    RETURN_IF_ERROR(dump.Write("04-local.hlo.txt", HloText(out.program.module)));
    RETURN_IF_ERROR(
        dump.Write("step_inputs.txt", DescribeInputs(out.prepared, out.program, out.mesh())));
    RETURN_IF_ERROR(
        dump.Write("step_outputs.txt", DescribeOutputs(out.prepared, out.program, out.mesh())));
    if (progress.Done()) return out;

    // XLA aborts on some malformed modules: nothing goes there that was not verified.
    progress.Begin("verify");
    RETURN_IF_ERROR(WithContext(Verify(out.program.module), "lowering made a wrong program"));
    if (progress.Done()) return out;

    progress.Begin("xla");
    ASSIGN_OR_RETURN(out.executor,
                     session.Load(ProgramOfOneMesh(out.program.module, out.mesh(),
                                                   SignatureOf(out.prepared.module, out.program))));
    RETURN_IF_ERROR(DumpOptimized(dump, *out.executor));
    progress.Done();

    const int64_t needed = out.executor->memory()[0][0].total_bytes();
    estimated = out.plan.peak_memory_bytes;
    out.plan.peak_memory_bytes = out.plan.stage.peak_memory_bytes = needed;
    out.plan.memory_tier = MemoryTier::kCompiled;
    if (!options.memory_limit_bytes || needed <= *options.memory_limit_bytes) break;
    if (plans == kMaxPlans) {
      return ResourceExhausted(
          "the best of {} plans needs {} bytes per device when compiled, {} are allowed; raise the "
          "memory limit",
          plans, needed, *options.memory_limit_bytes);
    }
    // From the estimate of this plan, which may lie far below the limit.
    *limit = std::min(*limit, estimated) - (needed - *options.memory_limit_bytes);
  }
  RETURN_IF_ERROR(dump.Write("03-plan.json", PlanToJson(out.plan, out.prepared.module)));
  RETURN_IF_ERROR(
      dump.Write("memory.json", DescribeMemory(out.plan, out.executor->memory()[0][0])));
  RETURN_IF_ERROR(dump.Write(
      "manifest.json",
      DescribeManifest(options.configuration,
                       {{"minka", MINKA_VERSION}, {"plugin", session.version()}},
                       HashText(ModuleHash(out.prepared.module)), out.mesh(), out.times)));
  return out;
}

}  // namespace minka
