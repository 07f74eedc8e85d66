#include "minka/lowering/device_position.h"

#include <algorithm>
#include <string>
#include <utility>

#include "minka/base/check.h"

namespace minka {

Value DevicePosition::Number(int64_t value) {
  const auto [entry, is_new] = numbers_.try_emplace(value);
  if (is_new) entry->second = builder_.Scalar(ElementType::kS32, static_cast<double>(value));
  return entry->second;
}

Value DevicePosition::Coordinate(int axis) {
  const auto found = coordinates_.find(axis);
  if (found != coordinates_.end()) return found->second;
  if (replica_.instruction < 0) {
    replica_ = builder_.Convert(builder_.ReplicaId(), ElementType::kS32);
  }
  Value coordinate = replica_;
  const int64_t stride = mesh_.stride(axis);
  if (stride > 1) coordinate = builder_.Binary(Opcode::kDivide, coordinate, Number(stride));
  if (stride * mesh_.size(axis) < mesh_.num_devices()) {
    coordinate = builder_.Binary(Opcode::kRemainder, coordinate, Number(mesh_.size(axis)));
  }
  coordinates_[axis] = coordinate;
  return coordinate;
}

Value DevicePosition::Part(const AxisList& axes) {
  MINKA_CHECK(!axes.empty());
  Value part = Coordinate(axes[0]);
  for (int i = 1; i < axes.size(); ++i) {
    const Value scaled = builder_.Binary(Opcode::kMultiply, part, Number(mesh_.size(axes[i])));
    part = builder_.Binary(Opcode::kAdd, scaled, Coordinate(axes[i]));
  }
  return part;
}

Value DevicePosition::Offset(const AxisList& axes, int64_t part_size) {
  const Value part = Part(axes);
  return part_size == 1 ? part : builder_.Binary(Opcode::kMultiply, part, Number(part_size));
}

Value DevicePosition::IsFirst(AxisSet axes) {
  const auto found = is_first_.find(axes);
  if (found != is_first_.end()) return found->second;
  Value all;
  for (const int axis : AxesOf(axes)) {
    const Value first =
        builder_.Compare(CompareAttributes::Direction::kEq, Coordinate(axis), Number(0));
    all = all.instruction < 0 ? first : builder_.Binary(Opcode::kAnd, all, first);
  }
  is_first_[axes] = all;
  return all;
}

Value KeepOnFirst(DevicePosition& position, Value x, AxisSet axes, double neutral) {
  if (axes.empty()) return x;
  ComputationBuilder& builder = position.builder();
  const std::vector<int64_t> dims = builder.shape(x).dims;
  Value keep = position.IsFirst(axes);
  if (!dims.empty()) keep = builder.Broadcast(keep, dims, {});
  return builder.Select(keep, x, builder.FullLike(x, neutral));
}

namespace {

// Might a factor in front of a slice of one element be lost (kProductsApartFromSlices)? Of
// slice(multiply(slice(x), broadcast(scalar))) in 32-bit integers XLA keeps slice(slice(x)), and it
// finds broadcasts in many things, in a sum that one device keeps and others have zeros for, say.
bool SliceMayLoseFactor(const ComputationBuilder& builder, Value whole,
                        const std::vector<int64_t>& sizes) {
  const ElementType type = builder.shape(whole).type;
  return (type == ElementType::kS32 || type == ElementType::kU32) &&
         sizes == std::vector<int64_t>{1} &&
         builder.computation().instruction(whole).opcode == Opcode::kMultiply;
}

}  // namespace

Value OwnPart(DevicePosition& position, Value whole, const Sharding& sharding) {
  if (sharding.split_axes().empty()) return whole;
  ComputationBuilder& builder = position.builder();
  std::vector<int64_t> sizes = builder.shape(whole).dims;
  std::vector<Value> starts(sizes.size());
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    const AxisList& axes = sharding.dims[dim];
    if (!axes.empty()) sizes[dim] /= NumParts(axes, position.mesh());
    starts[dim] = axes.empty() ? position.Number(0) : position.Offset(axes, sizes[dim]);
  }
  if (position.Takes(Departure::kProductsApartFromSlices) &&
      SliceMayLoseFactor(builder, whole, sizes)) {
    whole = builder.OptBarrier({{whole}})[0];
  }
  return builder.DynamicSlice(whole, starts, std::move(sizes));
}

std::vector<int> AxesOf(AxisSet axes) {
  std::vector<int> list;
  for (int axis = 0; axis < kMaxMeshAxes; ++axis) {
    if (axes.contains(axis)) list.push_back(axis);
  }
  return list;
}

}  // namespace minka
