#include "minka/driver/candidates_file.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "fmt/format.h"
#include "minka/base/status.h"
#include "minka/planner/inter_op/stage_candidates.h"
#include "minka/report/format.h"
#include "nlohmann/json.hpp"

namespace minka {
namespace {

using Json = nlohmann::ordered_json;

// The columns, by name in a row.
constexpr std::string_view kColumns[] = {"first_layer",
                                         "last_layer",
                                         "equal_to",
                                         "devices",
                                         "mesh",
                                         "memory_price",
                                         "recomputed",
                                         "forward_us",
                                         "backward_us",
                                         "update_us",
                                         "step_us",
                                         "peak_bytes",
                                         "static_bytes",
                                         "saved_bytes_per_micro_batch",
                                         "update_bytes",
                                         "temporary_bytes",
                                         "available_bytes",
                                         "most_stages_behind",
                                         "why_dropped",
                                         "stage_of_plan",
                                         "kind"};

std::string TextOf(LayerRun layers) {
  return layers.end - layers.begin == 1 ? fmt::to_string(layers.begin)
                                        : fmt::format("{}-{}", layers.begin, layers.end - 1);
}

class CandidateRows {
 public:
  explicit CandidateRows(const PlannedPipeline& planned)
      : plan_(planned.plan), searched_(*planned.searched) {}

  std::vector<Json> Rows() const {
    std::vector<Json> rows;
    for (const CandidateRun& run : ListCandidates(searched_.ways.ways, searched_.input)) {
      if (run.equal_to) {
        Json row = RowOf(run.layers);
        row["equal_to"] = TextOf(*run.equal_to);
        if (const auto stage = StageOf(run.layers)) row["stage_of_plan"] = *stage;
        rows.push_back(std::move(row));
      }
      for (const StageCandidate& candidate : run.candidates) rows.push_back(RowOf(run, candidate));
    }
    return rows;
  }

 private:
  static Json RowOf(LayerRun layers) {
    Json row;
    row["first_layer"] = layers.begin;
    row["last_layer"] = layers.end - 1;
    return row;
  }

  Json RowOf(const CandidateRun& run, const StageCandidate& candidate) const {
    const FoundStage& stage = candidate.stage;
    const MeshOfWay& where = searched_.ways.meshes[stage.way];
    const LayerCost& cost = stage.cost;
    Json row = RowOf(run.layers);
    row["devices"] = where.mesh().num_devices();
    if (searched_.input.hosts.size() > 1) row["kind"] = where.on.kind;
    row["mesh"] = where.mesh().ToString();
    row["memory_price"] = where.memory_price;
    row["recomputed"] =
        RematPolicyName(RecomputedOf(searched_.ways.ways[stage.way], stage, stage.begin_layer));
    row["forward_us"] = cost.forward_us;
    row["backward_us"] = cost.micro_batch_us - cost.forward_us;
    row["update_us"] = cost.step_us;
    row["step_us"] = searched_.input.BusyUs(stage);
    row["peak_bytes"] = stage.bytes;
    row["static_bytes"] = cost.static_bytes;
    row["saved_bytes_per_micro_batch"] = cost.saved_bytes;
    row["update_bytes"] = cost.update_bytes;
    row["temporary_bytes"] = cost.transient_bytes;
    if (const auto limit = searched_.input.hosts[where.on.kind].limit_bytes)
      row["available_bytes"] = *limit;
    row["most_stages_behind"] = candidate.most_stages_behind;
    if (const std::string why = WhyDropped(run, candidate); !why.empty()) row["why_dropped"] = why;
    const auto number = StageOf(run.layers);
    if (number && plan_.stages[*number].plan.stage.mesh == where.mesh() &&
        plan_.stages[*number].kind == where.on.kind)
      row["stage_of_plan"] = *number;
    return row;
  }

  std::string WhyDropped(const CandidateRun& run, const StageCandidate& candidate) const {
    switch (candidate.state) {
      case CandidateState::kFastest:
        return "";
      case CandidateState::kTooLarge:
        return fmt::format("needs {} as the last stage, there are {}",
                           FormatBytes(candidate.stage.bytes),
                           FormatBytes(*searched_.input.hosts[WayOf(candidate).kind].limit_bytes));
      case CandidateState::kSlower:
        break;
    }
    const auto fastest = std::ranges::find_if(run.candidates, [&](const StageCandidate& other) {
      return other.state == CandidateState::kFastest &&
             WayOf(other).submesh() == WayOf(candidate).submesh();
    });
    return fmt::format("slower than on {}",
                       searched_.ways.meshes[fastest->stage.way].mesh().ToString());
  }

  const StageWay& WayOf(const StageCandidate& candidate) const {
    return searched_.ways.ways[candidate.stage.way];
  }

  // The stage of the plan that these layers are.
  std::optional<int> StageOf(LayerRun layers) const {
    const std::vector<int>& stages = plan_.stage_of_layer;
    const int stage = stages[layers.begin];
    const auto [begin, end] = std::ranges::equal_range(stages, stage);
    if (begin - stages.begin() != layers.begin || end - stages.begin() != layers.end)
      return std::nullopt;
    return stage;
  }

  const PipelinePlan& plan_;
  const SearchedLayers& searched_;
};

absl::StatusOr<std::vector<Json>> RowsOf(const PlannedPipeline& planned) {
  if (!planned.searched) {
    return FailedPrecondition(
        "there are no candidates: the submeshes were given, not searched for");
  }
  const LayerWays& ways = planned.searched->ways;
  if (ways.meshes.empty()) {
    return FailedPrecondition(
        "there are no candidates: the search over stages went by the work of layers, which cannot "
        "be planned alone{}",
        ways.refused.empty() ? "" : ": " + Message(ways.refused.front().why));
  }
  return CandidateRows(planned).Rows();
}

std::string CellOf(const Json& row, std::string_view column) {
  const auto found = row.find(column);
  if (found == row.end()) return "";
  if (found->is_string()) return found->get<std::string>();
  if (found->is_number_float()) return fmt::format("{:.6g}", found->get<double>());
  return found->dump();
}

}  // namespace

absl::StatusOr<std::string> CandidatesTsv(const PlannedPipeline& planned) {
  ASSIGN_OR_RETURN(const std::vector<Json> rows, RowsOf(planned));
  std::string text = fmt::format("{}\n", fmt::join(kColumns, "\t"));
  for (const Json& row : rows) {
    for (const std::string_view column : kColumns) {
      if (column != kColumns[0]) text += '\t';
      text += CellOf(row, column);
    }
    text += '\n';
  }
  return text;
}

absl::StatusOr<std::string> CandidatesJson(const PlannedPipeline& planned) {
  ASSIGN_OR_RETURN(std::vector<Json> rows, RowsOf(planned));
  Json out;
  out["candidates"] = std::move(rows);
  out["refused"] = Json::array();
  const bool has_kinds = planned.searched->input.hosts.size() > 1;
  for (const RefusedWay& refused : planned.searched->ways.refused) {
    Json row = {{"mesh", refused.where.mesh().ToString()},
                {"memory_price", refused.where.memory_price},
                {"why", Message(refused.why)}};
    if (has_kinds) row["kind"] = refused.where.on.kind;
    out["refused"].push_back(std::move(row));
  }
  return out.dump(1) + "\n";
}

}  // namespace minka
