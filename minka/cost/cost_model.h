// What operations and collectives cost. Every formula and its source is in cost_model.cc, and
// nowhere else.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/analysis/flops.h"
#include "minka/cluster/cluster.h"
#include "minka/cost/calibration.h"
#include "minka/sharding/called_plan.h"
#include "minka/sharding/mesh.h"
#include "minka/sharding/reshard.h"

namespace minka {

// The work of one operation on one device.
struct LocalWork {
  Opcode opcode = Opcode::kOther;
  ElementType type = ElementType::kF32;
  double flops = 0;        // dots, convolutions: multiply-adds count two
  double elementwise = 0;  // weighted elementwise operations
  int64_t bytes = 0;       // read and written outside the fusion group
  // Of them, written where nothing lies that is read: processors read such lines first.
  int64_t fresh_bytes = 0;
  bool launches = false;   // first operation of its fusion group
  double cached_part = 0;  // of what it reads and writes, in the caches
  // What is written in another order of dimensions than it is read in: by transpositions, and of
  // operands that a dot wants in another order.
  int64_t transposed_bytes = 0;
  bool puts_other_dim_last = false;  // else only the order of leading ones changes
  // {batch, m, n, k} on the device: of a dot, and of the dot that a convolution is.
  std::vector<int64_t> dot_sizes;
  DotForm dot_form = DotForm::kNN;
  bool is_depthwise = false;                        // of convolutions: analysis/convolution_form.h
  ReductionKernel kernel = ReductionKernel::kNone;  // of reductions
};

// Costs are microseconds per step of the mesh, or unitless for alpa. Thread-safe.
class CostModel {
 public:
  virtual ~CostModel() = default;
  virtual std::string name() const = 0;  // roofline, measured, alpa
  // Whose compiler makes the programs that are priced.
  virtual Platform platform() const = 0;
  // One step over groups along its axes, all groups of the mesh at once.
  virtual double Collective(const StepWork& work, ElementType type) const = 0;
  // The part of Collective that does not depend on bytes.
  virtual double Latency(ReshardKind kind, AxisSet axes) const = 0;
  // What all devices of the mesh, which has its cores to itself, wait for each other at a
  // collective behind `phase_us` of work since the last one, beyond what Collective has: it has
  // what they wait behind next to no work. Never negative; grows with the work.
  virtual double Wait(double /*phase_us*/) const { return 0; }
  virtual double Operation(const LocalWork& work) const = 0;
  // What one turn of a loop may touch and find in the caches in the next; 0: not known.
  virtual double cache_bytes() const { return 0; }
  // By which the one pass that plans the inside of a loop or branch compares moving with computing
  // (called_plan.h); what it makes is priced as everything else. All models' so far.
  CalledPrices called_prices() const { return kTrialPrices; }
  // Whether collectives that run as one instruction pay one latency: alpa prices each by itself.
  virtual bool shares_latency() const = 0;
  // Whether compute may be repeated on an axis: alpa forbids undivided dots.
  virtual bool forbids_replicated_dots() const = 0;
};

// Does a tensor that is one of several of a collective instruction share more with them than the
// instruction? Where operands of an all-reduce are summed apart (SumsOperandsApart), only those do
// that are packed; others cost what they cost alone.
bool SharesLatency(const CostModel& cost, const StepWork& work);

// What one of several tensors adds to a collective instruction that they share, which pays
// GroupLatency once: its bytes, and where the tensors are packed into one array and taken apart
// again (IsPacked) reading and writing them on both sides, so that parts are whole blocks in
// between. Never negative. `num_members` of a group along the axes. Precondition: SharesLatency.
double PriceInGroup(const CostModel& cost, const StepWork& work, int64_t num_members,
                    ElementType type);
double GroupLatency(const CostModel& cost, ReshardKind kind, AxisSet axes);

// Latency-bandwidth collectives and roofline compute on the mesh laid over the cluster's devices in
// order; with a calibration its measured tables take the place of the cluster's rates ("measured").
std::unique_ptr<CostModel> MakeRooflineCostModel(const Cluster& cluster, const Mesh& mesh,
                                                 const Calibration* calibration = nullptr);

// Alpa's communication costs (facts of its tests): all-reduce alpha + 2 beta (n-1)/n B + 0.01 and
// so on, operations free. One alpha and beta per mesh axis.
absl::StatusOr<std::unique_ptr<CostModel>> MakeAlpaCostModel(const Mesh& mesh,
                                                             std::vector<double> alpha,
                                                             std::vector<double> beta,
                                                             bool allow_replicated_dots);

}  // namespace minka
