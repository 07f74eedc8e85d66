// Contractions named by labels: one character per dimension of each operand and of the result.
#pragma once

#include <string>
#include <string_view>

#include "minka/ir/builder.h"

namespace minka {

// x and y contracted over the labels that `result` lacks; labels in all three are batch dimensions.
// Operands are swapped, or the result is transposed, where a dot alone does not give the order.
// Precondition: each label occurs once per tensor and in at least two of the three tensors.
Value Contract(ComputationBuilder& builder, Value x, std::string_view x_labels, Value y,
               std::string_view y_labels, std::string_view result, ElementType type);

}  // namespace minka
