#include "minka/driver/fit_by_layers.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <ranges>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>

#include "fmt/format.h"
#include "minka/base/status.h"
#include "minka/driver/layers_on_meshes.h"
#include "minka/driver/pipeline_planner.h"
#include "minka/planner/inter_op/remat_search.h"
#include "minka/planner/inter_op/stage_bound.h"
#include "minka/planner/inter_op/stage_corrections.h"
#include "minka/report/format.h"

namespace minka {
namespace {

// What is estimated to need no more of the limit fits; what needs that little on one mesh, on all.
constexpr double kSurelyFits = 0.9, kFitsOnAll = 0.5;
// Steps of no more operations that fit anyway are searched whole on every mesh: of gpt, bert, moe
// and wresnet-tiny on eight V100s that takes 0.9 to 2.1 s, and bert-tiny's plan by its layers is 4
// % slower.
constexpr int kSearchedWhole = 3'000;
// What is estimated to need so many times the limit does not fit; on the first mesh, nor does it on
// others. Of gpt-1.3b, 6.7b, 39b and four mixtures of experts on 8 to 64 V100s, layers on the other
// shapes needed a third of what they did on the first one at least, and none was faster there.
constexpr double kHopeless = 1.5, kHopelessOnAll = 3 * kHopeless;
// Plans that take more of the bound are searched on. Of gpt-tiny, 125m and 350m, bert-base and
// large on four A100s and eight V100s at 0.6 to 0.92 of the memory that they would take, those that
// are nearer gained 0.23 % at most by that, and gpt-6.7b on 64 H100s nothing in two thirds of its
// time.
constexpr double kNearBound = 1.03;
// What memory may cost plans of the whole step, see StageRequest::memory_price.
constexpr double kPricesOfWholeStep[] = {8, 32, 128};
// Steps that take more of the bound are planned between prices of memory, in so many tries, the
// least a small part of the price at which they fit. Of 11 models on four V100s and eight A100s at
// 0.6 and 0.8 of the memory that they would take, 11 steps of unlike layers became faster by that,
// by 0.1 to 18 %; of four whose layers are equal one, by 0.5 %.
constexpr double kNearEnoughForPrices = 1.002, kLeastPartOfPrice = 1.0 / 64;
constexpr int kPricesBetween = 3;
// So many plans correct what the next is found by.
constexpr int kMostPlanned = 6;
// See OfEstimate. On 4 to 64 devices plans took 0.96 to 1.10 of what layers estimate; of mixtures
// of experts on one mesh across hosts 1.2 to 1.4.
constexpr double kPlannedBadly = 1.1;
// Sums of so many doubles may differ by so much of themselves.
constexpr double kRounding = 1e-9;

class FitSearch {
 public:
  FitSearch(const PlanRequest& request, PreparedSteps& steps, StagePlanner& stages,
            const FitByLayersOptions& options)
      : request_(OfOneStage(request, options.remat)),
        planner_(request_, steps, MarkedLayers{}, stages, StagePrograms::kOne),
        options_(options) {}

  absl::StatusOr<std::optional<FittedMeshes>> Run() && {
    const absl::Status found = FindLayers();
    RETURN_IF_ERROR(CheckNotCancelled(request_));
    if (!not_wanted_.ok()) return NotWanted();
    if (!found.ok() || IsSearchedWhole()) return std::nullopt;
    PlanThoseThatFit();
    RETURN_IF_ERROR(CheckNotCancelled(request_));
    const bool has_plan_that_fits = LimitDoesNotBind() && BestUs() < kNever;
    if (BestUs() > kNearFastest * fastest_us_ && !has_plan_that_fits) {
      SaveMemory();
      PlanThoseThatFit();
      RETURN_IF_ERROR(CheckNotCancelled(request_));
    }
    if (BestUs() == kNever && !request_.has_plan_to_beat()) {
      const bool is_far_too_large = IsFarTooLarge();
      RETURN_IF_ERROR(CheckNotCancelled(request_));
      if (is_far_too_large) return NothingFits();
    }
    if (BestUs() == kNever && IsLeftOut()) return NotWanted();
    if (BestUs() == kNever) return std::nullopt;
    if (LimitDoesNotBind()) return Fitted();
    if (BestUs() > kNearEnoughForPrices * LeastUs().value_or(0)) PlanBetweenPrices();
    if (MayBeFaster()) PlanUnderLimit();
    if (MayBeFaster()) SearchChoices();
    RETURN_IF_ERROR(CheckNotCancelled(request_));
    return Fitted();
  }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();
  // A mesh, the price of memory there, how many layers are recomputed.
  using WayKey = std::tuple<std::string, double, int>;

  // On the first mesh alone, where that says enough, else on all.
  absl::Status FindLayers() {
    ASSIGN_OR_RETURN(LayersOnMeshes layers,
                     FindLayersOnMesh({options_.meshes.front()}, planner_, request_));
    const double part = LargestPart(layers);
    fits_anyway_ = part <= kFitsOnAll;
    SetLayers(std::move(layers));
    not_wanted_ = WhyNotWanted(/*may_save=*/!fits_anyway_ && options_.meshes.size() > 1 &&
                               part > kHopelessOnAll);
    if (IsSearchedWhole() || !not_wanted_.ok()) return absl::OkStatus();
    ASSIGN_OR_RETURN(layers, FindLayersOnMesh(options_.meshes, planner_, request_));
    fits_anyway_ = LargestPart(layers) <= kSurelyFits;
    SetLayers(std::move(layers));
    not_wanted_ = WhyNotWanted(/*may_save=*/false);
    return absl::OkStatus();
  }

  // Do searches of the whole step on each mesh, without a limit, say more in little time?
  bool IsSearchedWhole() const {
    return fits_anyway_ && (is_small_ || options_.meshes.size() == 1 || !LeastUs());
  }

  // Does all that was planned fit, as it was estimated to, nothing computed again?
  bool LimitDoesNotBind() const {
    return fits_anyway_ && !saves_memory_ && std::ranges::all_of(figures_, [&](const auto& of_way) {
             return of_way.second.bytes <= *request_.search.memory_limit_bytes;
           });
  }

  void SetLayers(LayersOnMeshes layers) {
    fastest_us_ = layers.free.front().step_time_us;
    input_ = WithLimits(std::move(layers.input), request_);
    all_ = std::move(layers.meshes);
    SetWays(std::move(layers.ways));
    saves_memory_ = false;
  }

  // Where whoever asks has a plan: why no other is worth looking for on any mesh, by the layers at
  // hand. `may_save`: ways that save memory are looked at, too.
  absl::Status WhyNotWanted(bool may_save) {
    if (!request_.faster_than_us) return absl::OkStatus();
    if (fastest_us_ > MostEstimatedUs(request_, planner_.simplified()))
      return EstimatedToTake(fastest_us_);
    if (!may_save) return absl::OkStatus();
    SaveMemory();
    const int64_t bytes = LeastStage().bytes;
    if (static_cast<double>(bytes) <= kHopelessOnAll * limit_bytes()) return absl::OkStatus();
    return MakeError(
        absl::StatusCode::kAborted,
        fmt::format("not planned: estimated to need {} per device", FormatBytes(bytes)));
  }

  // Where whoever asks has a plan, or another way to one, and nothing planned fits: does nothing
  // that is estimated to fit, or nearly, seem fast enough?
  bool IsLeftOut() const {
    if (!request_.faster_than_us) return false;
    StageSearchInput input = input_;
    input.corrections = Corrections();
    const std::vector<FoundPipeline> found = FindStages(ways_.ways, input);
    return found.empty() ? !Smallest() : !MayBeWanted(found.front());
  }

  // What nothing recomputed is estimated to need of the limit, on the mesh where that is most.
  double LargestPart(const LayersOnMeshes& layers) const {
    const StageSearchInput input = WithLimits(layers.input, request_);
    double part = 0;
    for (const StageWay& way : layers.ways.ways) {
      const std::vector<StageWay> alone = {way};
      for (const FoundPipeline& found : FindStages(alone, layers.input))
        part = std::max(part, PartOfLimits(found, alone, input));
    }
    return part;
  }

  void SetWays(LayerWays ways) {
    ways_ = std::move(ways);
    estimates_.emplace(ways_.ways);
    std::vector<double> memory_prices;
    for (const MeshOfWay& way : ways_.meshes) memory_prices.push_back(way.memory_price);
    corrector_.emplace(ways_.ways, std::move(memory_prices));
    corrected_.clear();
  }

  // Has the ways that save memory, too; where there are none, what there was.
  void SaveMemory() {
    LayerWays ways = planner_.WaysOn(all_, FastestMeshes(ways_, input_));
    if (ways.ways.empty()) return;
    SetWays(std::move(ways));
    saves_memory_ = true;
  }

  // The fastest that fits by what layers take and plans say; nullopt: none does, or is faster than
  // a plan.
  std::optional<FoundStage> Next() const {
    StageSearchInput input = input_;
    input.corrections = Corrections();
    const std::vector<FoundPipeline> found = FindStages(ways_.ways, input);
    if (found.empty()) return BestUs() == kNever ? Smallest() : std::nullopt;
    const FoundStage& stage = found.front().stages.front();
    if (found.front().step_time_us * OfEstimate(stage.way) >= BestUs() ||
        !MayBeWanted(found.front()))
      return std::nullopt;
    return stage;
  }

  // What a plan by the way takes of its estimate at least, as other plans did: of one that plans
  // correct, that, though none of these is looked at once an uncorrected one is in front. What
  // takes much more was planned badly, which says nothing of others.
  double OfEstimate(int way) const {
    const auto next = corrected_.lower_bound({way, 0});
    const bool is_corrected = next != corrected_.end() && next->first == way;
    return is_corrected || least_taken_ > kPlannedBadly ? 1 : std::max(1.0, least_taken_);
  }

  // A way of which all plans need less than estimated needs that much less, too.
  StageCorrections Corrections() const {
    StageCorrections out = corrector_->corrections();
    std::map<int, int64_t> more_bytes;  // by way
    for (const auto& [way, num_recomputed] : corrected_) {
      const int64_t more =
          figures_.at(KeyOf(way, num_recomputed)).bytes - Estimated(way, num_recomputed).bytes;
      const auto [known, added] = more_bytes.try_emplace(way, more);
      if (!added) known->second = std::max(known->second, more);
    }
    for (const auto& [way, more] : more_bytes) out.more_bytes[way] = more;
    return out;
  }

  bool MayBeWanted(const FoundPipeline& found) const {
    return found.step_time_us <= MostEstimatedUs(request_, planner_.simplified());
  }

  // What is estimated to need least, all recomputed that may be.
  FoundStage LeastStage() const {
    const std::vector<int64_t> more_bytes = Corrections().more_bytes;
    std::optional<FoundStage> least;
    for (int way = 0; way < static_cast<int>(ways_.ways.size()); ++way) {
      const FoundStage stage = WithMore(Estimated(way, MostRecomputed(way)), more_bytes);
      if (!least || stage.bytes < least->bytes) least = stage;
    }
    return *least;
  }

  // That, where it is not hopeless.
  std::optional<FoundStage> Smallest() const {
    const FoundStage smallest = LeastStage();
    if (static_cast<double>(smallest.bytes) > kHopeless * limit_bytes()) return std::nullopt;
    return smallest;
  }

  // Takes the plan of what needs least, whatever it needs.
  bool IsFarTooLarge() {
    const FoundStage least = LeastStage();
    if (static_cast<double>(least.bytes) < kFarTooLarge * limit_bytes()) return false;
    SearchResult<Plan> plan = options_.plan(WayOf(least));
    if (!plan.ok()) return false;
    const auto bytes = static_cast<double>(plan->peak_memory_bytes);
    Take(*std::move(plan));
    return bytes > kFarTooLargeAsPlanned * limit_bytes();
  }

  double limit_bytes() const { return static_cast<double>(*request_.search.memory_limit_bytes); }

  FoundStage Estimated(int way, int num_recomputed) const {
    return estimates_->StageOf(way, 0, planner_.num_layers(), num_recomputed,
                               input_.Held(/*from_end=*/1));
  }
  // `more_bytes`: by way, or empty.
  static FoundStage WithMore(FoundStage stage, const std::vector<int64_t>& more_bytes) {
    if (!more_bytes.empty()) stage.bytes += more_bytes[stage.way];
    return stage;
  }
  int MostRecomputed(int way) const {
    return ways_.ways[way].MostRecomputed(planner_.num_layers());
  }

  bool MayBeFaster() const {
    return !options_.is_over() && BestUs() > kNearBound * LeastUs().value_or(0);
  }

  struct BetweenPrices {
    FoundStage stage;  // on the way at the higher one
    double low = 0, high = 0;
  };

  // On the mesh of the best plan, the price of memory at which the least is computed again, and the
  // one below, at which more has to be. nullopt: there is none below.
  std::optional<BetweenPrices> FindPrices() const {
    std::map<double, int> ways;  // on the mesh, by price
    for (int way = 0; way < static_cast<int>(ways_.ways.size()); ++way) {
      if (ways_.meshes[way].mesh() == Best()->stage.mesh)
        ways.emplace(ways_.meshes[way].memory_price, way);
    }
    std::optional<BetweenPrices> found;
    double before = 0;
    for (const auto& [price, way] : ways) {
      const std::optional<FoundStage> fits = FewestThatFit(way);
      const auto is_less = [&](const FoundStage& other) {  // of what is counted alike
        return fits->num_recomputed < other.num_recomputed &&
               ways_.ways[way].keeps_dots_first == ways_.ways[other.way].keeps_dots_first;
      };
      if (fits && (!found || is_less(found->stage)))
        found = {.stage = *fits, .low = before, .high = price};
      before = price;
    }
    return found && found->low > 0 ? found : std::nullopt;
  }

  // With what the higher price leaves to be computed again, at prices at which memory is used up:
  // what layers do there is not known, but plans are quick. Equal layers all change at one price,
  // if nothing else tells them apart.
  void PlanBetweenPrices() {
    if (!LayersDiffer()) return;
    std::optional<BetweenPrices> prices = FindPrices();
    if (!prices) return;
    auto& [stage, low, high] = *prices;
    WayToFit way = WayOf(stage);
    low = std::max(low, kLeastPartOfPrice * high);
    for (int tries = 0; tries < kPricesBetween && !options_.is_over(); ++tries) {
      const double price = std::sqrt(low * high);
      way.memory_price = MemoryPriceOf(price, InFlight(StagePrograms::kOne),
                                       input_.num_micro_batches, request_.cluster);
      SearchResult<Plan> plan = options_.plan(way);
      if (!plan.ok()) return;
      (Fits(*plan) ? high : low) = price;
      Take(*std::move(plan));
    }
  }

  // Are most layers unlike all others?
  bool LayersDiffer() const {
    std::map<int, int> num_equal;  // by the first of them
    for (const int first : FirstEqualLayers(ways_.ways)) ++num_equal[first];
    const auto num_unlike = std::ranges::count(num_equal | std::views::values, 1);
    return 2 * num_unlike > planner_.num_layers();
  }

  // Of the way as it is corrected; nullopt: none does.
  std::optional<FoundStage> FewestThatFit(int way) const {
    const std::vector<int64_t> more_bytes = Corrections().more_bytes;
    for (int num_recomputed = 0; num_recomputed <= MostRecomputed(way); ++num_recomputed) {
      const FoundStage stage = WithMore(Estimated(way, num_recomputed), more_bytes);
      if (stage.bytes <= *request_.search.memory_limit_bytes) return stage;
    }
    return std::nullopt;
  }

  // The best of those that layers asked for, and what recomputes one layer more: by searches under
  // the limit, for which memory need not cost the same everywhere.
  void PlanUnderLimit() {
    const auto& [mesh, price, num_recomputed] = best_key_;
    const auto num_ways = static_cast<int>(ways_.ways.size());
    int number = 0;
    while (number < num_ways && KeyOf(number, num_recomputed) != best_key_) ++number;
    if (number == num_ways) return;  // a way that there was before memory was saved
    for (const int more : {1, 0}) {
      if (num_recomputed + more > MostRecomputed(number) || options_.is_over()) continue;
      WayToFit way = WayOf(Estimated(number, num_recomputed + more));
      way.memory_price = {};
      way.limit_bytes = request_.search.memory_limit_bytes;
      if (SearchResult<Plan> plan = options_.plan(way); plan.ok()) Take(*std::move(plan));
    }
  }

  // On the mesh of the best plan, by plans of the whole step: what memory costs them is found by
  // trying, too.
  void SearchChoices() {
    const Mesh mesh = Best()->stage.mesh;
    const PlanWithRemat plan = [&](const RematChoice& remat,
                                   std::optional<int64_t> limit) -> SearchResult<Plan> {
      const auto plan_at = [&](MemoryPrice price, std::optional<int64_t> limit_bytes) {
        SearchResult<Plan> found = options_.plan({mesh, remat, price, limit_bytes});
        if (!found.ok()) return found;
        Take(*found);
        // SearchRemat asks whether memory has a price.
        found->memory_price = std::max(found->memory_price, price.us_per_byte);
        return found;
      };
      if (!limit) return plan_at({}, std::nullopt);
      SearchResult<Plan> found = absl::UnknownError("not planned");
      for (const double price : kPricesOfWholeStep) {
        found = plan_at(MemoryPriceOf(price, InFlight(StagePrograms::kOne),
                                      input_.num_micro_batches, request_.cluster),
                        std::nullopt);
        if (options_.is_over()) return found;
        if (!found.ok() || Fits(*found)) break;
      }
      SearchResult<Plan> under_limit = plan_at({}, limit);
      if (!under_limit.ok()) return found;
      const bool is_better = !found.ok() || Rank(*under_limit) < Rank(*found);
      return is_better ? std::move(under_limit) : std::move(found);
    };
    const std::optional<int64_t>& limit = request_.search.memory_limit_bytes;
    // All that is planned is taken above.
    if (request_.remat) {
      static_cast<void>(plan(options_.remat, limit));
      return;
    }
    static_cast<void>(SearchRemat(plan, {.candidates = options_.remat,
                                         .memory_limit_bytes = limit,
                                         .gap = request_.search.gap,
                                         .is_over = options_.is_over}));
  }

  void PlanThoseThatFit() {
    for (int count = 0; count < kMostPlanned && CheckNotCancelled(request_).ok(); ++count) {
      const std::optional<FoundStage> next = Next();
      if (!next) return;
      const WayKey key = KeyOf(next->way, next->num_recomputed);
      auto figures = figures_.find(key);
      if (figures == figures_.end()) {
        SearchResult<Plan> plan = options_.plan(WayOf(*next));
        if (!plan.ok()) return;
        counted_more_ = std::max(counted_more_, CountedUs(*next) / plan->objective);
        const double estimated_us = input_.BusyUs(Estimated(next->way, next->num_recomputed));
        least_taken_ = std::min(least_taken_, plan->step_time_us / estimated_us);
        figures = figures_.emplace(key, FiguresOf(*plan, *next)).first;
        if (Fits(*plan) && plan->step_time_us < BestUs()) best_key_ = key;
        Take(*std::move(plan));
      }
      if (!corrected_.emplace(next->way, next->num_recomputed).second) return;
      Correct(*next, figures->second);
    }
  }

  // What layers count for a plan: step times or, where more, what they prove, which is of
  // objectives.
  double CountedUs(const FoundStage& found) const {
    const double estimated_us = input_.BusyUs(Estimated(found.way, found.num_recomputed));
    const std::optional<double> least_us = LeastStepUs({ways_.ways[found.way]}, input_);
    return std::max(estimated_us, least_us.value_or(0));
  }

  void Correct(FoundStage found, const StageFigures& figures) {
    // As the corrector knows it.
    found.bytes = Estimated(found.way, found.num_recomputed).bytes;
    found = WithMore(found, corrector_->corrections().more_bytes);
    corrector_->Correct(std::span(&found, 1), std::span(&figures, 1));
  }

  WayKey KeyOf(int number, int num_recomputed) const {
    const MeshOfWay& way = ways_.meshes[number];
    return {way.mesh().ToString(), way.memory_price, num_recomputed};
  }

  WayToFit WayOf(const FoundStage& found) {
    FoundPipeline pipeline{.stages = {found}};
    return {.mesh = ways_.meshes[found.way].mesh(),
            .remat = planner_.DemandsOf(pipeline, ways_.ways).remat,
            .memory_price = ways_.ways[found.way].charged};
  }

  StageFigures FiguresOf(const Plan& plan, const FoundStage& found) const {
    const double update_us = found.cost.step_us;
    const double micro_batch_us = (plan.step_time_us - update_us) / input_.num_micro_batches;
    return {.times = {micro_batch_us, update_us}, .bytes = plan.peak_memory_bytes};
  }

  // The best of each mesh: the fastest that fits, or what needs least.
  void Take(Plan plan) {
    const std::string mesh = plan.stage.mesh.ToString();
    const auto known = planned_.find(mesh);
    if (known == planned_.end()) {
      planned_.emplace(mesh, std::move(plan));
    } else if (Rank(plan) < Rank(known->second)) {
      known->second = std::move(plan);
    }
  }

  bool Fits(const Plan& plan) const {
    return plan.peak_memory_bytes <= *request_.search.memory_limit_bytes;
  }
  std::tuple<bool, double> Rank(const Plan& plan) const {
    const bool fits = Fits(plan);
    return {!fits, fits ? plan.step_time_us : static_cast<double>(plan.peak_memory_bytes)};
  }

  // Of a plan that fits.
  const Plan* Best() const {
    const Plan* best = nullptr;
    for (const auto& [mesh, plan] : planned_) {
      if (best == nullptr || Rank(plan) < Rank(*best)) best = &plan;
    }
    return best != nullptr && Fits(*best) ? best : nullptr;
  }
  double BestUs() const { return Best() != nullptr ? Best()->step_time_us : kNever; }

  std::optional<double> LeastUs() const {
    const std::optional<double> least_us = LeastStepUs(ways_.ways, input_);
    if (!least_us) return std::nullopt;
    return *least_us / counted_more_;
  }

  // Why by mesh, where no plan on any is searched for.
  FittedMeshes NotWanted() const {
    FittedMeshes out;
    for (const Mesh& mesh : options_.meshes) {
      const absl::Status why = not_wanted_.ok() ? WhyNotPlanned(mesh) : not_wanted_;
      out.candidates.push_back({.mesh = mesh,
                                .method = Method::kShard,
                                .status = MakeError(absl::StatusCode::kAborted, Message(why))});
    }
    return out;
  }

  // The best plan there; where there is none, why.
  PlanCandidate CandidateOn(const Mesh& mesh) const {
    PlanCandidate candidate{.mesh = mesh, .method = Method::kShard};
    const auto planned = planned_.find(mesh.ToString());
    if (planned == planned_.end()) {
      candidate.status = WhyNotPlanned(mesh);
      return candidate;
    }
    candidate.plan = planned->second;
    candidate.plan.search_seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    candidate.fits = Fits(candidate.plan);
    return candidate;
  }

  // Where all is far too large: on the mesh of the plan that IsFarTooLarge made what would do.
  FittedMeshes NothingFits() const {
    FittedMeshes out;
    for (const Mesh& mesh : options_.meshes) {
      PlanCandidate& candidate = out.candidates.emplace_back(CandidateOn(mesh));
      if (!candidate.status.ok()) continue;
      const Refusal refusal =
          NoPlanFits(*request_.search.memory_limit_bytes, "the smallest limit known to work is",
                     candidate.plan.peak_memory_bytes, /*is_proved=*/false);
      candidate = {.mesh = mesh,
                   .method = Method::kShard,
                   .status = refusal.why,
                   .smallest_limit_bytes = refusal.smallest_limit_bytes};
    }
    return out;
  }

  // By the ways at hand, one of each mesh. Empty where a bound is not known.
  std::vector<MeshEstimate> Estimates() const {
    std::vector<MeshEstimate> estimates;
    for (size_t way = 0; way < ways_.ways.size(); ++way) {
      const std::vector<StageWay> alone = {ways_.ways[way]};
      const std::vector<FoundPipeline> found = FindStages(alone, input_);
      const std::optional<double> least_us = LeastStepUs(alone, input_);
      if (found.empty() || !least_us) return {};
      estimates.push_back({.mesh = ways_.meshes[way].mesh(),
                           .step_time_us = found.front().step_time_us,
                           .least_us = *least_us / counted_more_});
    }
    std::ranges::stable_sort(estimates, {}, &MeshEstimate::step_time_us);
    return estimates;
  }

  FittedMeshes Fitted() const {
    FittedMeshes out{.lower_bound = LowerBound()};
    if (LimitDoesNotBind() && out.lower_bound) out.estimates = Estimates();
    for (const Mesh& mesh : options_.meshes) {
      PlanCandidate& candidate = out.candidates.emplace_back(CandidateOn(mesh));
      if (!candidate.fits || !out.lower_bound) continue;
      candidate.plan.lower_bound = *out.lower_bound;
      candidate.plan.notes.emplace_back(kLeftOutByLayers);
    }
    return out;
  }

  // nullopt: unknown, or above the best plan.
  std::optional<double> LowerBound() const {
    const std::optional<double> least_us = LeastUs();
    const double objective = Best()->objective;
    if (!least_us || *least_us > objective * (1 + kRounding)) return std::nullopt;
    return std::min(*least_us, objective);
  }

  absl::Status WhyNotPlanned(const Mesh& mesh) const {
    std::vector<StageWay> ways;
    for (size_t way = 0; way < ways_.ways.size(); ++way) {
      if (ways_.meshes[way].mesh() == mesh) ways.push_back(ways_.ways[way]);
    }
    for (const RefusedWay& refused : ways_.refused) {
      if (ways.empty() && refused.where.mesh() == mesh) return refused.why;
    }
    const std::vector<FoundPipeline> found =
        ways.empty() ? std::vector<FoundPipeline>() : FindStages(ways, input_);
    if (found.empty()) return ResourceExhausted("not planned: estimated to need too much memory");
    return EstimatedToTake(found.front().step_time_us);
  }

  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  const PlanRequest request_;
  PipelinePlanner planner_;
  const FitByLayersOptions& options_;
  const bool is_small_ =
      planner_.simplified().module.entry_computation().num_instructions() <= kSearchedWhole;
  bool fits_anyway_ = false;  // what is fastest, nothing computed again, by what layers need
  absl::Status not_wanted_;   // not OK: why no plan on any mesh is searched for
  double fastest_us_ = 0;     // a step without a limit, by what layers take
  StageSearchInput input_;
  std::vector<MeshOfKind> all_;
  LayerWays ways_;
  bool saves_memory_ = false;  // the ways at hand are those that save memory, too
  std::optional<StageEstimates> estimates_;
  std::optional<StageCorrector> corrector_;
  std::map<WayKey, StageFigures> figures_;  // of what was planned
  double least_taken_ = kNever;             // of what layers estimate, by plans
  double counted_more_ = 1;  // what layers count (CountedUs), of the objectives of their plans
  // By which of these estimates are corrected: ways at hand, and how many layers they recompute.
  std::set<std::pair<int, int>> corrected_;
  std::map<std::string, Plan> planned_;  // by mesh
  WayKey best_key_;                      // that layers asked for: of the best
};

}  // namespace

PlanRequest OfOneStage(PlanRequest request, const RematChoice& remat) {
  request.methods = {Method::kShard};
  request.pipeline = PipelineOptions{.num_stages = 1};
  if (request.remat) request.remat = remat;
  return request;
}

absl::StatusOr<std::optional<FittedMeshes>> FitByLayers(const PlanRequest& request,
                                                        PreparedSteps& steps, StagePlanner& stages,
                                                        const FitByLayersOptions& options) {
  return FitSearch(request, steps, stages, options).Run();
}

}  // namespace minka
