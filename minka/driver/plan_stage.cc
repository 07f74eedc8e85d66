#include "minka/driver/plan_stage.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "fmt/format.h"
#include "minka/base/hash.h"
#include "minka/base/parallel.h"
#include "minka/base/status.h"
#include "minka/driver/stage_hash.h"
#include "minka/ir/micro_loop.h"
#include "minka/planner/intra_op/describe.h"

namespace minka {
namespace {

uint64_t KeyOf(const Step& step, const StageRequest& request) {
  const SearchOptions& search = request.search;
  std::string text = fmt::to_string(StageHash(step));
  if (!search.pins.empty()) {
    for (const ParameterInfo& info : step.parameters) text += " " + info.name;
  }
  for (const std::string& pin : search.pins) text += " " + pin;
  if (search.memory_limit_bytes) text += fmt::format(" <{}", *search.memory_limit_bytes);
  for (const Mesh& mesh : request.meshes) text += " " + mesh.ToString();
  text += fmt::format(" {} {} {} {} {} {} {}", request.kind, request.memory_price,
                      request.in_flight, request.tries_unusual, search.gap, search.num_threads,
                      step.module.num_micro_batches);
  const SearchLimits& limits = search.limits;
  text +=
      fmt::format(" {}{}{}{}{} {} {}", limits.no_all_gather, limits.no_all_to_all,
                  limits.no_sequence_split, limits.no_replicated_parameters,
                  limits.prefer_reduce_scatter, limits.batch_axis, limits.combine_gathers_bytes);
  return StableHash(text);
}

bool FitsIn(const SearchOptions& search, const SearchedStage& found) {
  return !search.memory_limit_bytes ||
         found.result.stage.peak_memory_bytes <= *search.memory_limit_bytes;
}

bool IsBetter(const SearchedStage& one, const SearchedStage& other, const SearchOptions& search) {
  const StagePlan &plan = one.result.stage, &than = other.result.stage;
  if (FitsIn(search, one) != FitsIn(search, other)) return FitsIn(search, one);
  if (FitsIn(search, one)) return plan.step_time_us < than.step_time_us;
  return plan.peak_memory_bytes < than.peak_memory_bytes;
}

void ChargeMemory(const Step& step, const StageRequest& request, const Cluster& cluster,
                  IntraOpOptions& options) {
  options.memory_price = MemoryPriceOf(request.memory_price, request.in_flight,
                                       FindMicroLoop(step.module).num_micro_batches, cluster);
  if (!options.search.memory_limit_bytes) options.search.memory_limit_bytes = kUnreachedLimit;
}

}  // namespace

MemoryPrice MemoryPriceOf(double price, double in_flight, int64_t num_micro_batches,
                          const Cluster& cluster) {
  const auto count = static_cast<double>(num_micro_batches);
  return {.us_per_byte = price * count / cluster.device.memory_bytes_per_us,
          .in_flight = std::min(count, in_flight)};
}

void LeaveOutUnusual(IntraOpOptions& options) {
  // Half of what else is tried.
  options.max_choices = 64;
  options.max_contraction_choices = 80;
}

int NumSearchThreads(const SearchOptions& search) {
  return search.num_threads > 1 ? NumHardwareThreads() : 1;
}

absl::StatusOr<const SearchedStage*> StagePlanner::Find(const Step& step,
                                                        const StageRequest& request) {
  Search& search = SearchOf(step, request);
  std::call_once(search.once, [&] { search.found = SearchAnew(step, request); });
  RETURN_IF_ERROR(search.found.status());
  return &*search.found;
}

StagePlanner::Search& StagePlanner::SearchOf(const Step& step, const StageRequest& request) {
  const uint64_t key = KeyOf(step, request);
  const std::lock_guard lock(mutex_);
  return searches_[key];
}

absl::StatusOr<Plan> StagePlanner::PlanOn(const Step& step, const StageRequest& request) {
  ASSIGN_OR_RETURN(const SearchedStage* searched, Find(step, request));
  ASSIGN_OR_RETURN(const MeshCosts* costs, CostsOn(request.kind, searched->mesh));
  return PlanOf(step, request_.methods.front(), *costs->model, searched->result);
}

absl::StatusOr<SearchedStage> StagePlanner::SearchAnew(const Step& step,
                                                       const StageRequest& request) {
  std::optional<SearchedStage> best;
  absl::Status refusal;
  for (const Mesh& mesh : request.meshes) {
    ASSIGN_OR_RETURN(MeshCosts * costs, CostsOn(request.kind, mesh));
    WorkBudget budget(request.search.work_limit / static_cast<int64_t>(request.meshes.size()));
    IntraOpOptions options{.method = request_.methods.front(),
                           .search = request.search,
                           .budget = &budget,
                           .reshard_costs = &costs->reshards,
                           .tries_rules = false,  // half the time
                           .takes_least = true,
                           .cancelled = request_.cancelled};
    if (!request.tries_unusual) LeaveOutUnusual(options);
    const bool is_charged = request.memory_price > 0;
    if (is_charged) ChargeMemory(step, request, request_.HostsOf(request.kind), options);
    if (request.problem != nullptr) {
      if (!request.problem->has_value()) {
        ASSIGN_OR_RETURN(*request.problem, MeshProblem::Create(step, mesh, *costs->model, options));
      }
      options.problem = &**request.problem;
    }
    const bool has_best = best && FitsIn(request.search, *best);
    if (has_best && !is_charged && request_.methods.front() == Method::kShard)
      options.cutoff = best->result.objective;
    SearchResult<IntraOpResult> planned = PlanMesh(step, mesh, *costs->model, options);
    if (!planned.ok()) {
      if (refusal.ok()) refusal = planned.status().why;
      continue;
    }
    SearchedStage found{mesh, *std::move(planned)};
    if (!best || IsBetter(found, *best, request.search)) best = std::move(found);
  }
  if (!best) return refusal;
  return *std::move(best);
}

absl::StatusOr<StagePlanner::MeshCosts*> StagePlanner::CostsOn(int kind, const Mesh& mesh) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<MeshCosts>& costs = costs_[{kind, mesh.ToString()}];
  if (costs != nullptr) return costs.get();
  ASSIGN_OR_RETURN(std::unique_ptr<CostModel> model,
                   MakeCostModel(request_.cost_model, request_.HostsOf(kind), mesh));
  costs = std::make_unique<MeshCosts>(mesh, std::move(model));
  return costs.get();
}

}  // namespace minka
