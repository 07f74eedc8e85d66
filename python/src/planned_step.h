// A JAX function that is planned and not run, and what its plan is asked.
#pragma once

#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "executable.h"
#include "minka/minka.h"

namespace minka {

// What is planned where, by the method and costs of the request. The clusters are hosts of one kind
// each, see PlanRequest.
absl::StatusOr<PlanRequest> PlanRequestOf(const ParallelizeRequest& request,
                                          std::vector<Cluster> hosts);

// Either: a pipeline, or a plan of one mesh for a step as it was prepared.
struct PlanOfStep {
  const PlannedPipeline* pipeline = nullptr;
  const Step* prepared = nullptr;
  const Plan* plan = nullptr;
};

std::string PlanJson(const PlanOfStep& of);
absl::StatusOr<std::string> PlanTable(const PlanOfStep& of);
// FailedPrecondition for a plan of one mesh. See minka/driver/candidates_file.h.
absl::StatusOr<std::string> CandidatesJson(const PlanOfStep& of);
// See driver/explain.h and driver/explain_pipeline.h; `request`: how `step` was planned. Cancelled
// soon after it is asked to stop.
absl::StatusOr<std::string> ExplainPlan(const Step& step, const PlanOfStep& of, PlanRequest request,
                                        const ExplainQuestion& question,
                                        const std::stop_token& stop, const OnPhase& on_phase);

// The best plan for a cluster that need not be at hand. Thread-safe: it never changes.
class PlannedStep {
 public:
  // `cluster`: see Cluster::OfKinds. A device holds what it has, unless the request says how much.
  // Cancelled soon after it is asked to stop.
  static absl::StatusOr<std::unique_ptr<PlannedStep>> Create(const ParallelizeRequest& request,
                                                             const std::string& cluster,
                                                             const std::stop_token& stop,
                                                             const OnPhase& on_phase);
  static absl::StatusOr<std::unique_ptr<PlannedStep>> Create(Step step, PlanRequest request,
                                                             const std::stop_token& stop,
                                                             const OnPhase& on_phase);

  std::string PlanJson() const { return minka::PlanJson(plan()); }
  absl::StatusOr<std::string> PlanTable() const { return minka::PlanTable(plan()); }
  absl::StatusOr<std::string> CandidatesJson() const { return minka::CandidatesJson(plan()); }
  absl::StatusOr<std::string> Explain(const ExplainQuestion& question, const std::stop_token& stop,
                                      const OnPhase& on_phase) const {
    return ExplainPlan(step_, plan(), request_, question, stop, on_phase);
  }

 private:
  PlannedStep(Step step, PlanRequest request)
      : step_(std::move(step)), request_(std::move(request)) {}
  PlanOfStep plan() const;

  const Step step_;
  const PlanRequest request_;
  std::optional<PlannedPipeline> pipeline_;
  PlanResult one_mesh_;  // without a pipeline
};

// Of all kinds of hosts that Cluster::OfKinds names. InvalidArgument for several kinds where no
// pipeline has stages for each.
absl::StatusOr<int> NumDevicesOf(const std::string& cluster, bool is_pipeline);

}  // namespace minka
