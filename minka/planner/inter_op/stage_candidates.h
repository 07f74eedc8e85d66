// What the search over stages had to choose from: every run of layers, on every mesh that a stage
// may have, and why it is none of what the search looks at.
#pragma once

#include <optional>
#include <vector>

#include "minka/planner/inter_op/stage_search.h"

namespace minka {

enum class CandidateState {
  kFastest,   // of its run of layers and number of devices, of those that fit
  kSlower,    // than that one
  kTooLarge,  // for the memory limit, even as the last stage
};

struct StageCandidate {
  FoundStage stage;  // with the micro-batches that the last stage holds
  // The largest number of stages that may be behind it for it to fit, of those that the search
  // tries; -1: it does not fit as the last one.
  int most_stages_behind = -1;
  CandidateState state = CandidateState::kFastest;
};

// Layers begin to end.
struct LayerRun {
  int begin = 0, end = 0;
  bool operator==(const LayerRun&) const = default;
};

struct CandidateRun {
  LayerRun layers;
  // An earlier run of layers that are equal one by one on every way: its candidates are those of
  // this one.
  std::optional<LayerRun> equal_to;
  std::vector<StageCandidate> candidates;  // by way: nothing, all but dots, everything recomputed
};

// Runs that may be stages of at least two, by their first layer, then by length. Precondition: as
// FindStages.
std::vector<CandidateRun> ListCandidates(const std::vector<StageWay>& ways,
                                         const StageSearchInput& input);

}  // namespace minka
