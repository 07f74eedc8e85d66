// Rules of operations that create or move data in places known beforehand.
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

#include "fmt/format.h"
#include "minka/base/check.h"
#include "minka/sharding/rule_builder.h"

namespace minka {
namespace {

bool IsSplat(const Literal& literal) {
  const std::string& bytes = *literal.bytes;
  const size_t width = static_cast<size_t>(ElementBytes(literal.shape.type));
  return bytes.size() <= width ||
         std::memcmp(bytes.data(), bytes.data() + width, bytes.size() - width) == 0;
}

OpRule ConstantRule(RuleBuilder rule) {
  const Literal& literal = rule.instruction().As<ConstantAttributes>().literal;
  const LocalForm form = IsSplat(literal) ? LocalForm::kPlain : LocalForm::kOwnSlice;
  for (int dim = 0; dim < rule.result().rank(); ++dim) rule.AddResultDim(dim, form);
  return rule.Build();
}

OpRule IotaRule(RuleBuilder rule) {
  const int64_t iota_dim = rule.instruction().As<DimensionsAttributes>().dims[0];
  for (int dim = 0; dim < rule.result().rank(); ++dim) {
    rule.AddResultDim(dim, dim == iota_dim ? LocalForm::kIotaOffset : LocalForm::kPlain);
  }
  return rule.Build();
}

OpRule BroadcastRule(RuleBuilder rule) {
  const std::vector<int64_t>& targets = rule.instruction().As<DimensionsAttributes>().dims;
  std::vector<int> source(rule.result().rank(), kWholeDim);
  for (size_t i = 0; i < targets.size(); ++i) source[targets[i]] = static_cast<int>(i);
  for (int dim = 0; dim < rule.result().rank(); ++dim) {
    const int factor = rule.AddResultDim(dim);
    if (source[dim] != kWholeDim) rule.MapOperand(0, source[dim], factor);
  }
  rule.AddLinearGroup({0});
  return rule.Build();
}

OpRule TransposeRule(RuleBuilder rule) {
  const std::vector<int64_t>& permutation = rule.instruction().As<DimensionsAttributes>().dims;
  for (int dim = 0; dim < rule.result().rank(); ++dim) {
    rule.MapOperand(0, permutation[dim], rule.AddResultDim(dim));
  }
  rule.AddLinearGroup({0});
  return rule.Build();
}

std::vector<int> DimsAboveOne(const Shape& shape) {
  std::vector<int> dims;
  for (int dim = 0; dim < shape.rank(); ++dim) {
    if (shape.dims[dim] > 1) dims.push_back(dim);
  }
  return dims;
}

// Cuts both shapes into the smallest groups of equal product (dimensions of size 1 dropped) and
// keeps the split of each group's leading dimension. Precondition: no dimension of size 0.
void MapReshapeGroups(RuleBuilder& rule) {
  const Shape& from = rule.operand(0);
  const Shape& to = rule.result();
  const std::vector<int> from_dims = DimsAboveOne(from);
  const std::vector<int> to_dims = DimsAboveOne(to);
  size_t i = 0;
  size_t j = 0;
  while (i < from_dims.size()) {
    const int leading_from = from_dims[i];
    const int leading_to = to_dims[j];
    int64_t from_product = from.dims[from_dims[i++]];
    int64_t to_product = to.dims[to_dims[j++]];
    while (from_product != to_product) {
      if (from_product < to_product) {
        from_product *= from.dims[from_dims[i++]];
      } else {
        to_product *= to.dims[to_dims[j++]];
      }
    }
    const int64_t common = std::gcd(from.dims[leading_from], to.dims[leading_to]);
    if (common == 1) continue;
    const int factor = rule.AddParallel(common, fmt::format("dim {}", leading_to));
    rule.MapOperand(0, leading_from, factor);
    rule.MapResult(0, leading_to, factor);
  }
}

OpRule ReshapeRule(RuleBuilder rule) {
  if (rule.result().num_elements() > 0) MapReshapeGroups(rule);
  rule.AddLinearGroup({0});
  return rule.Build();
}

// The same width: elementwise. Else one side has a minor dimension more, which is whole.
OpRule BitcastConvertRule(RuleBuilder rule) {
  const int common = std::min(rule.operand(0).rank(), rule.result().rank());
  for (int dim = 0; dim < common; ++dim) rule.MapOperand(0, dim, rule.AddResultDim(dim));
  return rule.Build();
}

// Dimensions that the operation leaves as they are, over all operands of full rank.
template <typename IsTouched>
void MapUntouchedDims(RuleBuilder& rule, IsTouched is_touched) {
  for (int dim = 0; dim < rule.result().rank(); ++dim) {
    if (is_touched(dim)) continue;
    const int factor = rule.AddResultDim(dim);
    for (int i = 0; i < rule.num_operands(); ++i) {
      if (rule.operand(i).rank() == rule.result().rank()) rule.MapOperand(i, dim, factor);
    }
  }
}

OpRule SliceRule(RuleBuilder rule) {
  const auto& slice = rule.instruction().As<SliceAttributes>();
  MapUntouchedDims(rule, [&](int dim) {
    return slice.starts[dim] != 0 || slice.limits[dim] != rule.operand(0).dims[dim] ||
           (slice.strides[dim] != 1 && rule.operand(0).dims[dim] > 1);
  });
  rule.AddLinearGroup({0});
  return rule.Build();
}

OpRule PadRule(RuleBuilder rule) {
  const auto& pad = rule.instruction().As<PadAttributes>();
  MapUntouchedDims(rule, [&](int dim) {
    return pad.low[dim] != 0 || pad.high[dim] != 0 ||
           (pad.interior[dim] != 0 && rule.operand(0).dims[dim] > 1);
  });
  if (rule.IsZeroOperand(1)) {
    rule.AddLinearGroup({0});
  } else {
    rule.AddLinearGroup({0, 1});
  }
  return rule.Build();
}

OpRule ConcatenateRule(RuleBuilder rule) {
  const int64_t joined = rule.instruction().As<DimensionsAttributes>().dims[0];
  MapUntouchedDims(rule, [&](int dim) { return dim == joined; });
  std::vector<int> all(rule.num_operands());
  std::iota(all.begin(), all.end(), 0);
  rule.AddLinearGroup(all);
  return rule.Build();
}

OpRule ReverseRule(RuleBuilder rule) {
  std::vector<bool> reversed(rule.result().rank(), false);
  for (const int64_t dim : rule.instruction().As<DimensionsAttributes>().dims) {
    reversed[dim] = true;
  }
  MapUntouchedDims(rule, [&](int dim) { return reversed[dim]; });
  rule.AddLinearGroup({0});
  return rule.Build();
}

}  // namespace

OpRule DataMovementRule(RuleBuilder rule) {
  switch (rule.instruction().opcode) {
    case Opcode::kConstant:
      return ConstantRule(std::move(rule));
    case Opcode::kIota:
      return IotaRule(std::move(rule));
    case Opcode::kBroadcast:
      return BroadcastRule(std::move(rule));
    case Opcode::kReshape:
      return ReshapeRule(std::move(rule));
    case Opcode::kTranspose:
      return TransposeRule(std::move(rule));
    case Opcode::kSlice:
      return SliceRule(std::move(rule));
    case Opcode::kPad:
      return PadRule(std::move(rule));
    case Opcode::kConcatenate:
      return ConcatenateRule(std::move(rule));
    case Opcode::kReverse:
      return ReverseRule(std::move(rule));
    case Opcode::kBitcastConvert:
      return BitcastConvertRule(std::move(rule));
    default:
      MINKA_CHECK(false, "{} moves no data", OpcodeName(rule.instruction().opcode));
  }
}

OpRule DynamicSliceRule(RuleBuilder rule) {
  for (int dim = 0; dim < rule.result().rank(); ++dim) {
    const int64_t size = rule.operand(0).dims[dim];
    if (size == rule.result().dims[dim]) {
      rule.MapOperand(0, dim, rule.AddResultDim(dim));
    } else if (IsSummable(rule.result().type)) {
      rule.MapOperand(0, dim,
                      rule.AddFactor(FactorKind::kSum, size, fmt::format("from {}", dim),
                                     LocalForm::kWindowOffset));
    }
  }
  rule.AddLinearGroup({0});
  return rule.Build();
}

OpRule DynamicUpdateSliceRule(RuleBuilder rule) {
  for (int dim = 0; dim < rule.result().rank(); ++dim) {
    const bool is_whole = rule.operand(1).dims[dim] == rule.result().dims[dim];
    const int factor =
        rule.AddResultDim(dim, is_whole ? LocalForm::kPlain : LocalForm::kWindowOffset);
    rule.MapOperand(0, dim, factor);
    if (is_whole) rule.MapOperand(1, dim, factor);
  }
  rule.AddLinearGroup({0, 1});
  return rule.Build();
}

}  // namespace minka
