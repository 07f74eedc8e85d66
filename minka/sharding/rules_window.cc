// Rules of convolution, of reductions over windows, and of batch normalisation.
#include <cstddef>
#include <optional>
#include <utility>

#include "fmt/format.h"
#include "minka/ir/window.h"
#include "minka/sharding/rule_builder.h"

namespace minka {
namespace {

// One spatial dimension. Blocks of a window that overlaps its neighbours' elements stay whole.
void MapConvolvedDim(RuleBuilder& rule, size_t spatial) {
  const auto& a = rule.instruction().As<ConvolutionAttributes>();
  const int64_t input_dim = a.input_spatial[spatial];
  const BlockedWindow blocked = BlocksOf(rule.operand(0).dims[input_dim], a.window[spatial]);
  if (blocked.blocks == WindowBlocks::kNone) return;
  const bool sums = blocked.blocks == WindowBlocks::kSum;
  if (sums && !IsSummable(rule.result().type)) return;
  const int factor = rule.AddFactor(sums ? FactorKind::kSum : FactorKind::kParallel,
                                    blocked.num_blocks, fmt::format("spatial {}", spatial));
  rule.MapOperand(0, input_dim, factor);
  if (sums) {
    rule.MapOperand(1, a.kernel_spatial[spatial], factor);
  } else {
    rule.MapResult(0, a.output_spatial[spatial], factor);
  }
}

// Input features in groups of their own: a device takes whole groups.
void MapFeatureGroups(RuleBuilder& rule, const ConvolutionAttributes& a) {
  const int group = rule.AddParallel(a.feature_group_count, "group");
  rule.MapOperand(0, a.input_feature, group);
  rule.MapOperand(1, a.kernel_output_feature, group);
  rule.MapResult(0, a.output_feature, group);
}

// Batches in groups, each with output features of its own.
void MapBatchGroups(RuleBuilder& rule, const ConvolutionAttributes& a) {
  const int group = rule.AddParallel(a.batch_group_count, "group");
  rule.MapOperand(0, a.input_batch, group);
  rule.MapOperand(1, a.kernel_output_feature, group);
  rule.MapResult(0, a.output_feature, group);
}

// How windows along one dimension of a reduction fall apart. `reduced`: what splitting a dimension
// means that one window covers; nullopt: it stays whole.
void MapReducedWindow(RuleBuilder& rule, int dim, const std::optional<Factor>& reduced) {
  const WindowDim& window = rule.instruction().As<WindowAttributes>().dims[dim];
  const int num_inputs = rule.num_operands() / 2;
  const BlockedWindow blocked = BlocksOf(rule.operand(0).dims[dim], window);
  const bool covers = blocked.blocks == WindowBlocks::kSum;
  if (blocked.blocks == WindowBlocks::kNone || (covers && !reduced)) return;
  const Factor kind = covers ? *reduced : Factor{};
  const int factor =
      rule.AddFactor(kind.kind, blocked.num_blocks, fmt::format("dim {}", dim), kind.local_form);
  rule.factor(factor).combiner = kind.combiner;
  for (int i = 0; i < num_inputs; ++i) {
    rule.MapOperand(i, dim, factor);
    if (!covers) rule.MapResult(i, dim, factor);
  }
}

}  // namespace

OpRule ConvolutionRule(RuleBuilder rule) {
  const auto& a = rule.instruction().As<ConvolutionAttributes>();
  if (a.batch_group_count == 1) {
    const int batch = rule.AddParallel(rule.operand(0).dims[a.input_batch], "batch");
    rule.MapOperand(0, a.input_batch, batch);
    rule.MapResult(0, a.output_batch, batch);
  } else {
    MapBatchGroups(rule, a);
  }
  if (a.feature_group_count > 1) MapFeatureGroups(rule, a);
  if (a.feature_group_count == 1 && a.batch_group_count == 1) {
    const int feature = rule.AddParallel(rule.operand(1).dims[a.kernel_output_feature], "feature");
    rule.MapOperand(1, a.kernel_output_feature, feature);
    rule.MapResult(0, a.output_feature, feature);
  }
  if (a.feature_group_count == 1 && IsSummable(rule.result().type)) {
    const int sum =
        rule.AddFactor(FactorKind::kSum, rule.operand(0).dims[a.input_feature], "contraction");
    rule.MapOperand(0, a.input_feature, sum);
    rule.MapOperand(1, a.kernel_input_feature, sum);
  }
  for (size_t spatial = 0; spatial < a.window.size(); ++spatial) MapConvolvedDim(rule, spatial);
  AddFactorGroups(rule);
  return rule.Build();
}

OpRule ReduceWindowRule(RuleBuilder rule, const Module& module) {
  const Opcode reducer =
      rule.num_operands() == 2
          ? BinaryReducer(module, rule.instruction().called[0]).value_or(Opcode::kOther)
          : Opcode::kOther;
  const std::optional<Factor> reduced = ReducedDim(reducer, rule.operand(0).type);
  for (int dim = 0; dim < rule.operand(0).rank(); ++dim) MapReducedWindow(rule, dim, reduced);
  if (reducer == Opcode::kAdd) rule.AddLinearGroup({0});
  return rule.Build();
}

// Which element a window selects depends on the operand, so that is never partial.
OpRule SelectAndScatterRule(RuleBuilder rule, const Module& module) {
  const std::vector<WindowDim>& window = rule.instruction().As<WindowAttributes>().dims;
  for (int dim = 0; dim < rule.operand(0).rank(); ++dim) {
    const BlockedWindow blocked = BlocksOf(rule.operand(0).dims[dim], window[dim]);
    if (blocked.blocks != WindowBlocks::kForward) continue;
    const int factor = rule.AddParallel(blocked.num_blocks, fmt::format("dim {}", dim));
    rule.MapOperand(0, dim, factor);
    rule.MapOperand(1, dim, factor);
    rule.MapResult(0, dim, factor);
  }
  if (BinaryReducer(module, rule.instruction().called[1]) == Opcode::kAdd) {
    rule.AddLinearGroup({1});
  }
  return rule.Build();
}

// x and what has its shape: operands 0 and, of the gradient, 4, and result 0. Everything else has
// one element per feature. Statistics need every other dimension whole.
OpRule BatchNormRule(RuleBuilder rule) {
  const Opcode opcode = rule.instruction().opcode;
  const int feature_dim =
      static_cast<int>(rule.instruction().As<BatchNormAttributes>().feature_index);
  const int feature = rule.AddParallel(rule.result().dims[feature_dim], "feature");
  for (int i = 0; i < rule.num_operands(); ++i) {
    const bool is_vector = i != 0 && !(opcode == Opcode::kBatchNormGrad && i == 4);
    rule.MapOperand(i, is_vector ? 0 : feature_dim, feature);
  }
  rule.MapResult(0, feature_dim, feature);
  for (size_t i = 1; i < rule.instruction().results.size(); ++i) {
    rule.MapResult(static_cast<int>(i), 0, feature);
  }
  if (opcode == Opcode::kBatchNormGrad) rule.AddLinearGroup({4});
  if (opcode != Opcode::kBatchNormInference) return rule.Build();
  for (int dim = 0; dim < rule.result().rank(); ++dim) {
    if (dim != feature_dim) rule.MapOperand(0, dim, rule.AddResultDim(dim));
  }
  // (x - mean) scale / deviation + offset.
  rule.AddLinearGroup({0, 2, 3});
  rule.AddLinearGroup({1, 2});
  return rule.Build();
}

}  // namespace minka
