// Which layers are a stage, on how many devices, how they run there and what they recompute: the
// pipelines that are fastest under a memory limit, by what each layer takes by itself on each mesh.
//
// For each bound on the work of a stage, a dynamic program from the last stage to the first finds
// the least sum of the stages' times, as Alpa's does (OSDI'22, section 5.2). Stages count from the
// end there, since that is what says how many micro-batches one holds at once. Estimates leave out
// what transfers take and what layers of one stage share.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"

namespace minka {

// Of one layer, on a device of its mesh.
struct LayerCost {
  double micro_batch_us = 0;    // forward and backward pass
  double step_us = 0;           // once per step: its update
  int64_t static_bytes = 0;     // all the time: state, sums over micro-batches
  int64_t saved_bytes = 0;      // of each micro-batch between its forward and its backward pass
  int64_t update_bytes = 0;     // while it is updated, when no micro-batch is there
  int64_t transient_bytes = 0;  // at most, beside these
};

// A way to run layers: a mesh, with how they are searched there.
struct StageWay {
  int num_devices = 1;
  std::vector<LayerCost> kept;        // by layer
  std::vector<LayerCost> recomputed;  // by layer, everything recomputed; empty: that is no choice
};

struct StageSearchInput {
  int num_devices = 1, devices_per_host = 1;
  int num_micro_batches = 1;
  std::optional<int64_t> limit_bytes;  // per device
  int num_stages = 0;                  // 0: any number from 2 on
  // Layers at which a stage begins, ascending from 0 on. Empty: any.
  std::vector<int> stage_begins;
  // How many micro-batches the n-th stage from the end holds at once, from n = 1 on; the last one
  // holds for all before it.
  std::vector<int> in_flight = {0, 1};
};

struct FoundStage {
  int begin_layer = 0, end_layer = 0;
  int way = 0;
  int num_recomputed = 0;  // of its layers, the first ones
  double micro_batch_us = 0, step_us = 0;
  int64_t bytes = 0;        // per device, with all micro-batches that it holds
  int64_t saved_bytes = 0;  // of these, of each micro-batch
};

struct FoundPipeline {
  double step_time_us = 0;
  std::vector<FoundStage> stages;

  int64_t peak_bytes() const;
};

// The best one of each number of stages that there is, fastest first. Meshes lie within a host or
// are whole hosts, and use all devices. Precondition: ways of equal numbers of layers, one at
// least.
std::vector<FoundPipeline> FindStages(const std::vector<StageWay>& ways,
                                      const StageSearchInput& options);

}  // namespace minka
