#include "planned_step.h"

#include <atomic>
#include <iterator>
#include <utility>

#include "jax_step.h"
#include "minka/base/status.h"
#include "minka/driver/candidates_file.h"

namespace minka {

absl::StatusOr<PlanRequest> PlanRequestOf(const ParallelizeRequest& request,
                                          std::vector<Cluster> hosts) {
  ASSIGN_OR_RETURN(const ParallelMethod method, MethodOf(request));
  ASSIGN_OR_RETURN(const CostModelChoice costs, CostsOf(request));
  ASSIGN_OR_RETURN(PlanRequest planned, RequestFor(hosts.front(), method, costs));
  planned.other_hosts.assign(std::move_iterator(hosts.begin() + 1),
                             std::move_iterator(hosts.end()));
  return planned;
}

std::string PlanJson(const PlanOfStep& of) {
  return of.pipeline ? PipelinePlanToJson(of.pipeline->plan, of.pipeline->modules())
                     : PlanToJson(*of.plan, of.prepared->module);
}

absl::StatusOr<std::string> PlanTable(const PlanOfStep& of) {
  if (of.pipeline) return DescribePipeline(*of.pipeline);
  return PlanTable(*of.prepared, *of.plan);
}

absl::StatusOr<std::string> CandidatesJson(const PlanOfStep& of) {
  if (!of.pipeline) return FailedPrecondition("there is no pipeline");
  return CandidatesJson(*of.pipeline);
}

absl::StatusOr<std::string> ExplainPlan(const Step& step, const PlanOfStep& of, PlanRequest request,
                                        const ExplainQuestion& question,
                                        const std::stop_token& stop, const OnPhase& on_phase) {
  std::atomic<bool> cancelled = false;
  request.cancelled = &cancelled;
  const std::stop_callback cancel(stop, [&] { cancelled = true; });
  const OnExplained on_explained = [&](const std::string& what) { on_phase(what); };
  if (of.pipeline) {
    if (!request.pipeline) request.pipeline.emplace();  // the plan is of a file
    request.micro_batches = MicroBatchesOf(of.pipeline->plan);
    return ExplainPipeline({.step = step, .planned = *of.pipeline, .name = step.module.name},
                           request, question, on_explained);
  }
  return Explain(
      {.step = step, .prepared = *of.prepared, .plan = *of.plan, .name = step.module.name}, request,
      question, on_explained);
}

namespace {

absl::StatusOr<std::vector<Cluster>> HostsOf(const std::string& cluster, bool is_pipeline) {
  ASSIGN_OR_RETURN(std::vector<Cluster> hosts, Cluster::OfKinds(cluster));
  if (hosts.size() == 1 || is_pipeline) return hosts;
  return InvalidArgument(
      "cluster {} has hosts of {} kinds, and devices of a mesh are of one; minka.Pipeline plans "
      "stages on each",
      cluster, hosts.size());
}

}  // namespace

absl::StatusOr<std::unique_ptr<PlannedStep>> PlannedStep::Create(const ParallelizeRequest& request,
                                                                 const std::string& cluster,
                                                                 const std::stop_token& stop,
                                                                 const OnPhase& on_phase) {
  on_phase("import");
  ASSIGN_OR_RETURN(Step step, StepOfJax(request.hlo, request.description));
  ASSIGN_OR_RETURN(std::vector<Cluster> hosts, HostsOf(cluster, request.method == kPipelineMethod));
  const int64_t memory_bytes = hosts.size() == 1 ? hosts.front().device.memory_bytes : 0;
  ASSIGN_OR_RETURN(PlanRequest planned, PlanRequestOf(request, std::move(hosts)));
  if (!planned.search.memory_limit_bytes && memory_bytes > 0)
    planned.search.memory_limit_bytes = memory_bytes;
  planned.options = {{"method", request.method}, {"cluster", cluster}, {"frontend", "python"}};
  return Create(std::move(step), std::move(planned), stop, on_phase);
}

absl::StatusOr<std::unique_ptr<PlannedStep>> PlannedStep::Create(Step step, PlanRequest request,
                                                                 const std::stop_token& stop,
                                                                 const OnPhase& on_phase) {
  std::unique_ptr<PlannedStep> planned(new PlannedStep(std::move(step), request));
  std::atomic<bool> cancelled = false;
  request.cancelled = &cancelled;
  const std::stop_callback cancel(stop, [&] { cancelled = true; });
  on_phase("plan");
  request.on_progress = [&](const std::string& what, double, double) { on_phase("plan " + what); };
  if (request.pipeline) {
    ASSIGN_OR_RETURN(planned->pipeline_, PlanPipeline(planned->step_, request));
  } else {
    ASSIGN_OR_RETURN(planned->one_mesh_, PlanStep(planned->step_, request));
  }
  return planned;
}

PlanOfStep PlannedStep::plan() const {
  if (pipeline_) return {.pipeline = &*pipeline_};
  return {.prepared = &one_mesh_.prepared, .plan = &one_mesh_.candidates[one_mesh_.best].plan};
}

absl::StatusOr<int> NumDevicesOf(const std::string& cluster, bool is_pipeline) {
  ASSIGN_OR_RETURN(const std::vector<Cluster> hosts, HostsOf(cluster, is_pipeline));
  int num_devices = 0;
  for (const Cluster& of_kind : hosts) num_devices += of_kind.num_devices();
  return num_devices;
}

}  // namespace minka
