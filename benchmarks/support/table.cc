#include "benchmarks/support/table.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "minka/base/file.h"
#include "minka/base/json.h"
#include "minka/base/status.h"

namespace minka {
namespace {

// The first row of the name, or end().
auto FindRow(auto& rows, const Rows& name) {
  return std::ranges::find_if(rows, [&](const Rows& row) { return row["name"] == name; });
}

bool IsWorse(double value, double committed, const Criterion& criterion) {
  const double slack = criterion.relative * std::abs(committed) + criterion.absolute;
  return criterion.is_better_large ? value < committed - slack : value > committed + slack;
}

std::string TextOf(const Rows& rows, std::span<const Criterion> criteria) {
  std::string text = "{\"worse_if\": [";
  for (size_t i = 0; i < criteria.size(); ++i) {
    text += (i == 0 ? "" : ", ") + Rows(criteria[i].ToString()).dump();
  }
  text += "],\n\"rows\": [";
  for (size_t i = 0; i < rows.size(); ++i) text += (i == 0 ? "\n " : ",\n ") + rows[i].dump();
  return text + "\n]}\n";
}

absl::StatusOr<Rows> CommittedRows(const std::string& path) {
  if (!std::filesystem::exists(path)) return Rows::array();
  return ReadRows(path);
}

}  // namespace

std::string Criterion::ToString() const {
  std::vector<std::string> slack;
  if (relative != 0) slack.push_back(fmt::format("{:g} %", 100 * relative));
  if (absolute != 0) slack.push_back(fmt::format("{:g}", absolute));
  return fmt::format("{} {}{}{}", field, is_better_large ? "smaller" : "larger",
                     slack.empty() ? "" : " by more than ", fmt::join(slack, " and "));
}

void AddTableOptions(CLI::App& app, TableOptions& options) {
  app.add_option("--json", options.json, "also writes the rows to this file");
  app.add_option("--rows", options.rows,
                 "takes the rows of this file (of --json) instead of measuring");
  app.add_flag("--compare", options.compare,
               fmt::format("fails where a row is worse than in {}/results.json", options.folder));
  app.add_flag("--update", options.update,
               fmt::format("writes the rows into {}/results.json and what is made of it; those "
                           "that are not measured stay",
                           options.folder));
}

absl::StatusOr<Rows> ReadRows(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  ASSIGN_OR_RETURN(Rows table, ParseJson(text));
  if (!table.is_object() || !table.contains("rows") || !table["rows"].is_array() ||
      !std::ranges::all_of(table["rows"], [](const Rows& row) { return row.contains("name"); })) {
    return InvalidArgument("{} is no table of rows with names", path);
  }
  return std::move(table["rows"]);
}

Rows MergeRows(Rows committed, const Rows& rows) {
  for (const Rows& row : rows) {
    const auto old = FindRow(committed, row["name"]);
    if (old == committed.end()) {
      committed.push_back(row);
    } else {
      *old = row;
    }
  }
  return committed;
}

int MakeTableOfCommand(CLI::App& app, int argc, char** argv, const Benchmark& benchmark,
                       const TableOptions& options) {
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = MakeTable(benchmark, options);
  if (status.ok()) return EXIT_SUCCESS;
  fmt::print(stderr, "error: {}\n", Message(status));
  return EXIT_FAILURE;
}

std::vector<std::string> WorseNumbers(const Rows& rows, const Rows& committed,
                                      std::span<const Criterion> criteria) {
  std::vector<std::string> worse;
  for (const Rows& row : rows) {
    const auto old = FindRow(committed, row["name"]);
    if (old == committed.end()) continue;
    for (const Criterion& criterion : criteria) {
      const std::string& field = criterion.field;
      if (!old->contains(field) || !(*old)[field].is_number() || !row.contains(field)) continue;
      const double before = (*old)[field].get<double>();
      if (!row[field].is_number()) {
        worse.push_back(fmt::format("{}: no {}, committed {:g}", row["name"].get<std::string>(),
                                    field, before));
      } else if (const double value = row[field].get<double>(); IsWorse(value, before, criterion)) {
        worse.push_back(fmt::format("{}: {} {:g}, committed {:g}", row["name"].get<std::string>(),
                                    field, value, before));
      }
    }
  }
  return worse;
}

absl::Status MakeTable(const Benchmark& benchmark, const TableOptions& options) {
  const auto write = [&](const std::string& path, const Rows& rows) {
    return WriteFile(path, TextOf(rows, benchmark.criteria));
  };
  Rows rows = Rows::array();
  absl::Status measured, written;
  if (options.rows.empty()) {
    measured = benchmark.measure([&](Rows row) {
      rows.push_back(std::move(row));
      if (!options.json.empty()) written.Update(write(options.json, rows));
    });
  } else {
    ASSIGN_OR_RETURN(rows, ReadRows(options.rows));
  }
  RETURN_IF_ERROR(written);
  if (benchmark.summary && !rows.empty()) fmt::print("{}", benchmark.summary(rows));
  const std::string path = options.folder + "/results.json";
  std::vector<std::string> worse;
  if (options.compare) {
    ASSIGN_OR_RETURN(const Rows committed, CommittedRows(path));
    worse = WorseNumbers(rows, committed, benchmark.criteria);
  }
  if (options.update) {
    ASSIGN_OR_RETURN(const Rows committed, CommittedRows(path));
    const Rows merged = MergeRows(committed, rows);
    RETURN_IF_ERROR(write(path, merged));
    if (benchmark.page) {
      RETURN_IF_ERROR(WriteFile(options.folder + "/results.md", benchmark.page(merged)));
    }
  }
  RETURN_IF_ERROR(measured);
  if (worse.empty()) return absl::OkStatus();
  return FailedPrecondition("worse than {}:\n  {}", path, fmt::join(worse, "\n  "));
}

}  // namespace minka
