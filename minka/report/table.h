// Text laid out in columns.
//
//   Table table({{"method"}, {"step time", Align::kRight}});
//   table.Add({"shard", "12.3 ms"});
//   table.ToString()  ->  "method  step time\n"
//                         "shard     12.3 ms\n"
#pragma once

#include <string>
#include <vector>

namespace minka {

enum class Align { kLeft, kRight };

struct Column {
  std::string title;
  Align align = Align::kLeft;
};

class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // One cell per column; ASCII.
  void Add(std::vector<std::string> cells);
  bool empty() const { return rows_.empty(); }
  // Every line ends in '\n' and has no trailing spaces.
  std::string ToString() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace minka
