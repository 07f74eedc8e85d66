#include "minka/planner/inter_op/fit_stages.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "minka/base/status.h"
#include "minka/planner/inter_op/remat_search.h"

namespace minka {
namespace {

// Limits of a stage's search are this to the power of their rung, of what it needs without one.
// gpt-39b's stages of 16 devices, recomputed, come down to 0.24 of that.
constexpr double kRung = 0.97;
constexpr int kNumRungs = 50;
// Larger limits are tried so often where one does.
constexpr int kMostLoosenings = 2;

// The first rung that is no more than this part of what is needed without a limit.
int RungOf(double part) {
  if (part <= 0) return kNumRungs;
  return static_cast<int>(std::ceil(std::min<double>(kNumRungs, std::log(part) / std::log(kRung))));
}

// What the stages of a mesh need under limits.
class Descent {
 public:
  struct Needed {
    double part = 1;  // of what they are searched to need without a limit
    int64_t peak_bytes = INT64_MAX;
  };

  Descent() = default;
  explicit Descent(int64_t peak_bytes) : needed_({{0, {.peak_bytes = peak_bytes}}}) {}

  int rung() const { return rung_; }
  void Note(Needed needed) { needed_[rung_] = needed; }
  bool NeedsNoMoreThan(int64_t bytes) const { return FirstWithin(bytes) != needed_.end(); }

  // To the likely rung, below all that were tried. False: there is none.
  bool Tighten(int likely_rung) {
    if (needed_.contains(kNumRungs)) return false;
    rung_ = std::clamp(likely_rung, needed_.rbegin()->first + 1, kNumRungs);
    return true;
  }

  // Towards the last rung that is kept, the same ones whatever the pipeline's limit. False: it is
  // found.
  bool Bisect() {
    while (not_kept_ - kept_ > 1) {
      rung_ = (kept_ + not_kept_) / 2;
      const auto known = needed_.find(rung_);
      if (known == needed_.end()) return true;
      const bool is_kept = RungOf(known->second.part) >= rung_;
      (is_kept ? kept_ : not_kept_) = rung_;
    }
    return false;
  }

  // To the likely rung in front of the first one where it needs no more. False: there is none.
  bool Loosen(int64_t limit_bytes) {
    const auto enough = FirstWithin(limit_bytes);
    if (enough == needed_.begin() || enough == needed_.end()) return false;
    const auto over = std::prev(enough);
    const double share = static_cast<double>(limit_bytes - enough->second.peak_bytes) /
                         static_cast<double>(over->second.peak_bytes - enough->second.peak_bytes);
    const double part = std::lerp(enough->second.part, over->second.part, share);
    const int likely = std::max(RungOf(part), over->first + 1);
    if (likely >= enough->first) return false;
    rung_ = likely;
    return true;
  }

  // To the first rung where it needs no more than that, or else where it needs least.
  void Settle(int64_t limit_bytes) {
    int64_t least = INT64_MAX;
    for (const auto& [rung, needed] : needed_) least = std::min(least, needed.peak_bytes);
    rung_ = FirstWithin(std::max(limit_bytes, least))->first;
  }

 private:
  std::map<int, Needed>::const_iterator FirstWithin(int64_t bytes) const {
    return std::ranges::find_if(
        needed_, [bytes](const auto& rung) { return rung.second.peak_bytes <= bytes; });
  }

  int rung_ = 0;
  std::map<int, Needed> needed_;             // by rung
  int kept_ = 0, not_kept_ = kNumRungs + 1;  // rungs
};

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

  int64_t LimitOfStage(size_t stage) const {
    return options_.limit_of_mesh[options_.mesh_of_stage[stage]];
  }
  bool StageFits(const DemandedPipeline& planned, size_t stage) const {
    return planned.stages[stage].peak_bytes <= LimitOfStage(stage);
  }
  bool Fits(const DemandedPipeline& planned) const { return MeshesOver(planned).empty(); }

  std::set<int> MeshesOver(const DemandedPipeline& planned) const {
    std::set<int> meshes;
    for (size_t stage = 0; stage < planned.stages.size(); ++stage) {
      if (!StageFits(planned, stage)) meshes.insert(options_.mesh_of_stage[stage]);
    }
    return meshes;
  }

  struct Tightening {
    StageDemands demands;
    const DemandedPipeline* unlimited = nullptr;
    std::map<int, Descent> descents;  // by mesh, of those that need too much
  };

  // Limits for the stages of all meshes that need too much, all at once, until everything fits;
  // where that is done, the largest ones found.
  StageDemands Tighten(const StageDemands& demands) {
    const absl::StatusOr<DemandedPipeline>& unlimited = Try(demands);
    if (!unlimited.ok() || Fits(*unlimited)) return demands;
    Tightening tightening{.demands = demands, .unlimited = &*unlimited};
    for (const int mesh : MeshesOver(*unlimited)) {
      tightening.descents.try_emplace(mesh, NeedsOf(*unlimited, mesh));
    }
    const DemandedPipeline* latest = &*unlimited;
    const auto tighten = [&](int mesh, Descent& descent) {
      if (descent.NeedsNoMoreThan(options_.limit_of_mesh[mesh])) return false;
      return options_.most_tightenings ? descent.Tighten(LikelyRung(*unlimited, *latest, mesh))
                                       : descent.Bisect();
    };
    for (int i = 0; i < options_.most_tightenings.value_or(kNumRungs); ++i) {
      latest = Move(tightening, tighten);
      if (latest == nullptr) break;
    }
    const auto loosen = [&](int mesh, Descent& descent) {
      return descent.Loosen(options_.limit_of_mesh[mesh]);
    };
    for (int i = 0; i < kMostLoosenings; ++i) {
      if (Move(tightening, loosen) == nullptr) break;
    }
    for (auto& [mesh, descent] : tightening.descents) descent.Settle(options_.limit_of_mesh[mesh]);
    StageDemands settled = AtRungs(tightening);
    Try(settled);
    return settled;
  }

  // Tries the rungs to which meshes move; null: none does.
  const DemandedPipeline* Move(Tightening& tightening,
                               const std::function<bool(int mesh, Descent& descent)>& move) {
    std::set<int> moved;
    for (auto& [mesh, descent] : tightening.descents) {
      if (move(mesh, descent)) moved.insert(mesh);
    }
    if (moved.empty()) return nullptr;
    const absl::StatusOr<DemandedPipeline>& found = Try(AtRungs(tightening));
    for (const int mesh : moved) {
      Descent::Needed needed;
      if (found.ok()) needed = {PartOf(*found, *tightening.unlimited, mesh), NeedsOf(*found, mesh)};
      tightening.descents[mesh].Note(needed);
    }
    return found.ok() ? &*found : tightening.unlimited;
  }

  // Each mesh under the limits of its rung.
  StageDemands AtRungs(const Tightening& tightening) const {
    StageDemands limited = tightening.demands;
    const std::vector<DemandedPipeline::Stage>& stages = tightening.unlimited->stages;
    for (size_t stage = 0; stage < stages.size(); ++stage) {
      const auto found = tightening.descents.find(options_.mesh_of_stage[stage]);
      if (found == tightening.descents.end() || found->second.rung() == 0) continue;
      limited.limit_bytes.resize(stages.size());
      limited.limit_bytes[stage] =
          static_cast<int64_t>(static_cast<double>(stages[stage].searched_bytes) *
                               std::pow(kRung, found->second.rung()));
    }
    return limited;
  }

  // The first one below what the stages of the mesh may need, as far as the latest plan says.
  int LikelyRung(const DemandedPipeline& unlimited, const DemandedPipeline& latest,
                 int mesh) const {
    double part = 1;
    for (size_t stage = 0; stage < latest.stages.size(); ++stage) {
      if (options_.mesh_of_stage[stage] != mesh) continue;
      part = std::min(part, static_cast<double>(LimitFor(latest, stage)) /
                                static_cast<double>(unlimited.stages[stage].searched_bytes));
    }
    return RungOf(part);
  }

  // For its search: less by its share of what its mesh needs too much, if that is state. If that is
  // more than half, then most are micro-batches, of which the search counts one: less in
  // proportion.
  int64_t LimitFor(const DemandedPipeline& planned, size_t stage) const {
    const auto& [searched, peak, busy_us] = planned.stages[stage];
    const int64_t sharing =
        std::ranges::count(options_.mesh_of_stage, options_.mesh_of_stage[stage]);
    const int64_t limit = LimitOfStage(stage);
    const int64_t rest = searched - (peak - limit + sharing - 1) / sharing;
    if (rest > searched / 2) return rest;
    return static_cast<int64_t>(static_cast<double>(searched) * static_cast<double>(limit) /
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

  // That its stages are searched to need, of what they are without limits.
  double PartOf(const DemandedPipeline& planned, const DemandedPipeline& unlimited,
                int mesh) const {
    double part = 0;
    for (size_t stage = 0; stage < planned.stages.size(); ++stage) {
      if (options_.mesh_of_stage[stage] != mesh) continue;
      part = std::max(part, static_cast<double>(planned.stages[stage].searched_bytes) /
                                static_cast<double>(unlimited.stages[stage].searched_bytes));
    }
    return part;
  }

  int64_t NeedsOf(const DemandedPipeline& planned, int mesh) const {
    int64_t bytes = 0;
    for (size_t stage = 0; stage < planned.stages.size(); ++stage) {
      if (options_.mesh_of_stage[stage] == mesh)
        bytes = std::max(bytes, planned.stages[stage].peak_bytes);
    }
    return bytes;
  }

  // Of the limit of the mesh that needs most of it.
  double PartNeeded(const DemandedPipeline& planned) const {
    double part = 0;
    for (size_t stage = 0; stage < planned.stages.size(); ++stage)
      part = std::max(part, static_cast<double>(planned.stages[stage].peak_bytes) /
                                static_cast<double>(LimitOfStage(stage)));
    return part;
  }

  bool IsBetter(const DemandedPipeline& planned, const DemandedPipeline& other) const {
    if (Fits(planned) != Fits(other)) return Fits(planned);
    if (Fits(planned)) return planned.step_time_us < other.step_time_us;
    return PartNeeded(planned) < PartNeeded(other);
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
