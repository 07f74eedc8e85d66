// Rules of gather and scatter. Terms as in XLA's semantics: the batch of the indices (all their
// dimensions but index_vector_dim) picks slices of the table.
#include <algorithm>
#include <optional>
#include <utility>

#include "fmt/format.h"
#include "minka/sharding/rule_builder.h"

namespace minka {
namespace {

bool Contains(const std::vector<int64_t>& list, int64_t value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

// The dimensions of a shape of `rank` that are not in the lists.
std::vector<int64_t> Others(int rank, const std::vector<int64_t>& first,
                            const std::vector<int64_t>& second = {}) {
  std::vector<int64_t> others;
  for (int64_t dim = 0; dim < rank; ++dim) {
    if (!Contains(first, dim) && !Contains(second, dim)) others.push_back(dim);
  }
  return others;
}

}  // namespace

OpRule GatherRule(RuleBuilder rule) {
  const auto& gather = rule.instruction().As<GatherAttributes>();
  const Shape& table = rule.operand(0);
  const std::vector<int64_t> index_dims = Others(rule.operand(1).rank(), {gather.index_vector_dim});
  const std::vector<int64_t> batch_dims = Others(rule.result().rank(), gather.offset_dims);
  std::vector<int> factor_of_index_dim(rule.operand(1).rank(), kWholeDim);
  for (size_t i = 0; i < index_dims.size(); ++i) {
    const int factor = rule.AddResultDim(static_cast<int>(batch_dims[i]));
    rule.MapOperand(1, index_dims[i], factor);
    factor_of_index_dim[index_dims[i]] = factor;
  }
  for (size_t i = 0; i < gather.operand_batching_dims.size(); ++i) {
    rule.MapOperand(0, gather.operand_batching_dims[i],
                    factor_of_index_dim[gather.start_indices_batching_dims[i]]);
  }
  const std::vector<int64_t> window_dims =
      Others(table.rank(), gather.collapsed_slice_dims, gather.operand_batching_dims);
  for (size_t i = 0; i < window_dims.size(); ++i) {
    const int64_t dim = window_dims[i];
    if (gather.slice_sizes[dim] == table.dims[dim]) {
      rule.MapOperand(0, dim, rule.AddResultDim(static_cast<int>(gather.offset_dims[i])));
    } else if (IsSummable(rule.result().type) && Contains(gather.start_index_map, dim)) {
      rule.MapOperand(0, dim,
                      rule.AddFactor(FactorKind::kSum, table.dims[dim],
                                     fmt::format("table {}", dim), LocalForm::kWindowOffset));
    }
  }
  if (IsSummable(rule.result().type)) {
    for (const int64_t dim : gather.collapsed_slice_dims) {
      if (!Contains(gather.start_index_map, dim)) continue;
      rule.MapOperand(0, dim,
                      rule.AddFactor(FactorKind::kSum, table.dims[dim],
                                     fmt::format("table {}", dim), LocalForm::kIndexOffset));
    }
  }
  rule.AddLinearGroup({0});
  return rule.Build();
}

OpRule ScatterRule(RuleBuilder rule, const Module& module) {
  if (rule.num_operands() != 3) return rule.Build();  // several tables at once: whole
  const auto& scatter = rule.instruction().As<ScatterAttributes>();
  const Shape& table = rule.operand(0);
  const Shape& updates = rule.operand(2);
  const std::vector<int64_t> window_dims =
      Others(table.rank(), scatter.inserted_window_dims, scatter.input_batching_dims);
  for (size_t i = 0; i < window_dims.size(); ++i) {
    const int64_t update_dim = scatter.update_window_dims[i];
    const bool is_whole = updates.dims[update_dim] == table.dims[window_dims[i]];
    if (!is_whole && !Contains(scatter.scatter_dims_to_operand_dims, window_dims[i])) continue;
    const int factor = rule.AddResultDim(static_cast<int>(window_dims[i]),
                                         is_whole ? LocalForm::kPlain : LocalForm::kWindowOffset);
    rule.MapOperand(0, window_dims[i], factor);
    if (is_whole) rule.MapOperand(2, update_dim, factor);
  }
  for (const int64_t dim : scatter.inserted_window_dims) {
    if (!Contains(scatter.scatter_dims_to_operand_dims, dim)) continue;
    rule.MapOperand(0, dim, rule.AddResultDim(static_cast<int>(dim), LocalForm::kIndexOffset));
  }
  const std::vector<int64_t> index_dims =
      Others(rule.operand(1).rank(), {scatter.index_vector_dim});
  const std::vector<int64_t> update_dims = Others(updates.rank(), scatter.update_window_dims);
  const bool sums =
      BinaryReducer(module, rule.instruction().called[0]) == Opcode::kAdd && IsSummable(table.type);
  for (size_t i = 0; i < index_dims.size(); ++i) {
    int factor = kWholeDim;
    const auto batching = std::find(scatter.scatter_indices_batching_dims.begin(),
                                    scatter.scatter_indices_batching_dims.end(), index_dims[i]);
    if (batching != scatter.scatter_indices_batching_dims.end()) {
      const int64_t table_dim =
          scatter.input_batching_dims[batching - scatter.scatter_indices_batching_dims.begin()];
      factor = rule.AddResultDim(static_cast<int>(table_dim));
      rule.MapOperand(0, table_dim, factor);
    } else if (sums) {
      factor = rule.AddFactor(FactorKind::kSum, updates.dims[update_dims[i]],
                              fmt::format("updates {}", update_dims[i]), LocalForm::kInitOnFirst);
    }
    rule.MapOperand(1, index_dims[i], factor);
    rule.MapOperand(2, update_dims[i], factor);
  }
  if (!sums) return rule.Build();
  if (rule.IsZeroOperand(0)) {
    rule.AddLinearGroup({2});
  } else {
    rule.AddLinearGroup({0, 2});
  }
  return rule.Build();
}

}  // namespace minka
