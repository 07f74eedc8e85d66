#include "minka/report/table.h"

#include <algorithm>

#include "fmt/format.h"
#include "minka/base/check.h"

namespace minka {

void Table::Add(std::vector<std::string> cells) {
  MINKA_CHECK(cells.size() == columns_.size(), "{} cells for {} columns", cells.size(),
              columns_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::ToString() const {
  std::vector<size_t> widths;
  for (size_t i = 0; i < columns_.size(); ++i) {
    widths.push_back(columns_[i].title.size());
    for (const auto& row : rows_) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  const auto add_line = [&](const auto& cell_of) {
    std::string line;
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (i > 0) line += "  ";
      line += columns_[i].align == Align::kLeft ? fmt::format("{:<{}}", cell_of(i), widths[i])
                                                : fmt::format("{:>{}}", cell_of(i), widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  };
  add_line([&](size_t i) { return columns_[i].title; });
  for (const auto& row : rows_) add_line([&](size_t i) { return row[i]; });
  return text;
}

}  // namespace minka
