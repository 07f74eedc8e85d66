// Which layers are a stage, on how many devices, how they run there and what they recompute: the
// pipelines that are fastest under a memory limit, by what each layer takes by itself on each mesh.
//
// A step takes what a micro-batch takes there and back, and the most that a stage's work and
// waiting exceed that by (ScheduleTimes). For a bound on that excess, a dynamic program from the
// last stage to the first finds the least sum of what passing the stages takes and of what updates
// add, as Alpa's does for bounds on a stage's time (OSDI'22, section 5.2); which bounds are tried
// is found by branch and bound. Stages count from the end there, since that is what says how many
// micro-batches one holds at once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "minka/planner/inter_op/stage_corrections.h"
#include "minka/planner/inter_op/stage_estimate.h"

namespace minka {

// What is sent between two stages.
struct StageBorder {
  int layer = 0;  // the first behind it
  Submesh before, behind;
  bool crosses_hosts = false;
};

// Equal hosts with equal devices.
struct HostsOfKind {
  int num_devices = 1, devices_per_host = 1;
  std::optional<int64_t> limit_bytes;  // per device
  double share = 0;                    // see StageSearchInput::work
};

struct StageSearchInput {
  // By kind (StageWay::kind). Kinds follow each other along the pipeline in whatever order is
  // fastest.
  std::vector<HostsOfKind> hosts = {{}};
  // What each layer computes, in any unit. The layers on hosts of one kind compute a part of it as
  // near as may be to their share of the sum of all shares. Empty: whatever is fastest.
  std::vector<double> work;
  int num_micro_batches = 1;
  int num_stages = 0;  // 0: any number from 2 on
  // Layers at which a stage begins, ascending from 0 on. Empty: any.
  std::vector<int> stage_begins;
  // What the n-th stage from the end holds at once, from n = 1 on; the last one holds for all
  // before it. Empty: n micro-batches, as by 1f1b.
  std::vector<MicroBatchesHeld> held;
  // How long a micro-batch and its gradient are on their way. Empty: no time at all.
  std::function<double(const StageBorder& border)> send_us;
  // Stages compute gradients of weights while they would wait, as by zero-bubble-h1, and all end at
  // once; by others the ones behind end earlier.
  bool splits_backward = false;
  // All meshes compute with one pool of cores: a step takes what its stages take together. Of that
  // only LeastStepUs knows.
  bool meshes_share_cores = false;
  StageCorrections corrections;

  MicroBatchesHeld Held(int from_end) const {
    if (held.empty()) return {.in_flight = from_end};
    return held[std::min(from_end, static_cast<int>(held.size()) - 1)];
  }
  // May a stage begin at the layer?
  bool MayBegin(int layer) const {
    return stage_begins.empty() || std::ranges::find(stage_begins, layer) != stage_begins.end();
  }
  int num_devices() const;
  bool has_limit() const;
  // May a device of the kind hold so much?
  bool FitsOn(int kind, int64_t bytes) const {
    return !hosts[kind].limit_bytes || bytes <= *hosts[kind].limit_bytes;
  }
  // What a step of the stage takes, waiting aside.
  double BusyUs(const FoundStage& stage) const {
    return num_micro_batches * stage.cost.micro_batch_us + stage.cost.step_us;
  }
};

struct FoundPipeline {
  double step_time_us = 0;
  std::vector<FoundStage> stages;
};

// What the stage that is nearest to its limit, or furthest beyond, needs of it; 0: none has one.
double PartOfLimits(const FoundPipeline& found, const std::vector<StageWay>& ways,
                    const StageSearchInput& input);

// Meshes that the search looks at have a multiple of so many devices, and begin at one.
int DevicesPerBlock(const std::vector<HostsOfKind>& hosts);

// One of each number of stages that there is, fastest first: the best of that number where it takes
// hardly longer than the first. Meshes lie within a host or are whole hosts of one kind, and use
// all devices. Precondition: ways of equal numbers of layers, one at least.
std::vector<FoundPipeline> FindStages(const std::vector<StageWay>& ways,
                                      const StageSearchInput& options);

}  // namespace minka
