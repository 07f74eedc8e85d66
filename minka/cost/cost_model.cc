#include "minka/cost/cost_model.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/cost/host_links.h"

namespace minka {
namespace {

// The part of a GPU's multiprocessors that a batch of products [m, k] x [k, n] keeps busy, 0 to 1.
// Each takes a tile of a result at a time, so that the last turn may have too few of them and tiles
// reach over the results' edges ("wave" and "tile quantization" of NVIDIA's "Matrix Multiplication
// Background User's Guide"). Long sums are parted, each part a tile, where that fills turns better.
double BusyPart(int num_multiprocessors, int64_t batch, int64_t m, int64_t n, int64_t k) {
  if (num_multiprocessors == 0 || batch * m * n * k == 0) return 1;
  constexpr int64_t kLargestTile = 128, kShortestSum = 512;
  const auto tile = [&](int64_t size) {
    return size > kLargestTile / 2   ? kLargestTile
           : size > kLargestTile / 4 ? kLargestTile / 2
                                     : kLargestTile / 4;
  };
  const auto parts = [](int64_t size, int64_t of) { return (size + of - 1) / of; };
  const int64_t tiles = batch * parts(m, tile(m)) * parts(n, tile(n));
  double least_turns = 0;
  for (int64_t sums = 1; sums == 1 || (sums <= 8 && k / sums >= kShortestSum); sums *= 2) {
    const double turns =
        static_cast<double>(parts(tiles * sums, num_multiprocessors)) / static_cast<double>(sums);
    if (sums == 1 || turns < least_turns) least_turns = turns;
  }
  return static_cast<double>(batch * m * n) /
         (least_turns * static_cast<double>(num_multiprocessors * tile(m) * tile(n)));
}

class RooflineCostModel final : public CostModel {
 public:
  RooflineCostModel(const Cluster& cluster, const Mesh& mesh, const Calibration* calibration)
      : cluster_(cluster), mesh_(mesh), links_(cluster, mesh) {
    if (calibration) {
      calibration_ = *calibration;
      dots_ = ModelsOf(calibration->dots);
      cached_dots_ = ModelsOf(calibration->cached_dots);
      std::vector<DotPoint> whole, depthwise;
      for (const DotPoint& point : calibration->convolutions) {
        (point.batch > 1 ? depthwise : whole).push_back(point);
      }
      convolutions_ = ModelsOf(whole);
      depthwise_convolutions_ = ModelsOf(depthwise);
      if (calibration->has_half_units) {
        half_dots_ = ModelsOf(calibration->half_dots);
      } else {
        widening_ = HalfDotCostsOf(*calibration);
      }
    }
    const int on_one_host =
        static_cast<int>(std::min<int64_t>(mesh.num_devices(), cluster.devices_per_host));
    sharing_ = !cluster.shared_compute_pool ? 1.0
               : calibration_ ? static_cast<double>(on_one_host) / calibration_->num_devices
                              : on_one_host;
  }

  std::string name() const override { return calibration_ ? "measured" : "roofline"; }
  Platform platform() const override { return cluster_.platform(); }
  bool forbids_replicated_dots() const override { return false; }
  bool shares_latency() const override { return true; }

  double Collective(const StepWork& work, ElementType) const override {
    const auto bytes = static_cast<double>(work.local_bytes);
    if (!IsCollective(work.kind)) return LaunchUs() + 2 * bytes / BytesPerUs();
    const int64_t n = mesh_.size(work.axes);
    if (n == 1) return 0;
    if (calibration_) {
      const double us =
          CalibratedCollectiveUs(*calibration_, work.kind, n, bytes,
                                 {.is_strided = IsStrided(work.axes), .is_inner = work.is_inner});
      const double wait_us = n == mesh_.num_devices() ? CalibratedWaitUs(*calibration_, 0) : 0;
      if (us > 0) return (us + wait_us) * sharing_;
    }
    return links_.CollectiveUs(work.kind, bytes, work.axes) + LaunchUs();
  }

  double Latency(ReshardKind kind, AxisSet axes) const override {
    return Collective({.kind = kind, .axes = axes}, ElementType::kF32);
  }

  double Wait(double phase_us) const override {
    if (!calibration_) return 0;
    return (CalibratedWaitUs(*calibration_, phase_us / sharing_) -
            CalibratedWaitUs(*calibration_, 0)) *
           sharing_;
  }

  double cache_bytes() const override {
    return calibration_ ? static_cast<double>(calibration_->cache_bytes) / calibration_->cores : 0;
  }

  double Operation(const LocalWork& work) const override {
    const auto us = [&](bool is_cached) {
      const double memory =
          MemoryUs(work.bytes, is_cached ? 0 : work.fresh_bytes, is_cached) + TranspositionUs(work);
      double compute = work.elementwise / ElementwisePerUs(work);
      if (!work.dot_sizes.empty()) {
        compute += DotUs(work, is_cached);
      } else {
        compute += work.flops / FlopsPerUs(work.type);
      }
      return std::max(memory, compute);
    };
    double all_us = work.launches ? LaunchUs() : 0;
    if (work.cached_part < 1) all_us += (1 - work.cached_part) * us(/*is_cached=*/false);
    if (work.cached_part > 0) all_us += work.cached_part * us(/*is_cached=*/true);
    return all_us;
  }

 private:
  using DotModels = std::map<DotForm, DotModel>;

  DotModels ModelsOf(const std::vector<DotPoint>& dots) const {
    DotModels models;
    if (dots.empty()) return models;
    for (const DotForm form : kDotForms)
      models[form] = FitDots(dots, calibration_->cache_bytes > 0, form);
    return models;
  }
  double LaunchUs() const {
    return calibration_ ? calibration_->launch_us * sharing_ : cluster_.device.launch_us;
  }
  double BytesPerUs(bool is_cached = false) const {
    const double rate = !calibration_ ? cluster_.device.memory_bytes_per_us
                        : is_cached   ? calibration_->cached_bytes_per_us
                                      : calibration_->bytes_per_us;
    return rate / sharing_;
  }
  double MemoryUs(int64_t bytes, int64_t fresh_bytes, bool is_cached) const {
    const double us = static_cast<double>(bytes) / BytesPerUs(is_cached);
    // Half of what is copied is fresh.
    const double more_us_per_byte = std::max(0.0, 1 / CopiedBytesPerUs() - 1 / BytesPerUs());
    return us + 2 * static_cast<double>(fresh_bytes) * more_us_per_byte;
  }
  double CopiedBytesPerUs() const {
    const bool is_known = calibration_ && calibration_->copied_bytes_per_us > 0;
    return is_known ? calibration_->copied_bytes_per_us / sharing_ : BytesPerUs();
  }
  // Beyond what copying takes: loops that read in one order and write in another are not
  // vectorised.
  double TranspositionUs(const LocalWork& work) const {
    if (!calibration_) return 0;
    const double rate = work.puts_other_dim_last ? calibration_->swapped_bytes_per_us
                                                 : calibration_->transposed_bytes_per_us;
    if (rate == 0) return 0;
    const double us_per_byte = std::max(0.0, sharing_ / rate - 1 / CopiedBytesPerUs());
    return 2 * static_cast<double>(work.transposed_bytes) * us_per_byte;
  }
  // Elementwise units do one operation where matrix units do many: a sixteenth of the peak without
  // a measurement.
  double ElementwisePerUs(const LocalWork& work) const {
    if (!calibration_) {
      const DeviceKind& device = cluster_.device;
      const double rate =
          device.elementwise_per_us > 0 ? device.elementwise_per_us : device.peak_flops_per_us / 16;
      return rate / sharing_;
    }
    const bool is_half = IsNarrowFloat(work.type);
    for (const ReductionRate& rate : calibration_->reductions) {
      if (rate.kernel == work.kernel && rate.is_half == is_half)
        return rate.elementwise_per_us / sharing_;
    }
    const double rate =
        IsTranscendental(work.opcode)
            ? (is_half ? calibration_->half_elementwise_per_us : calibration_->elementwise_per_us)
            : (is_half ? calibration_->half_arithmetic_per_us : calibration_->arithmetic_per_us);
    return rate / sharing_;
  }
  // Are the members of groups along the axes no neighbours?
  bool IsStrided(AxisSet axes) const {
    bool is_inside = false;
    for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
      if (mesh_.size(axis) == 1) continue;
      if (is_inside && !axes.contains(axis)) return true;
      is_inside = is_inside || axes.contains(axis);
    }
    return false;
  }
  double FlopsPerUs(ElementType type) const {
    const DeviceKind& device = cluster_.device;
    const bool has_units =
        device.peak_half_flops_per_us > 0 &&
        (type == ElementType::kF16 || (type == ElementType::kBF16 && device.has_bf16));
    return (has_units ? device.peak_half_flops_per_us * device.half_efficiency
                      : device.peak_flops_per_us * device.f32_efficiency) /
           sharing_;
  }
  double DotUs(const LocalWork& work, bool is_cached) const {
    const DotModels& models = ModelsFor(work, is_cached);
    const auto& s = work.dot_sizes;
    if (models.empty()) {
      return work.flops / FlopsPerUs(work.type) /
             BusyPart(cluster_.device.num_multiprocessors, s[0], s[1], s[2], s[3]);
    }
    const DotModel& model = models.at(work.dot_form);
    return (model.Us(work.dot_form, s[0], s[1], s[2], s[3]) + WideningUs(work)) * sharing_;
  }
  const DotModels& ModelsFor(const LocalWork& work, bool is_cached) const {
    if (work.opcode == Opcode::kConvolution) {
      if (work.is_depthwise && !depthwise_convolutions_.empty()) return depthwise_convolutions_;
      if (!convolutions_.empty()) return convolutions_;
    }
    if (IsNarrowFloat(work.type) && !half_dots_.empty()) return half_dots_;
    return is_cached && !cached_dots_.empty() ? cached_dots_ : dots_;
  }
  // Convolutions are measured in f32 alone, dots in bf16 for what widening takes.
  double WideningUs(const LocalWork& work) const {
    if (!IsNarrowFloat(work.type)) return 0;
    const auto& s = work.dot_sizes;
    const auto elements = static_cast<double>(s[0] * (s[1] * s[3] + s[3] * s[2] + s[1] * s[2]));
    return widening_.Us(elements, cache_bytes());
  }
  const Cluster cluster_;
  const Mesh mesh_;
  const HostLinks links_;
  std::optional<Calibration> calibration_;
  // Empty: none measured.
  DotModels dots_, cached_dots_, half_dots_, convolutions_, depthwise_convolutions_;
  HalfDotCosts widening_;
  double sharing_ =
      1;  // how much slower a device is than its rates, because others use the same cores
};

// Alpa's communication costs (its LogicalDeviceMesh), with n the size of an axis:
//   all-reduce      alpha + 2 beta (n-1)/n B         all-gather  alpha + beta (n-1)/n B
//   reduce-scatter  alpha + beta (n-1)/n B           all-to-all  alpha + beta (n-1)/n^2 B n/2
// B: all-reduce and reduce-scatter the local operand, all-gather the result, all-to-all the tensor
// before it was split. Alpa adds 0.01, 0.1, 0.001 and 0.001 to break ties; a hundredth of that does
// it, too, and stays below what its tests compare. Several axes at once cost their sum. Operations
// cost nothing.
class AlpaCostModel final : public CostModel {
 public:
  AlpaCostModel(const Mesh& mesh, std::vector<double> alpha, std::vector<double> beta,
                bool allow_replicated_dots)
      : mesh_(mesh),
        alpha_(std::move(alpha)),
        beta_(std::move(beta)),
        allow_replicated_dots_(allow_replicated_dots) {}

  std::string name() const override { return "alpa"; }
  Platform platform() const override { return Platform::kCpu; }  // no latency is shared
  bool forbids_replicated_dots() const override { return !allow_replicated_dots_; }
  bool shares_latency() const override { return false; }

  double Collective(const StepWork& work, ElementType) const override {
    double total = 0;
    const auto bytes = static_cast<double>(work.local_bytes);
    for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
      if (work.axes.contains(axis) && mesh_.size(axis) > 1) {
        total += OneAxis(work.kind, bytes, axis);
      }
    }
    return total;
  }

  double Latency(ReshardKind kind, AxisSet axes) const override {
    return Collective({.kind = kind, .axes = axes}, ElementType::kF32);
  }

  double Operation(const LocalWork&) const override { return 0; }

 private:
  double OneAxis(ReshardKind kind, double bytes, int axis) const {
    const auto n = static_cast<double>(mesh_.size(axis));
    const double moved = beta_[axis] * (n - 1) / n * bytes;
    switch (kind) {
      case ReshardKind::kAllReduce:
        return alpha_[axis] + 2 * moved + 1e-4;
      case ReshardKind::kReduceScatter:
        return alpha_[axis] + moved + 1e-5;
      case ReshardKind::kAllGather:
        return alpha_[axis] + moved + 1e-3;
      case ReshardKind::kAllToAll:
        return alpha_[axis] + beta_[axis] * (n - 1) / (n * n) * (bytes * n) * (n / 2) + 1e-5;
      case ReshardKind::kSlice:
      case ReshardKind::kMakePartial:
        return 0;
    }
    MINKA_CHECK(false);
  }

  const Mesh mesh_;
  const std::vector<double> alpha_, beta_;
  const bool allow_replicated_dots_;
};

// Packing or taking apart `bytes`, without what each loop costs by itself.
double PackingUs(const CostModel& cost, int64_t bytes, AxisSet axes, ElementType type) {
  return cost.Collective({ReshardKind::kSlice, bytes, axes}, type) -
         cost.Collective({ReshardKind::kSlice, 0, axes}, type);
}

}  // namespace

bool SharesLatency(const CostModel& cost, const StepWork& work) {
  return !SumsOperandsApart(cost.platform()) ||
         IsPacked(work.kind, work.local_bytes, cost.platform());
}

double PriceInGroup(const CostModel& cost, const StepWork& work, int64_t num_members,
                    ElementType type) {
  StepWork packed = work;
  packed.is_inner = false;
  // Measured times may fall with the bytes; more work never takes less.
  const double us =
      std::max(0.0, cost.Collective(packed, type) - cost.Latency(work.kind, work.axes));
  if (!IsPacked(work.kind, work.local_bytes, cost.platform())) return us;
  const int64_t received_bytes =
      work.kind == ReshardKind::kAllReduce ? work.local_bytes : work.local_bytes / num_members;
  const double packed_us = us + PackingUs(cost, work.local_bytes, work.axes, type) +
                           PackingUs(cost, received_bytes, work.axes, type);
  // What is small was not slower packed than alone, however dear memory is.
  return work.local_bytes <= kMostPackedBytes ? std::min(packed_us, cost.Collective(packed, type))
                                              : packed_us;
}

double GroupLatency(const CostModel& cost, ReshardKind kind, AxisSet axes) {
  const double latency = cost.Latency(kind, axes);
  if (!IsPacked(kind, /*local_bytes=*/0, cost.platform())) return latency;
  return latency + 2 * cost.Collective({ReshardKind::kSlice, 0, axes}, ElementType::kF32);
}

std::unique_ptr<CostModel> MakeRooflineCostModel(const Cluster& cluster, const Mesh& mesh,
                                                 const Calibration* calibration) {
  return std::make_unique<RooflineCostModel>(cluster, mesh, calibration);
}

absl::StatusOr<std::unique_ptr<CostModel>> MakeAlpaCostModel(const Mesh& mesh,
                                                             std::vector<double> alpha,
                                                             std::vector<double> beta,
                                                             bool allow_replicated_dots) {
  const auto axes = static_cast<size_t>(mesh.num_axes());
  if (alpha.size() != axes || beta.size() != axes) {
    return InvalidArgument(
        "cost model alpa needs one alpha and one beta per mesh axis: the mesh {} has {}, got {} "
        "and {}",
        mesh.ToString(), axes, alpha.size(), beta.size());
  }
  return std::unique_ptr<CostModel>(std::make_unique<AlpaCostModel>(
      mesh, std::move(alpha), std::move(beta), allow_replicated_dots));
}

}  // namespace minka
