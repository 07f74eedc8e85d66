#include "minka/planner/inter_op/fit_stages.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "minka/base/status.h"
#include "minka/planner/inter_op/remat_search.h"

namespace minka {
namespace {

class Fitter {
 public:
  Fitter(const FitOptions& options, const PlanDemanded& plan) : options_(options), plan_(plan) {}

  absl::StatusOr<StageDemands> Run(const StageDemands& first) && {
    const absl::StatusOr<DemandedPipeline>& planned = Try(first);
    RETURN_IF_ERROR(planned.status());
    if (Fits(*planned)) return first;
    const StageDemands tightened = Tighten(first);
    if (!options_.candidates.empty()) {
      const StageDemands recomputed = Tighten(Recompute(first));
      Try(FasterOfBoth(tightened, recomputed));
    }
    return Best();
  }

 private:
  const absl::StatusOr<DemandedPipeline>& Try(const StageDemands& demands) {
    const auto found = tried_.find(demands);
    if (found != tried_.end()) return found->second;
    return tried_.emplace(demands, plan_(demands)).first->second;
  }

  bool StageFits(const DemandedPipeline& planned, size_t stage) const {
    return planned.stages[stage].peak_bytes <= options_.limit_bytes;
  }
  bool Fits(const DemandedPipeline& planned) const { return MeshesOver(planned).empty(); }

  std::set<int> MeshesOver(const DemandedPipeline& planned) const {
    std::set<int> meshes;
    for (size_t stage = 0; stage < planned.stages.size(); ++stage) {
      if (!StageFits(planned, stage)) meshes.insert(options_.mesh_of_stage[stage]);
    }
    return meshes;
  }

  // A few times, since a search knows of one micro-batch only and saves more or less than is asked
  // for, or until everything fits.
  StageDemands Tighten(StageDemands demands) {
    std::vector<int64_t> too_low(options_.mesh_of_stage.size());  // limits that leave no plan
    for (int i = 0; i < options_.most_tightenings; ++i) {
      const absl::StatusOr<DemandedPipeline>& planned = Try(demands);
      if (!planned.ok() || Fits(*planned)) return demands;
      StageDemands tighter = demands;
      tighter.limit_bytes.resize(planned->stages.size());
      for (size_t stage = 0; stage < planned->stages.size(); ++stage) {
        if (StageFits(*planned, stage)) continue;
        const int64_t middle = (too_low[stage] + planned->stages[stage].searched_bytes) / 2;
        const int64_t limit = LimitFor(*planned, stage);
        tighter.limit_bytes[stage] = limit > too_low[stage] ? limit : middle;
      }
      const absl::StatusOr<DemandedPipeline>& found = Try(tighter);
      if (found.ok() && Needs(*found) >= Needs(*planned)) return demands;
      if (found.ok()) {
        demands = std::move(tighter);
        continue;
      }
      for (size_t stage = 0; stage < too_low.size(); ++stage) {
        if (!StageFits(*planned, stage)) too_low[stage] = *tighter.limit_bytes[stage];
      }
    }
    return demands;
  }

  // For its search: less by its share of what its mesh needs too much, if that is state. If that is
  // more than half, then most are micro-batches, of which the search counts one: less in
  // proportion.
  int64_t LimitFor(const DemandedPipeline& planned, size_t stage) const {
    const auto& [searched, peak, busy_us] = planned.stages[stage];
    const int64_t sharing =
        std::ranges::count(options_.mesh_of_stage, options_.mesh_of_stage[stage]);
    const int64_t rest = searched - (peak - options_.limit_bytes + sharing - 1) / sharing;
    if (rest > searched / 2) return rest;
    return static_cast<int64_t>(static_cast<double>(searched) *
                                static_cast<double>(options_.limit_bytes) /
                                static_cast<double>(peak));
  }

  // The least recomputation by which each mesh fits, or all of it; every mesh is bisected for
  // itself, all at once.
  StageDemands Recompute(const StageDemands& first) {
    struct Row {
      std::vector<size_t> layers;
      int too_little = 0, enough = 0;  // positions, see RecomputeFirst
    };
    std::map<int, Row> rows;  // by mesh
    for (const int mesh : MeshesOver(*Try(first))) {
      Row& row = rows[mesh];
      for (size_t layer = 0; layer < options_.candidates.size(); ++layer) {
        if (options_.candidates[layer] != RematPolicy::kNone && MeshOf(layer) == mesh) {
          row.layers.push_back(layer);
        }
      }
      row.enough = 2 * static_cast<int>(row.layers.size());
    }
    const auto demand = [&](auto position) {
      StageDemands demands = first;
      demands.remat.assign(options_.candidates.size(), RematPolicy::kNone);
      for (const auto& [mesh, row] : rows) {
        RecomputeFirst(row.layers, position(row), demands.remat);
      }
      return demands;
    };
    const auto enough = [](const Row& row) { return row.enough; };
    const auto middle = [](const Row& row) { return (row.too_little + row.enough + 1) / 2; };
    const absl::StatusOr<DemandedPipeline>& all = Try(demand(enough));
    if (!all.ok()) return first;
    for (const int mesh : MeshesOver(*all)) rows[mesh].too_little = rows[mesh].enough;
    while (std::ranges::any_of(
        rows, [](const auto& row) { return row.second.enough - row.second.too_little > 1; })) {
      const absl::StatusOr<DemandedPipeline>& planned = Try(demand(middle));
      if (!planned.ok()) break;
      const std::set<int> over = MeshesOver(*planned);
      for (auto& [mesh, row] : rows) {
        if (row.enough - row.too_little <= 1) continue;
        (over.contains(mesh) ? row.too_little : row.enough) = middle(row);
      }
    }
    return demand(enough);
  }

  int MeshOf(size_t layer) const { return options_.mesh_of_stage[options_.stage_of_layer[layer]]; }

  // Of every mesh the demands by which it fits and is busy for less time.
  StageDemands FasterOfBoth(const StageDemands& tightened, const StageDemands& recomputed) {
    const absl::StatusOr<DemandedPipeline>& one = Try(tightened);
    const absl::StatusOr<DemandedPipeline>& other = Try(recomputed);
    if (!one.ok() || !other.ok()) return one.ok() ? tightened : recomputed;
    std::map<int, double> saved;  // by mesh, by recomputation
    for (size_t stage = 0; stage < one->stages.size(); ++stage) {
      double& of_mesh = saved[options_.mesh_of_stage[stage]];
      of_mesh += one->stages[stage].busy_us - other->stages[stage].busy_us;
      if (StageFits(*one, stage) == StageFits(*other, stage)) continue;
      of_mesh = StageFits(*other, stage) ? kMuch : -kMuch;
    }
    StageDemands demands = tightened;
    demands.remat = recomputed.remat;
    demands.limit_bytes.resize(one->stages.size());
    for (size_t stage = 0; stage < one->stages.size(); ++stage) {
      if (saved[options_.mesh_of_stage[stage]] < 0) continue;
      demands.limit_bytes[stage] =
          recomputed.limit_bytes.empty() ? std::nullopt : recomputed.limit_bytes[stage];
    }
    for (size_t layer = 0; layer < demands.remat.size(); ++layer) {
      if (saved[MeshOf(layer)] >= 0) continue;
      demands.remat[layer] = tightened.remat.empty() ? RematPolicy::kNone : tightened.remat[layer];
    }
    return demands;
  }

  static int64_t Needs(const DemandedPipeline& planned) {
    return std::ranges::max(planned.stages, {}, &DemandedPipeline::Stage::peak_bytes).peak_bytes;
  }

  bool IsBetter(const DemandedPipeline& planned, const DemandedPipeline& other) const {
    if (Fits(planned) != Fits(other)) return Fits(planned);
    if (Fits(planned)) return planned.step_time_us < other.step_time_us;
    return Needs(planned) < Needs(other);
  }

  StageDemands Best() const {
    const std::pair<const StageDemands, absl::StatusOr<DemandedPipeline>>* best = nullptr;
    for (const auto& trial : tried_) {
      if (!trial.second.ok()) continue;
      if (best == nullptr || IsBetter(*trial.second, *best->second)) best = &trial;
    }
    return best->first;
  }

  static constexpr double kMuch = 1e300;

  const FitOptions& options_;
  const PlanDemanded& plan_;
  std::map<StageDemands, absl::StatusOr<DemandedPipeline>> tried_;
};

}  // namespace

absl::StatusOr<StageDemands> FitStages(const StageDemands& first, const FitOptions& options,
                                       const PlanDemanded& plan) {
  return Fitter(options, plan).Run(first);
}

}  // namespace minka
