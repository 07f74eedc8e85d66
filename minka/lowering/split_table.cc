// Gather from and scatter into a table of which every device holds a part of the rows.
#include <algorithm>
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
};

std::vector<IndexComponent> Components(const SourceOperation& source, const Mesh& mesh,
                                       const std::vector<int64_t>& index_map,
                                       const std::vector<int64_t>& slice_sizes) {
  const Sharding table = OperandSharding(source.rule, source.strategy, 0);
  const Shape& shape = source.operand_shape(0);
  std::vector<IndexComponent> components;
  for (const int64_t dim : index_map) {
    const int factor = source.rule.operand_dims[0][dim];
    const bool offset =
        factor != kWholeDim && source.rule.factors[factor].local_form == LocalForm::kIndexOffset;
    IndexComponent component{static_cast<int>(dim), offset ? table.dims[dim] : AxisList(), 0, 0};
    component.part_size = shape.dims[dim] / NumParts(component.axes, mesh);
    component.last_start = slice_sizes.empty() ? 0 : shape.dims[dim] - slice_sizes[dim];
    components.push_back(component);
  }
  return components;
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
    scalars.push_back(component.axes.empty()
                          ? position.Number(0)
                          : position.Offset(component.axes, component.part_size));
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
        return component.axes.empty() ? component.last_start : component.part_size - 1;
      });
  const Value inside = builder.Binary(
      Opcode::kAnd, builder.Compare(Direction::kGe, starts, builder.FullLike(starts, 0)),
      builder.Compare(Direction::kLe, starts, last));
  if (index_vector_dim == static_cast<int64_t>(dims.size())) return inside;
  const Value all = builder.Scalar(ElementType::kPred, 1);
  return builder.Reduce(inside, all, {index_vector_dim}, Opcode::kAnd);
}

}  // namespace

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
  const Value starts = builder.Binary(Opcode::kSubtract, clamped,
                                      Offsets(position, components, index_dims, vector_dim));

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

// HLO drops updates outside of the table, so updates of other parts need no mask; 64-bit indices
// keep their width because a narrowed one could fall inside.
Value ScatterIndicesOfPart(const SourceOperation& source, Value indices, DevicePosition& position) {
  ComputationBuilder& builder = position.builder();
  const auto& attributes = source.instruction().As<ScatterAttributes>();
  const std::vector<IndexComponent> components =
      Components(source, position.mesh(), attributes.scatter_dims_to_operand_dims, {});
  const bool is_wide = ElementBytes(builder.shape(indices).type) == 8;
  const ElementType type = is_wide ? ElementType::kS64 : ElementType::kS32;
  if (builder.shape(indices).type != type) indices = builder.Convert(indices, type);
  Value offsets =
      Offsets(position, components, builder.shape(indices).dims, attributes.index_vector_dim);
  if (is_wide) offsets = builder.Convert(offsets, type);
  return builder.Binary(Opcode::kSubtract, indices, offsets);
}

}  // namespace minka
