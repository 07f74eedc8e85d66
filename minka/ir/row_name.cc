#include "minka/ir/row_name.h"

#include <charconv>

#include "fmt/format.h"

namespace minka {

std::string RowName(std::string_view name, int64_t row) { return fmt::format("{}[{}]", name, row); }

std::string RowGlob(std::string_view glob) { return fmt::format("{}[*]", glob); }

std::optional<NamedRow> ParseRowName(std::string_view name) {
  const size_t open = name.rfind('[');
  if (open == std::string_view::npos || !name.ends_with(']')) return std::nullopt;
  const std::string_view number = name.substr(open + 1, name.size() - open - 2);
  NamedRow row{.name = std::string(name.substr(0, open))};
  const auto [stop, error] = std::from_chars(number.begin(), number.end(), row.row);
  if (error != std::errc() || stop != number.end() || row.row < 0) return std::nullopt;
  return row;
}

}  // namespace minka
