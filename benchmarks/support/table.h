// The committed table of a benchmark: rows in FOLDER/results.json, one per line, and the same for
// people in FOLDER/results.md, both written by --update and compared with new rows by --compare.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace minka {

// Objects, each with its own "name".
using Rows = nlohmann::ordered_json;

// A number of a row that may become worse by so much: time by more than its noise, say.
struct Criterion {
  std::string field;    // rows without it are not compared by it
  double relative = 0;  // of the committed number
  double absolute = 0;  // added to that
  bool is_better_large = false;

  std::string ToString() const;  // "ratio larger by more than 10 %"
};

struct TableOptions {
  std::string folder;  // of the committed table
  std::string json;    // also written to this file, as they come; empty: not
  std::string rows;    // taken from this file, not measured; empty: measured
  bool update = false, compare = false;
};
void AddTableOptions(CLI::App& app, TableOptions& options);

struct Benchmark {
  std::vector<Criterion> criteria;
  // Gives each row to `add`; the error says why some are missing.
  std::function<absl::Status(const std::function<void(Rows row)>& add)> measure;
  // Printed in the end; none: nothing.
  std::function<std::string(const Rows& rows)> summary;
  // results.md of all committed rows; none: there is no such file.
  std::function<std::string(const Rows& rows)> page;
};

// Measures, writes and compares, as the options say. Rows are compared with the committed ones
// before those are replaced; committed rows that were not measured this time are kept. The error
// names what failed and each number that is worse.
absl::Status MakeTable(const Benchmark& benchmark, const TableOptions& options);

// The rest of a benchmark's main: reads the command line, makes the table; the exit status.
int MakeTableOfCommand(CLI::App& app, int argc, char** argv, const Benchmark& benchmark,
                       const TableOptions& options);

// One line for each number that is worse than that of the committed row of the same name.
std::vector<std::string> WorseNumbers(const Rows& rows, const Rows& committed,
                                      std::span<const Criterion> criteria);
// `committed` with `rows` in place of those of the same names; new ones come last.
Rows MergeRows(Rows committed, const Rows& rows);
absl::StatusOr<Rows> ReadRows(const std::string& path);

}  // namespace minka
