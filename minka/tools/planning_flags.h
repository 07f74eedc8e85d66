// The flags that say what a plan is asked for.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "minka/driver/plan_step.h"

namespace minka {

// `minka plan` tries one mesh, by shard, and pipelines.
inline constexpr std::string_view kAnyMethod = "auto";
inline constexpr std::string_view kMeshMethod = "shard";

// As on the command line.
struct PlanningFlags {
  std::vector<std::string> meshes;
  std::optional<int> num_devices;
  std::string cluster = "local";
  std::string method{kMeshMethod};
  std::string memory_limit;
  std::vector<std::string> pins;
  SearchLimits limits;
  std::string combine_gathers;
  std::string micro_batches = "auto";
  bool per_micro_batch = false, narrow_sums = false;
  // Of a pipeline:
  std::string layers = "marked", stages = "auto", submeshes, submesh_choices, stage_shares;
  std::string schedule{kChooseSchedule};
  std::optional<int> dp, op, pp;
  std::string remat = "auto";
  std::string cost_model = "roofline";
  std::string alpha, beta;  // one value per mesh axis, joined by commas
  bool allow_replicated_dots = false;
  double gap = 0.002;
  int64_t work_limit = SearchOptions().work_limit;
  std::string time_limit = "10m";
  int threads = 2;
};

// `memory_limit_help` says what else the limit may be. Defaults are those that flags have.
void AddPlanningFlags(CLI::App& command, PlanningFlags& flags,
                      const std::string& memory_limit_help);

// The planning flags that the command line gave, by name: "--mesh".
std::vector<std::string> GivenPlanningFlags(const CLI::App& command);

// Has the cluster hosts of several kinds? False where the name is of no cluster.
bool IsOfSeveralKinds(const PlanningFlags& flags);

// Are as many micro-batches taken as are predicted to be fastest, where the method chooses them?
bool ChoosesMicroBatches(const PlanningFlags& flags);

// Without options; a measured cost model still lacks its calibration.
absl::StatusOr<PlanRequest> RequestOf(const PlanningFlags& flags);
// For a plan's options, and from them.
std::map<std::string, std::string> ToOptions(const PlanningFlags& flags);
absl::StatusOr<PlanningFlags> PlanningFromOptions(
    const std::map<std::string, std::string>& options);

// A line about a search that goes on; the gap once one is known.
std::string DescribeProgress(const std::string& what, double seconds, double gap);

// The comparison of everything considered where that is more than one plan, else "".
std::string DescribeCandidates(const PlanResult& result);

}  // namespace minka
