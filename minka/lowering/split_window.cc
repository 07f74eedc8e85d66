// Windows at computed places of an array of which every device holds a part: the part is padded by
// the window's size on both sides, so that a window which lies elsewhere falls into the padding.
#include <utility>
#include <vector>

#include "minka/lowering/local_operation.h"

namespace minka {
namespace {

// How the padded part relates to the whole array.
struct PaddedPart {
  PadAttributes pad;
  std::vector<Value> starts;  // of the window in the padded part
};

// `starts` are those in the whole array; HLO clamps them so that the window lies inside.
PaddedPart Pad(const SourceOperation& source, std::span<const Value> starts,
               const std::vector<int64_t>& window, DevicePosition& position) {
  ComputationBuilder& builder = position.builder();
  const Shape& whole = source.operand_shape(0);
  const Sharding sharding = OperandSharding(source.rule, source.strategy, 0);
  const std::vector<int64_t> none(whole.rank(), 0);
  PaddedPart padded{.pad = {none, none, none}, .starts = {starts.begin(), starts.end()}};
  for (int dim = 0; dim < whole.rank(); ++dim) {
    const int factor = source.rule.operand_dims[0][dim];
    const bool takes_window =
        factor != kWholeDim && source.rule.factors[factor].local_form == LocalForm::kWindowOffset;
    Value& start = padded.starts[dim];
    const auto bounded = [&](Value x, int64_t low, int64_t high) {
      x = builder.Binary(Opcode::kMaximum, x, position.Number(low));
      return builder.Binary(Opcode::kMinimum, x, position.Number(high));
    };
    const auto last = static_cast<double>(whole.dims[dim] - window[dim]);
    start = builder.Binary(Opcode::kMaximum, start, builder.FullLike(start, 0));
    start = builder.Binary(Opcode::kMinimum, start, builder.FullLike(start, last));
    start = builder.Convert(start, ElementType::kS32);
    if (!takes_window || sharding.dims[dim].empty()) continue;
    const int64_t part_size = whole.dims[dim] / NumParts(sharding.dims[dim], position.mesh());
    padded.pad.low[dim] = padded.pad.high[dim] = window[dim];
    start =
        builder.Binary(Opcode::kSubtract, start, position.Offset(sharding.dims[dim], part_size));
    start = builder.Binary(Opcode::kAdd, start, position.Number(window[dim]));
    start = bounded(start, 0, part_size + window[dim]);
  }
  return padded;
}

}  // namespace

Value EmitWindowOfPart(const SourceOperation& source, const std::vector<Value>& operands,
                       DevicePosition& position) {
  ComputationBuilder& builder = position.builder();
  const std::vector<int64_t>& window = source.instruction().As<DynamicSliceAttributes>().sizes;
  const PaddedPart padded = Pad(source, std::span(operands).subspan(1), window, position);
  const Value zero = builder.Scalar(builder.shape(operands[0]).type, 0);
  const Value array = builder.Pad(operands[0], zero, padded.pad);
  const Shape local = LocalShape(source.instruction().shape(),
                                 ResultSharding(source.rule, source.strategy, 0), position.mesh());
  return builder.DynamicSlice(array, padded.starts, local.dims);
}

Value UpdateWindowOfPart(const SourceOperation& source, const std::vector<Value>& operands,
                         DevicePosition& position) {
  ComputationBuilder& builder = position.builder();
  const std::vector<int64_t>& window = source.operand_shape(1).dims;
  const PaddedPart padded = Pad(source, std::span(operands).subspan(2), window, position);
  const std::vector<int64_t> part = builder.shape(operands[0]).dims;
  const Value zero = builder.Scalar(builder.shape(operands[0]).type, 0);
  const Value array = builder.Pad(operands[0], zero, padded.pad);
  const Value updated = builder.DynamicUpdateSlice(array, operands[1], padded.starts);
  SliceAttributes slice{padded.pad.low, part, std::vector<int64_t>(part.size(), 1)};
  for (size_t dim = 0; dim < part.size(); ++dim) slice.limits[dim] += padded.pad.low[dim];
  return builder.Slice(updated, slice);
}

}  // namespace minka
