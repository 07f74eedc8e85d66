// Quantities and names as tables show them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "minka/ir/step.h"

namespace minka {

// Three digits: "812 B", "1.94 GiB"; "812 us", "12.3 ms", "1.94 s"; "0.12 %" of 0.0012; "1.49 M".
std::string FormatBytes(int64_t bytes);
std::string FormatTime(double us);
std::string FormatPercent(double fraction);
std::string FormatCount(int64_t count);
// "1 stage", "2 stages".
std::string FormatNumberOf(int64_t number, std::string_view one, std::string_view several);

// A path name with the numbers of layers taken out: "params/layer_3/mlp/kernel" has the pattern
// "params/layer_*/mlp/kernel" and the number "3". A number is a whole component, or what follows
// the last '_' of one, where JAX closes parentheses behind it ("jvp(layer_3)"), or the number of a
// row ("w[3]", ir/row_name.h). JAX's keys are components, too ("params['layer_3']['kernel']").
struct FoldedName {
  std::string pattern;
  std::string numbers;  // joined by ','; empty: the name has none
};
FoldedName FoldLayers(std::string_view name);

// "layers 0-3 all, layer 4 dots, of 6": runs of layers with equal policies, without those of which
// nothing is computed again; "nothing" where that is all.
std::string FormatRemat(const RematChoice& remat);

// The name of several: each '*' of their pattern becomes the number that all of them have there, or
// theirs in order, "{0,2-23}", or stays where they have every number that `all` of the pattern have
// there. Where that would name more than them, all stay. Numbers are those of FoldedName.
std::string NameOfLayers(std::string_view pattern, std::span<const std::string> numbers,
                         std::span<const std::string> all);

}  // namespace minka
