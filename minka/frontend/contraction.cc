#include "minka/frontend/contraction.h"

#include <utility>
#include <vector>

#include "minka/base/check.h"

namespace minka {
namespace {

bool Contains(std::string_view labels, char label) {
  return labels.find(label) != std::string_view::npos;
}

// A dot's attributes and the labels of what it returns.
struct LabelledDot {
  DotAttributes attributes;
  std::string labels;
};

LabelledDot MakeDot(std::string_view x, std::string_view y, std::string_view result) {
  LabelledDot dot;
  for (char label : result) {
    if (!Contains(x, label) || !Contains(y, label)) continue;
    dot.attributes.lhs_batch.push_back(static_cast<int64_t>(x.find(label)));
    dot.attributes.rhs_batch.push_back(static_cast<int64_t>(y.find(label)));
    dot.labels += label;
  }
  for (char label : x) {
    if (Contains(result, label)) {
      if (!Contains(y, label)) dot.labels += label;
    } else {
      MINKA_CHECK(Contains(y, label), "label {} occurs once", label);
      dot.attributes.lhs_contracting.push_back(static_cast<int64_t>(x.find(label)));
      dot.attributes.rhs_contracting.push_back(static_cast<int64_t>(y.find(label)));
    }
  }
  for (char label : y) {
    if (Contains(result, label) && !Contains(x, label)) dot.labels += label;
  }
  return dot;
}

}  // namespace

Value Contract(ComputationBuilder& builder, Value x, std::string_view x_labels, Value y,
               std::string_view y_labels, std::string_view result, ElementType type) {
  LabelledDot dot = MakeDot(x_labels, y_labels, result);
  if (dot.labels != result) {
    LabelledDot swapped = MakeDot(y_labels, x_labels, result);
    if (swapped.labels == result) return builder.Dot(y, x, std::move(swapped.attributes), type);
  }
  Value value = builder.Dot(x, y, std::move(dot.attributes), type);
  if (dot.labels == result) return value;
  std::vector<int64_t> permutation;
  for (char label : result) permutation.push_back(static_cast<int64_t>(dot.labels.find(label)));
  return builder.Transpose(value, std::move(permutation));
}

}  // namespace minka
