#include "minka/driver/mesh_shapes.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "minka/base/status.h"

namespace minka {
namespace {

// Factorisations of n into factors of at least 2, in order.
void Factorise(int64_t n, std::vector<int64_t>& factors, int max_factors,
               std::vector<std::vector<int64_t>>& out) {
  if (n == 1) {
    if (!factors.empty()) out.push_back(factors);
    return;
  }
  if (static_cast<int>(factors.size()) == max_factors) return;
  for (int64_t factor = 2; factor <= n; ++factor) {
    if (n % factor != 0) continue;
    factors.push_back(factor);
    Factorise(n / factor, factors, max_factors, out);
    factors.pop_back();
  }
}

// Does no axis lie both within hosts and between them?
bool HasAxesOfHosts(const std::vector<int64_t>& shape, int64_t num_hosts) {
  int64_t parts = 1;
  for (const int64_t size : shape) {
    if (parts == num_hosts) return true;
    parts *= size;
  }
  return parts == num_hosts;
}

JoinedAxes Join(const Mesh& mesh, const std::vector<std::vector<int>>& groups) {
  JoinedAxes joined{.axes = groups};
  std::vector<MeshAxis> axes;
  for (const std::vector<int>& group : groups) {
    MeshAxis axis;
    for (const int member : group) {
      axis.name += (axis.name.empty() ? "" : "_") + mesh.axis(member).name;
      axis.size *= mesh.size(member);
    }
    const auto is_taken = [&](const MeshAxis& other) { return other.name == axis.name; };
    while (std::ranges::any_of(axes, is_taken) ||
           (group.size() > 1 && mesh.FindAxis(axis.name) >= 0)) {
      axis.name += '_';
    }
    axes.push_back(std::move(axis));
  }
  joined.mesh = Mesh(std::move(axes));
  return joined;
}

// Cuts axes[begin..] into exactly `num_groups` runs, in every way.
void Cut(const std::vector<int>& axes, size_t begin, int num_groups,
         std::vector<std::vector<int>>& groups, std::vector<std::vector<std::vector<int>>>& out) {
  if (num_groups == 0) {
    if (begin == axes.size()) out.push_back(groups);
    return;
  }
  for (size_t end = begin + 1; end <= axes.size(); ++end) {
    groups.emplace_back(axes.begin() + static_cast<int64_t>(begin),
                        axes.begin() + static_cast<int64_t>(end));
    Cut(axes, end, num_groups - 1, groups, out);
    groups.pop_back();
  }
}

std::vector<int64_t> SortedSizes(const Mesh& mesh) {
  std::vector<int64_t> sizes;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) sizes.push_back(mesh.size(axis));
  std::ranges::sort(sizes);
  return sizes;
}

// The axis of the coarser mesh that stands for the finer ones, which follow each other; -1: none
// stands for exactly these.
int AxisFor(const JoinedAxes& joined, const std::vector<int>& axes) {
  const auto found = std::ranges::find(joined.axes, axes);
  return found == joined.axes.end() ? -1 : static_cast<int>(found - joined.axes.begin());
}

// Nothing where the dimension is split over a part of what is joined.
std::optional<AxisList> Coarser(const AxisList& finer, const JoinedAxes& joined) {
  AxisList coarser;
  std::vector<int> run;
  for (int i = 0; i < finer.size(); ++i) {
    run.push_back(finer[i]);
    const int axis = AxisFor(joined, run);
    if (axis < 0) continue;
    coarser.PushMinor(axis);
    run.clear();
  }
  if (!run.empty()) return std::nullopt;
  return coarser;
}

absl::StatusOr<std::string> PinOnJoinedAxes(const std::string& pin, const Mesh& mesh,
                                            const JoinedAxes& joined) {
  const size_t cut = pin.rfind('=');
  if (cut == std::string::npos) return pin;  // the search says what is wrong
  absl::StatusOr<Sharding> sharding = ParseSharding(std::string_view(pin).substr(cut + 1), mesh);
  if (!sharding.ok()) return WithContext(sharding.status(), fmt::format("pin \"{}\"", pin));
  for (AxisList& dim : sharding->dims) {
    const std::optional<AxisList> coarser = Coarser(dim, joined);
    if (!coarser) {
      return FailedPrecondition("pin \"{}\" keeps axes apart that {} joins", pin,
                                joined.mesh.ToString());
    }
    dim = *coarser;
  }
  sharding->partial = {};
  return pin.substr(0, cut + 1) + ToString(*sharding, joined.mesh);
}

// What the axes of a coarser mesh are on a finer one.
class AxesApart {
 public:
  AxesApart(const Mesh& mesh, const JoinedAxes& joined) : mesh_(mesh), joined_(joined) {}

  AxisList Of(const AxisList& coarser) const {
    AxisList finer;
    for (int i = 0; i < coarser.size(); ++i) {
      for (const int axis : joined_.axes[coarser[i]]) finer.PushMinor(axis);
    }
    return finer;
  }

  Sharding Of(const Sharding& coarser) const {
    Sharding finer;
    for (const AxisList& dim : coarser.dims) finer.dims.push_back(Of(dim));
    for (size_t axis = 0; axis < joined_.axes.size(); ++axis) {
      if (!coarser.partial.contains(static_cast<int>(axis))) continue;
      for (const int member : joined_.axes[axis]) finer.partial.Insert(member);
    }
    return finer;
  }

  Strategy Of(const Strategy& coarser) const {
    const size_t num_axes = joined_.axes.size();
    const auto num_finer = static_cast<size_t>(mesh_.num_axes());
    Strategy finer;
    finer.axes.resize(coarser.axes.size() / num_axes * num_finer);
    for (size_t i = 0; i < coarser.axes.size(); ++i) {
      for (const int axis : joined_.axes[i % num_axes]) {
        finer.axes[i / num_axes * num_finer + axis] = coarser.axes[i];
      }
    }
    return finer;
  }

  // In place: of the entry computation, or of one that is called.
  template <typename AnyReshard>
  void Write(AnyReshard& reshard) const {
    reshard.from = Of(reshard.from);
    reshard.to = Of(reshard.to);
    for (ReshardStep& step : reshard.steps) {
      step.axes = Of(step.axes);
      step.result = Of(step.result);
    }
  }

  void Write(CalledPlan& plan) const {
    for (Sharding& parameter : plan.parameters) parameter = Of(parameter);
    for (CalledPlan::Operation& operation : plan.operations) {
      operation.strategy = Of(operation.strategy);
      for (CalledPlan& called : operation.called) Write(called);
    }
    for (CalledReshard& reshard : plan.reshards) Write(reshard);
  }

 private:
  const Mesh& mesh_;
  const JoinedAxes& joined_;
};

}  // namespace

std::vector<Mesh> MeshShapes(const Cluster& cluster) {
  const int64_t num_devices = cluster.num_devices();
  static constexpr const char* kNames[] = {"x", "y", "z"};
  if (num_devices == 1) return {Mesh({{"x", 1}})};
  std::vector<std::vector<int64_t>> shapes;
  std::vector<int64_t> factors;
  Factorise(num_devices, factors, 3, shapes);
  if (cluster.has_equal_links()) {
    std::erase_if(shapes,
                  [](const std::vector<int64_t>& shape) { return !std::ranges::is_sorted(shape); });
  }
  std::ranges::stable_sort(shapes, {}, [&](const std::vector<int64_t>& shape) {
    return std::pair(!HasAxesOfHosts(shape, cluster.num_hosts), shape.size());
  });
  std::vector<Mesh> meshes;
  for (const std::vector<int64_t>& shape : shapes) {
    std::vector<MeshAxis> axes;
    for (size_t i = 0; i < shape.size(); ++i) axes.push_back({kNames[i], shape[i]});
    meshes.emplace_back(std::move(axes));
  }
  return meshes;
}

absl::StatusOr<std::vector<Mesh>> SubmeshShapes(const Cluster& cluster, int num_devices) {
  if (num_devices > cluster.devices_per_host && num_devices % cluster.devices_per_host != 0) {
    return InvalidArgument("{} devices are no whole number of hosts of {}", num_devices,
                           cluster.devices_per_host);
  }
  return MeshShapes(cluster.FirstDevices(num_devices));
}

int NumAxesThatSplit(const Mesh& mesh) {
  int num_axes = 0;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) num_axes += mesh.size(axis) > 1;
  return num_axes;
}

std::vector<JoinedAxes> JoinNeighbours(const Mesh& mesh, int max_axes, bool equal_links) {
  std::vector<int> axes;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    if (mesh.size(axis) > 1) axes.push_back(axis);
  }
  std::vector<std::vector<std::vector<int>>> cuts;
  std::vector<std::vector<int>> groups;
  for (int num_groups = 1; num_groups <= max_axes; ++num_groups) {
    Cut(axes, 0, num_groups, groups, cuts);
  }
  std::vector<JoinedAxes> joined;
  std::set<std::vector<int64_t>> seen;
  for (const std::vector<std::vector<int>>& cut : cuts) {
    JoinedAxes next = Join(mesh, cut);
    if (equal_links && !seen.insert(SortedSizes(next.mesh)).second) continue;
    joined.push_back(std::move(next));
  }
  return joined;
}

absl::StatusOr<SearchOptions> OnJoinedAxes(const SearchOptions& search, const Mesh& mesh,
                                           const JoinedAxes& joined) {
  SearchOptions out = search;
  for (std::string& pin : out.pins) {
    ASSIGN_OR_RETURN(pin, PinOnJoinedAxes(pin, mesh, joined));
  }
  std::string& batch_axis = out.limits.batch_axis;
  const int axis = mesh.FindAxis(batch_axis);
  if (batch_axis.empty() || axis < 0) return out;
  const int coarser = AxisFor(joined, {axis});
  if (coarser < 0) {
    return FailedPrecondition("--batch-axis {} is no axis of {}", batch_axis,
                              joined.mesh.ToString());
  }
  batch_axis = joined.mesh.axis(coarser).name;
  return out;
}

StagePlan WithAxesApart(StagePlan stage, const Mesh& mesh, const JoinedAxes& joined) {
  const AxesApart apart(mesh, joined);
  stage.mesh = mesh;
  for (OpPlan& op : stage.ops) {
    op.strategy = apart.Of(op.strategy);
    for (CalledPlan& called : op.called) apart.Write(called);
  }
  for (Reshard& reshard : stage.reshards) apart.Write(reshard);
  return stage;
}

}  // namespace minka
