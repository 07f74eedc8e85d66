// Gather from and scatter into a table of which every device holds a part of the rows. Windows of
// several rows may lie across parts: then the part is padded by the window's size on both sides.
#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "minka/base/check.h"
#include "minka/lowering/local_operation.h"

namespace minka {
namespace {

using Direction = CompareAttributes::Direction;

// One component of an index vector.
struct IndexComponent {
  int table_dim = 0;
  AxisList axes;           // that split the table dimension; empty: whole
  int64_t part_size = 0;   // of the dimension on this device
  int64_t last_start = 0;  // largest start that the whole table allows
  int64_t window = 0;      // rows that one index looks up where the part is padded by them; else 0

  // The largest start in the padded part.
  int64_t last_in_part() const { return part_size + window; }
};

std::vector<IndexComponent> Components(const SourceOperation& source, const Mesh& mesh,
                                       const std::vector<int64_t>& index_map,
                                       const std::vector<int64_t>& slice_sizes) {
  const Sharding table = OperandSharding(source.rule, source.strategy, 0);
  const Shape& shape = source.operand_shape(0);
  std::vector<IndexComponent> components;
  for (const int64_t dim : index_map) {
    const int factor = source.rule.operand_dims[0][dim];
    const LocalForm form =
        factor == kWholeDim ? LocalForm::kPlain : source.rule.factors[factor].local_form;
    const bool offset = form == LocalForm::kIndexOffset || form == LocalForm::kWindowOffset;
    IndexComponent component{static_cast<int>(dim), offset ? table.dims[dim] : AxisList()};
    component.part_size = shape.dims[dim] / NumParts(component.axes, mesh);
    component.last_start = shape.dims[dim] - slice_sizes[dim];
    if (form == LocalForm::kWindowOffset && !component.axes.empty()) {
      component.window = slice_sizes[dim];
    }
    components.push_back(component);
  }
  return components;
}

// How many rows of each dimension an index vector of a scatter writes.
std::vector<int64_t> WindowSizes(const SourceOperation& source) {
  const auto& scatter = source.instruction().As<ScatterAttributes>();
  const std::vector<int64_t>& updates = source.operand_shape(2).dims;
  std::vector<int64_t> sizes;
  size_t next = 0;
  for (int64_t dim = 0; dim < source.operand_shape(0).rank(); ++dim) {
    const auto is_in = [&](const std::vector<int64_t>& dims) {
      return std::ranges::find(dims, dim) != dims.end();
    };
    const bool inserted = is_in(scatter.inserted_window_dims) || is_in(scatter.input_batching_dims);
    sizes.push_back(inserted ? 1 : updates[scatter.update_window_dims[next++]]);
  }
  return sizes;
}

// Padding of the part by the windows, on both sides.
PadAttributes WindowPadding(const std::vector<IndexComponent>& components, int rank) {
  const std::vector<int64_t> none(rank, 0);
  PadAttributes pad{none, none, none};
  for (const IndexComponent& component : components) {
    pad.low[component.table_dim] = pad.high[component.table_dim] = component.window;
  }
  return pad;
}

bool HasWindows(const std::vector<IndexComponent>& components) {
  return std::ranges::any_of(components,
                             [](const auto& component) { return component.window > 0; });
}

// A scalar per component, spread along the dimension of the index vectors.
Value PerComponent(ComputationBuilder& builder, const std::vector<Value>& scalars,
                   const std::vector<int64_t>& dims, int64_t index_vector_dim) {
  if (index_vector_dim == static_cast<int64_t>(dims.size())) {
    return dims.empty() ? scalars[0] : builder.Broadcast(scalars[0], dims, {});
  }
  std::vector<Value> entries;
  for (const Value scalar : scalars) entries.push_back(builder.Reshape(scalar, {1}));
  const Value vector = entries.size() == 1 ? entries[0] : builder.Concatenate(entries, 0);
  return builder.Broadcast(vector, dims, {index_vector_dim});
}

Value Offsets(DevicePosition& position, const std::vector<IndexComponent>& components,
              const std::vector<int64_t>& dims, int64_t index_vector_dim) {
  std::vector<Value> scalars;
  for (const IndexComponent& component : components) {
    Value offset = component.axes.empty() ? position.Number(0)
                                          : position.Offset(component.axes, component.part_size);
    if (component.window > 0) {
      offset =
          position.builder().Binary(Opcode::kSubtract, offset, position.Number(component.window));
    }
    scalars.push_back(offset);
  }
  return PerComponent(position.builder(), scalars, dims, index_vector_dim);
}

Value Bounds(DevicePosition& position, const std::vector<IndexComponent>& components,
             const std::vector<int64_t>& dims, int64_t index_vector_dim,
             int64_t (*bound)(const IndexComponent&)) {
  std::vector<Value> scalars;
  for (const IndexComponent& component : components) {
    scalars.push_back(position.Number(bound(component)));
  }
  return PerComponent(position.builder(), scalars, dims, index_vector_dim);
}

// s32 starts as the whole table's gather clamps them. Wide types are clamped before they are
// converted, because their values need not fit; the bounds always do.
Value ClampedStarts(DevicePosition& position, const std::vector<IndexComponent>& components,
                    Value indices, int64_t index_vector_dim) {
  ComputationBuilder& builder = position.builder();
  if (ElementBytes(builder.shape(indices).type) < 4) {
    indices = builder.Convert(indices, ElementType::kS32);
  }
  const Shape shape = builder.shape(indices);
  const auto typed = [&](Value bounds) {
    return shape.type == ElementType::kS32 ? bounds : builder.Convert(bounds, shape.type);
  };
  const Value last = Bounds(position, components, shape.dims, index_vector_dim,
                            [](const IndexComponent& component) { return component.last_start; });
  Value clamped = builder.Binary(Opcode::kMaximum, indices, builder.FullLike(indices, 0));
  clamped = builder.Binary(Opcode::kMinimum, clamped, typed(last));
  return shape.type == ElementType::kS32 ? clamped : builder.Convert(clamped, ElementType::kS32);
}

// pred: is every component of the index vector in the device's part?
Value IsInPart(DevicePosition& position, const std::vector<IndexComponent>& components,
               Value starts, int64_t index_vector_dim) {
  ComputationBuilder& builder = position.builder();
  const std::vector<int64_t> dims = builder.shape(starts).dims;
  const Value last =
      Bounds(position, components, dims, index_vector_dim, [](const IndexComponent& component) {
        if (component.axes.empty()) return component.last_start;
        return component.window > 0 ? component.last_in_part() : component.part_size - 1;
      });
  const Value inside = builder.Binary(
      Opcode::kAnd, builder.Compare(Direction::kGe, starts, builder.FullLike(starts, 0)),
      builder.Compare(Direction::kLe, starts, last));
  if (index_vector_dim == static_cast<int64_t>(dims.size())) return inside;
  const Value all = builder.Scalar(ElementType::kPred, 1);
  return builder.Reduce(inside, all, {index_vector_dim}, Opcode::kAnd);
}

}  // namespace

Value ClampIndices(const SourceOperation& gather, Value indices, DevicePosition& position) {
  const auto& attributes = gather.instruction().As<GatherAttributes>();
  const std::vector<IndexComponent> components =
      Components(gather, position.mesh(), attributes.start_index_map, attributes.slice_sizes);
  return ClampedStarts(position, components, indices, attributes.index_vector_dim);
}

std::vector<Value> EmitGatherOfPart(const SourceOperation& source, std::vector<Value> operands,
                                    DevicePosition& position) {
  ComputationBuilder& builder = position.builder();
  const Instruction& instruction = source.instruction();
  const auto& attributes = instruction.As<GatherAttributes>();
  const std::vector<IndexComponent> components =
      Components(source, position.mesh(), attributes.start_index_map, attributes.slice_sizes);
  const int64_t vector_dim = attributes.index_vector_dim;
  const Value clamped = ClampedStarts(position, components, operands[1], vector_dim);
  const std::vector<int64_t> index_dims = builder.shape(clamped).dims;
  Value starts = builder.Binary(Opcode::kSubtract, clamped,
                                Offsets(position, components, index_dims, vector_dim));
  if (HasWindows(components)) {
    // A window that lies in another part falls into the padding, which is zero.
    const auto low = [](const IndexComponent& component) -> int64_t {
      return component.window > 0 ? 0 : std::numeric_limits<int32_t>::min();
    };
    const auto high = [](const IndexComponent& component) -> int64_t {
      return component.window > 0 ? component.last_in_part() : std::numeric_limits<int32_t>::max();
    };
    starts = builder.Binary(Opcode::kMaximum, starts,
                            Bounds(position, components, index_dims, vector_dim, low));
    starts = builder.Binary(Opcode::kMinimum, starts,
                            Bounds(position, components, index_dims, vector_dim, high));
    const PadAttributes pad = WindowPadding(components, builder.shape(operands[0]).rank());
    const Value zero = builder.Scalar(builder.shape(operands[0]).type, 0);
    operands[0] = builder.Pad(operands[0], zero, pad);
  }

  const Shape shapes[] = {source.operand_shape(0), source.operand_shape(1)};
  const Shape local_shapes[] = {builder.shape(operands[0]), builder.shape(starts)};
  const Shape result = LocalShape(instruction.results[0],
                                  ResultSharding(source.rule, source.strategy, 0), position.mesh());
  Instruction local = instruction;
  local.operands = {operands[0], starts};
  local.attributes = LocalAttributes(instruction, shapes, local_shapes, {&result, 1});
  auto& local_attributes = std::get<GatherAttributes>(local.attributes);
  local_attributes.indices_are_sorted = false;
  local.results = {result};
  const Value rows = builder.Append(std::move(local));

  std::vector<int64_t> batch_dims;
  for (int64_t dim = 0; dim < result.rank(); ++dim) {
    if (std::ranges::find(attributes.offset_dims, dim) == attributes.offset_dims.end()) {
      batch_dims.push_back(dim);
    }
  }
  Value inside = IsInPart(position, components, starts, vector_dim);
  if (result.rank() > 0) inside = builder.Broadcast(inside, result.dims, batch_dims);
  return {builder.Select(inside, rows, builder.FullLike(rows, 0))};
}

namespace {

// HLO drops updates outside of the table, so updates of other parts need no mask; 64-bit indices
// keep their width because a narrowed one could fall inside. Windows that reach out of the whole
// table are dropped whole, though a part of them may lie in this padded part.
Value ScatterIndicesOfPart(const SourceOperation& source,
                           const std::vector<IndexComponent>& components, Value indices,
                           DevicePosition& position) {
  ComputationBuilder& builder = position.builder();
  const auto& attributes = source.instruction().As<ScatterAttributes>();
  const bool is_wide = ElementBytes(builder.shape(indices).type) == 8;
  const ElementType type = is_wide ? ElementType::kS64 : ElementType::kS32;
  if (builder.shape(indices).type != type) indices = builder.Convert(indices, type);
  const std::vector<int64_t> dims = builder.shape(indices).dims;
  const auto typed = [&](Value x) { return is_wide ? builder.Convert(x, type) : x; };
  const Value offsets = typed(Offsets(position, components, dims, attributes.index_vector_dim));
  const Value starts = builder.Binary(Opcode::kSubtract, indices, offsets);
  if (!HasWindows(components)) return starts;
  const Value last =
      typed(Bounds(position, components, dims, attributes.index_vector_dim,
                   [](const IndexComponent& component) { return component.last_start; }));
  const Value inside = builder.Binary(
      Opcode::kAnd, builder.Compare(Direction::kGe, indices, builder.FullLike(indices, 0)),
      builder.Compare(Direction::kLe, indices, last));
  return builder.Select(inside, starts, builder.FullLike(starts, -0x1p30));
}

}  // namespace

Value EmitScatterOfPart(const SourceOperation& source, std::vector<Value> operands,
                        DevicePosition& position, CalledComputations& called) {
  ComputationBuilder& builder = position.builder();
  const std::vector<IndexComponent> components =
      Components(source, position.mesh(),
                 source.instruction().As<ScatterAttributes>().scatter_dims_to_operand_dims,
                 WindowSizes(source));
  operands[1] = ScatterIndicesOfPart(source, components, operands[1], position);
  if (!HasWindows(components)) {
    return AppendLocal(source, std::move(operands), position, called)[0];
  }
  const std::vector<int64_t> part = builder.shape(operands[0]).dims;
  const PadAttributes pad = WindowPadding(components, static_cast<int>(part.size()));
  operands[0] = builder.Pad(operands[0], builder.Scalar(builder.shape(operands[0]).type, 0), pad);
  Instruction scatter = source.instruction();
  scatter.results = {builder.shape(operands[0])};
  scatter.operands = std::move(operands);
  scatter.called = {called.Import(scatter.called[0])};
  const Value padded = builder.Append(std::move(scatter));
  SliceAttributes slice{pad.low, part, std::vector<int64_t>(part.size(), 1)};
  for (size_t dim = 0; dim < part.size(); ++dim) slice.limits[dim] += pad.low[dim];
  return builder.Slice(padded, slice);
}

}  // namespace minka
