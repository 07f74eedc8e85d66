#include "minka/analysis/dot_layout.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace minka {
namespace {

using Dims = std::vector<int64_t>;

bool CountsUpFrom(const Dims& dims, int64_t first) {
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] != first + static_cast<int64_t>(i)) return false;
  }
  return true;
}

DotOperandLayout LayoutOfOperand(const Dims& batch, const Dims& contracting, int64_t rank) {
  const auto num_batch = static_cast<int64_t>(batch.size());
  const int64_t last = rank - static_cast<int64_t>(contracting.size());
  const bool contracts_last = CountsUpFrom(contracting, last);
  return {.is_matrix =
              CountsUpFrom(batch, 0) && (contracts_last || CountsUpFrom(contracting, num_batch)),
          .contracts_last = contracts_last};
}

}  // namespace

DotLayout LayoutOf(const DotAttributes& dot, int64_t lhs_rank, int64_t rhs_rank) {
  // Pairs of contracted dimensions may be named in any order.
  Dims order(dot.lhs_contracting.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {}, [&](int64_t pair) { return dot.lhs_contracting[pair]; });
  Dims lhs, rhs;
  for (const int64_t pair : order) {
    lhs.push_back(dot.lhs_contracting[pair]);
    rhs.push_back(dot.rhs_contracting[pair]);
  }
  return {.lhs = LayoutOfOperand(dot.lhs_batch, lhs, lhs_rank),
          .rhs = LayoutOfOperand(dot.rhs_batch, rhs, rhs_rank)};
}

}  // namespace minka
