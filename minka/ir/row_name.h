// How the rows of a stacked array are named where each is an array of its own: row 2 of "w" is
// "w[2]", whose dimension 0 is 1.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace minka {

std::string RowName(std::string_view name, int64_t row);
// Matches the names of all rows of what the glob matches (MatchesGlob).
std::string RowGlob(std::string_view glob);

struct NamedRow {
  std::string name;  // of the whole
  int64_t row = 0;
};
// The other way; nullopt: no row's name.
std::optional<NamedRow> ParseRowName(std::string_view name);

}  // namespace minka
