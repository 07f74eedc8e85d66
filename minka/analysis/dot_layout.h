// How the operands of a dot lie in memory.
#pragma once

#include <cstdint>

#include "minka/ir/module.h"

namespace minka {

struct DotOperandLayout {
  // The dot's batch dimensions first, in its order, then what it contracts and what it keeps, each
  // as dimensions side by side: a matrix per batch element. Others are transposed before matrices
  // are multiplied.
  bool is_matrix = true;
  bool contracts_last = true;  // the contracted dimensions stand behind those that are kept
};

struct DotLayout {
  DotOperandLayout lhs, rhs;
};

DotLayout LayoutOf(const DotAttributes& dot, int64_t lhs_rank, int64_t rhs_rank);

}  // namespace minka
