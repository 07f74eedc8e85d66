#include "minka/lowering/reshard_steps.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "minka/base/check.h"

namespace minka {
namespace {

using Groups = std::vector<std::vector<int64_t>>;

Groups GroupsOf(const Mesh& mesh, const AxisList& axes) {
  std::vector<int> list;
  for (int i = 0; i < axes.size(); ++i) list.push_back(axes[i]);
  return mesh.Groups(list);
}

int64_t ProductOf(const std::vector<int64_t>& dims) {
  return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
}

// [.., parts * s, ..] -> [parts, .., s, ..]: block i in front holds part i of `dim`.
Value SplitToFront(ComputationBuilder& builder, Value x, int dim, int64_t parts) {
  std::vector<int64_t> dims = builder.shape(x).dims;
  dims[dim] /= parts;
  dims.insert(dims.begin() + dim, parts);
  std::vector<int64_t> permutation(dims.size());
  std::iota(permutation.begin(), permutation.end(), 0);
  permutation.erase(permutation.begin() + dim);
  permutation.insert(permutation.begin(), dim);
  const Value blocks = builder.Reshape(x, std::move(dims));
  return dim == 0 ? blocks : builder.Transpose(blocks, std::move(permutation));
}

// [parts, .., s, ..] -> [.., parts * s, ..]; `dim` counts without the front.
Value JoinFromFront(ComputationBuilder& builder, Value blocks, int dim) {
  std::vector<int64_t> dims = builder.shape(blocks).dims;
  const int64_t parts = dims[0];
  std::vector<int64_t> permutation(dims.size() - 1);
  std::iota(permutation.begin(), permutation.end(), 1);
  permutation.insert(permutation.begin() + dim, 0);
  const Value ordered = dim == 0 ? blocks : builder.Transpose(blocks, std::move(permutation));
  dims.erase(dims.begin());
  dims[dim] *= parts;
  return builder.Reshape(ordered, std::move(dims));
}

// HLO's array form cuts and joins the same dimension, so both happen on blocks in front.
Value EmitAllToAll(DevicePosition& position, Value x, const ReshardStep& step) {
  ComputationBuilder& builder = position.builder();
  const int64_t parts = position.mesh().size(step.axes.axes());
  // XLA sends slices of the blocks. One that is an operand of a concatenation it replaces by that,
  // in another layout perhaps, and then refuses the all-to-all for its unlike operands.
  if (position.Takes(Departure::kConcatenationsApartFromAllToAlls) &&
      builder.computation().instruction(x).opcode == Opcode::kConcatenate) {
    x = builder.OptBarrier({{x}})[0];
  }
  const Value blocks = SplitToFront(builder, x, step.to_dim, parts);
  const Value received = builder.AllToAll(blocks, 0, GroupsOf(position.mesh(), step.axes));
  return JoinFromFront(builder, received, step.dim);
}

// Columns [start, start + count) of a matrix.
Value Columns(ComputationBuilder& builder, Value matrix, int64_t start, int64_t count) {
  const int64_t rows = builder.shape(matrix).dims[0];
  return builder.Slice(matrix, {{0, start}, {rows, start + count}, {1, 1}});
}

std::vector<Value> EmitCombinedReduceScatter(DevicePosition& position,
                                             std::span<const Value> values,
                                             std::span<const ReshardStep> steps) {
  ComputationBuilder& builder = position.builder();
  const int64_t parts = position.mesh().size(steps[0].axes.axes());
  std::vector<Value> blocks;
  for (size_t i = 0; i < values.size(); ++i) {
    const Value front = SplitToFront(builder, values[i], steps[i].dim, parts);
    const int64_t count = ProductOf(builder.shape(values[i]).dims) / parts;
    blocks.push_back(builder.Reshape(front, {parts, count}));
  }
  const Value received = builder.ReduceScatter(builder.Concatenate(blocks, 1), 0, Opcode::kAdd,
                                               GroupsOf(position.mesh(), steps[0].axes));
  std::vector<Value> results;
  int64_t start = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    std::vector<int64_t> dims = builder.shape(values[i]).dims;
    dims[steps[i].dim] /= parts;
    const int64_t count = ProductOf(dims);
    results.push_back(builder.Reshape(Columns(builder, received, start, count), std::move(dims)));
    start += count;
  }
  return results;
}

// The compiler gathers in front whatever is asked for and leaves the order to those that read it.
// Loops that read a row again and again, such as products with a depthwise kernel, are not
// vectorised then: few rows are put into order once, which takes no time. `part`: a device's.
bool IsOrderedOnce(const DevicePosition& position, const Shape& part, int dim) {
  // Arrays of fewer rows are kernels of depthwise convolutions and the like.
  constexpr int64_t kFewRows = 64;
  const std::vector<int64_t>& dims = part.dims;
  const bool is_in_front =
      std::all_of(dims.begin(), dims.begin() + dim, [](int64_t size) { return size == 1; });
  return !is_in_front && ProductOf(dims) < kFewRows * dims[dim] &&
         position.Takes(Departure::kOrderedGathers);
}

Value EmitAllGather(DevicePosition& position, Value x, const ReshardStep& step) {
  ComputationBuilder& builder = position.builder();
  Groups groups = GroupsOf(position.mesh(), step.axes);
  if (!IsOrderedOnce(position, builder.shape(x), step.dim))
    return builder.AllGather(x, step.dim, std::move(groups));
  std::vector<int64_t> dims = builder.shape(x).dims;
  dims.insert(dims.begin(), 1);
  const Value blocks = builder.AllGather(builder.Reshape(x, std::move(dims)), 0, std::move(groups));
  return builder.OptBarrier({{JoinFromFront(builder, blocks, step.dim)}})[0];
}

std::vector<Value> EmitCombinedAllGather(DevicePosition& position, std::span<const Value> values,
                                         std::span<const ReshardStep> steps) {
  ComputationBuilder& builder = position.builder();
  std::vector<Value> rows;
  for (const Value value : values) {
    rows.push_back(builder.Reshape(value, {1, ProductOf(builder.shape(value).dims)}));
  }
  const Value received =
      builder.AllGather(builder.Concatenate(rows, 1), 0, GroupsOf(position.mesh(), steps[0].axes));
  const int64_t parts = builder.shape(received).dims[0];
  std::vector<Value> results;
  int64_t start = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    std::vector<int64_t> dims = builder.shape(values[i]).dims;
    const int64_t count = ProductOf(dims);
    dims.insert(dims.begin(), parts);
    const Value blocks = builder.Reshape(Columns(builder, received, start, count), std::move(dims));
    // Loops over many rows would look up what they add to each part by part.
    const Value whole = JoinFromFront(builder, blocks, steps[i].dim);
    results.push_back(position.Takes(Departure::kOrderedGathers) ? builder.OptBarrier({{whole}})[0]
                                                                 : whole);
    start += count;
  }
  return results;
}

static_assert(Departures::Of(Platform::kCpu).contains(Departure::kPackedAllReduces) ==
                  SumsOperandsApart(Platform::kCpu) &&
              Departures::Of(Platform::kCuda).contains(Departure::kPackedAllReduces) ==
                  SumsOperandsApart(Platform::kCuda));

std::vector<Value> EmitCombinedAllReduce(DevicePosition& position, std::span<const Value> values,
                                         const AxisList& axes) {
  ComputationBuilder& builder = position.builder();
  const auto is_packed = [&](Value value) {
    return position.Takes(Departure::kPackedAllReduces) &&
           builder.shape(value).num_bytes() <= kMostPackedBytes;
  };
  const bool packs_any = std::ranges::count_if(values, is_packed) > 1;
  std::vector<Value> operands, packed;
  for (const Value value : values) {
    if (packs_any && is_packed(value)) {
      packed.push_back(builder.Reshape(value, {builder.shape(value).num_elements()}));
    } else {
      operands.push_back(value);
    }
  }
  if (packs_any) operands.push_back(builder.Concatenate(packed, 0));
  const std::vector<Value> sums =
      builder.AllReduce(operands, Opcode::kAdd, GroupsOf(position.mesh(), axes));
  std::vector<Value> results;
  size_t next = 0;    // of those that are not packed
  int64_t start = 0;  // in the array of those that are
  for (const Value value : values) {
    if (!packs_any || !is_packed(value)) {
      results.push_back(sums[next++]);
      continue;
    }
    const Shape& shape = builder.shape(value);
    const int64_t limit = start + shape.num_elements();
    results.push_back(
        builder.Reshape(builder.Slice(sums.back(), {{start}, {limit}, {1}}), shape.dims));
    start = limit;
  }
  return results;
}

}  // namespace

Value EmitStep(DevicePosition& position, Value x, const ReshardStep& step) {
  ComputationBuilder& builder = position.builder();
  const Mesh& mesh = position.mesh();
  switch (step.kind) {
    case ReshardKind::kAllReduce: {
      const Value values[] = {x};
      return builder.AllReduce(values, Opcode::kAdd, GroupsOf(mesh, step.axes))[0];
    }
    case ReshardKind::kReduceScatter:
      return builder.ReduceScatter(x, step.dim, Opcode::kAdd, GroupsOf(mesh, step.axes));
    case ReshardKind::kAllGather:
      return EmitAllGather(position, x, step);
    case ReshardKind::kAllToAll:
      return EmitAllToAll(position, x, step);
    case ReshardKind::kSlice: {
      Sharding part = Sharding::Replicated(builder.shape(x).rank());
      part.dims[step.dim] = step.axes;
      return OwnPart(position, x, part);
    }
    case ReshardKind::kMakePartial:
      return KeepOnFirst(position, x, step.axes.axes());
  }
  MINKA_CHECK(false, "unknown reshard kind");
}

std::vector<Value> EmitCombinedStep(DevicePosition& position, std::span<const Value> values,
                                    std::span<const ReshardStep> steps) {
  if (values.size() == 1) return {EmitStep(position, values[0], steps[0])};
  const ReshardKind kind = steps[0].kind;
  if (kind == ReshardKind::kReduceScatter) {
    return EmitCombinedReduceScatter(position, values, steps);
  }
  if (kind == ReshardKind::kAllGather) return EmitCombinedAllGather(position, values, steps);
  MINKA_CHECK(kind == ReshardKind::kAllReduce, "{} cannot be combined", ToString(kind));
  return EmitCombinedAllReduce(position, values, steps[0].axes);
}

}  // namespace minka
