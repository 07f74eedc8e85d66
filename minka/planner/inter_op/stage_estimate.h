// What a stage takes, by what each of its layers takes by itself on the stage's mesh. Estimates
// leave out what transfers take and what layers of one stage share.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "minka/planner/intra_op/intra_op.h"
#include "minka/schedule/schedule.h"

namespace minka {

// Of one layer, on a device of its mesh; of several layers the sum, and of transients the largest.
struct LayerCost {
  double forward_us = 0;        // of micro_batch_us, its forward pass
  double micro_batch_us = 0;    // forward and backward pass
  double step_us = 0;           // once per step: its update
  int64_t static_bytes = 0;     // all the time: state, sums over micro-batches
  int64_t owned_bytes = 0;      // of these, what no other layer counts: state and sums alone
  int64_t saved_bytes = 0;      // of each micro-batch between its forward and its backward pass
  int64_t put_off_bytes = 0;    // of each whose gradients of weights are put off, instead
  int64_t handed_on_bytes = 0;  // of these, what its backward pass makes for them
  int64_t update_bytes = 0;     // while it is updated, when no micro-batch is there
  int64_t transient_bytes = 0;  // at most, beside these
  // Of one layer: the objective of none of its plans is less of a step, together with what its
  // memory costs (StageWay::charged). 0 where nothing is known.
  double least_us = 0;
  bool operator==(const LayerCost&) const = default;
};

// What a stage may lie on: so many devices of one kind of hosts.
struct Submesh {
  int kind = 0;
  int num_devices = 1;
  auto operator<=>(const Submesh&) const = default;
};

// A way to run layers: a mesh, with how they are searched there.
struct StageWay {
  int kind = 0;  // of the hosts
  int num_devices = 1;
  int mesh = 0;                       // equal for ways on the same mesh
  MemoryPrice charged;                // for what a layer holds
  std::vector<LayerCost> kept;        // by layer
  std::vector<LayerCost> dots_kept;   // by layer, all else recomputed; empty: that is no choice
  std::vector<LayerCost> recomputed;  // by layer, everything recomputed; empty: that is no choice
  // Do all layers of a stage keep no more than their dots before any is recomputed whole?
  bool keeps_dots_first = false;

  Submesh submesh() const { return {kind, num_devices}; }
  // FoundStage::num_recomputed of a stage of so many layers that recomputes all there is.
  int MostRecomputed(int num_layers) const {
    return recomputed.empty() ? 0 : num_layers * (keeps_dots_first ? 2 : 1);
  }
};

// Does a byte less take less time where dots are kept than where nothing is?
bool SavesMoreByKeepingDots(const StageWay& way);

struct FoundStage {
  int begin_layer = 0, end_layer = 0;
  int way = 0;
  // Of its layers, the first ones. Where dots are kept first, that is what is kept of so many; what
  // is beyond the number of layers counts those that are recomputed whole.
  int num_recomputed = 0;
  LayerCost cost;     // of its layers
  int64_t bytes = 0;  // per device, with all micro-batches that it holds
};

// What is recomputed of a layer of a stage on that way.
RematPolicy RecomputedOf(const StageWay& way, const FoundStage& stage, int layer);

// By layer: the first one that is equal to it on every way. Precondition: ways of equal numbers of
// layers.
std::vector<int> FirstEqualLayers(const std::vector<StageWay>& ways);

class StageEstimates {
 public:
  explicit StageEstimates(const std::vector<StageWay>& ways);

  // Of layers begin to end, of which the first are recomputed (FoundStage::num_recomputed), that
  // hold so many micro-batches at once.
  FoundStage StageOf(int way, int begin, int end, int num_recomputed, MicroBatchesHeld held) const;

 private:
  // Sums over the first layers of one way, and the largest transients of runs.
  class Prefixes {
   public:
    explicit Prefixes(const std::vector<LayerCost>& layers);
    LayerCost Sum(int begin, int end) const;

   private:
    std::vector<LayerCost> sums_;
    std::vector<std::vector<int64_t>> most_transient_;  // by first layer and number of others
  };
  std::vector<Prefixes> kept_, dots_kept_, recomputed_;  // by way
  std::vector<bool> keeps_dots_first_;
};

}  // namespace minka
