#include "minka/planner/inter_op/stage_candidates.h"

#include <algorithm>
#include <map>
#include <utility>

namespace minka {
namespace {

class CandidateLister {
 public:
  CandidateLister(const std::vector<StageWay>& ways, const StageSearchInput& input)
      : ways_(ways),
        input_(input),
        estimates_(ways),
        num_layers_(static_cast<int>(ways.front().kept.size())),
        first_equal_(FirstEqualLayers(ways)) {}

  std::vector<CandidateRun> Run() && {
    std::vector<CandidateRun> out;
    for (int begin = 0; begin < num_layers_; ++begin) {
      for (int end = begin + 1; end <= num_layers_; ++end) {
        const bool is_whole = begin == 0 && end == num_layers_;
        if (is_whole || !MayBound(begin) || !MayBound(end)) continue;
        out.push_back(Of({begin, end}));
      }
    }
    return out;
  }

 private:
  bool MayBound(int layer) const { return layer == num_layers_ || input_.MayBegin(layer); }

  CandidateRun Of(LayerRun layers) {
    CandidateRun run{.layers = layers};
    const std::vector<int> kinds(first_equal_.begin() + layers.begin,
                                 first_equal_.begin() + layers.end);
    const auto [known, is_new] = known_.try_emplace(kinds, layers);
    if (!is_new) {
      run.equal_to = known->second;
      return run;
    }
    for (int way = 0; way < static_cast<int>(ways_.size()); ++way) {
      const int num_layers = layers.end - layers.begin;
      const int most = ways_[way].MostRecomputed(num_layers);
      run.candidates.push_back(Candidate(way, layers, 0));
      if (most > num_layers) run.candidates.push_back(Candidate(way, layers, num_layers));
      if (most > 0) run.candidates.push_back(Candidate(way, layers, most));
    }
    FindFastest(run.candidates);
    return run;
  }

  StageCandidate Candidate(int way, LayerRun layers, int num_recomputed) const {
    const auto behind = [&](int num_stages) {
      return estimates_.StageOf(way, layers.begin, layers.end, num_recomputed,
                                input_.Held(num_stages + 1));
    };
    const int most_behind = static_cast<int>(input_.held.size()) - 2;
    StageCandidate out{.stage = behind(0)};
    // Whoever has more stages behind it holds no fewer micro-batches; that fewer of them are put
    // off, and may need less, is left out.
    while (out.most_stages_behind < most_behind && Fits(behind(out.most_stages_behind + 1)))
      ++out.most_stages_behind;
    if (out.most_stages_behind < 0) out.state = CandidateState::kTooLarge;
    return out;
  }

  bool Fits(const FoundStage& stage) const {
    return input_.FitsOn(ways_[stage.way].kind, stage.bytes);
  }

  void FindFastest(std::vector<StageCandidate>& candidates) const {
    std::map<Submesh, StageCandidate*> fastest;
    for (StageCandidate& candidate : candidates) {
      if (candidate.state == CandidateState::kTooLarge) continue;
      StageCandidate*& best = fastest[ways_[candidate.stage.way].submesh()];
      candidate.state = CandidateState::kSlower;
      if (best != nullptr && input_.BusyUs(best->stage) <= input_.BusyUs(candidate.stage)) continue;
      best = &candidate;
    }
    for (const auto& [submesh, best] : fastest) best->state = CandidateState::kFastest;
  }

  const std::vector<StageWay>& ways_;
  const StageSearchInput& input_;
  const StageEstimates estimates_;
  const int num_layers_;
  const std::vector<int> first_equal_;          // by layer
  std::map<std::vector<int>, LayerRun> known_;  // by what the layers are equal to
};

}  // namespace

std::vector<CandidateRun> ListCandidates(const std::vector<StageWay>& ways,
                                         const StageSearchInput& input) {
  return CandidateLister(ways, input).Run();
}

}  // namespace minka
