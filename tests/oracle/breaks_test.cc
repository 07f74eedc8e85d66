// The oracle refuses broken programs: breaks.md says which, by fault, type and model. CI runs a
// covering selection; MINKA_BREAKS=all runs every cell, MINKA_BREAKS=update also writes the table,
// and MINKA_BREAKS=missed does so with the cells that were not refused.
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <tuple>

#include "fmt/format.h"
#include "gtest/gtest.h"
#include "minka/base/check.h"
#include "minka/base/file.h"
#include "minka/base/status.h"
#include "tests/oracle/break_runs.h"

namespace minka {
namespace {

std::string Mode() {
  const char* const mode = std::getenv("MINKA_BREAKS");
  return mode == nullptr ? "" : mode;
}

bool WritesTable() { return Mode() == "update" || Mode() == "missed"; }

constexpr char kNotRun = '?';

struct Table {
  // By fault and type one letter per model.
  std::map<std::pair<std::string, std::string>, std::string> cells;
  std::map<std::string, std::string> why_missed;  // by "fault, model type"

  char& Cell(const std::string& fault, const std::string& type, size_t model) {
    std::string& cell = cells[{fault, type}];
    cell.resize(kSubjectModels.size(), kNotRun);
    return cell[model];
  }
};

Table ReadTable() {
  Table table;
  std::istringstream lines(ReadFile(BREAKS_TABLE).value_or(""));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("- ") && line.find(": ") != std::string::npos) {
      const size_t colon = line.find(": ");
      table.why_missed[line.substr(2, colon - 2)] = line.substr(colon + 2);
    }
    if (!line.starts_with("| ") || line.find('`') == std::string::npos) continue;
    std::istringstream columns(line.substr(2));
    std::string name, cell;
    std::getline(columns, name, '|');
    name.pop_back();
    for (const std::string_view type : kSubjectTypes) {
      std::getline(columns, cell, '|');
      table.cells[{name, std::string(type)}] =
          cell.substr(cell.find('`') + 1, kSubjectModels.size());
    }
  }
  return table;
}

struct Totals {
  int refused = 0, within_rounding = 0, missed = 0;
};

void WriteTable(Table table) {
  std::string text =
      "# What the oracle refuses\n\n"
      "Made by `MINKA_BREAKS=update oracle_breaks_test`. One letter per model, in the order mlp, "
      "gpt, moe,\nwresnet: `R` refused, `~` no result moves by more than twice what rounding does "
      "to the right plan, `M` missed,\n`-` no program of the model has a place for the fault, `?` "
      "not run yet.\n\n"
      "| fault |";
  for (const std::string_view type : kSubjectTypes) text += fmt::format(" {} |", type);
  text += "\n|---|---|---|---|---|\n";
  std::map<std::string, Totals> totals;
  for (const Break& fault : AllBreaks()) {
    text += fmt::format("| {} |", fault.name);
    for (const std::string_view type : kSubjectTypes) {
      table.Cell(fault.name, std::string(type), 0);
      const std::string& cell = table.cells.at({fault.name, std::string(type)});
      text += fmt::format(" `{}` |", cell);
      Totals& total = totals[std::string(type)];
      for (const char outcome : cell) {
        total.refused += outcome == static_cast<char>(Outcome::kRefused) ? 1 : 0;
        total.within_rounding += outcome == static_cast<char>(Outcome::kWithinRounding) ? 1 : 0;
        total.missed += outcome == static_cast<char>(Outcome::kMissed) ? 1 : 0;
      }
    }
    text += "\n";
  }
  text += "\n| type | refused | within rounding | missed |\n|---|---|---|---|\n";
  for (const std::string_view type : kSubjectTypes) {
    const Totals& total = totals[std::string(type)];
    text += fmt::format("| {} | {} | {} | {} |\n", type, total.refused, total.within_rounding,
                        total.missed);
  }
  if (!table.why_missed.empty()) text += "\nMissed:\n\n";
  for (const auto& [what, why] : table.why_missed) text += fmt::format("- {}: {}\n", what, why);
  const absl::Status written = WriteFile(BREAKS_TABLE, text);
  MINKA_CHECK(written.ok(), "{}", Message(written));
}

// Every fault once, with the perceptron in f32 and behind bf16 by turns: larger models take
// minutes.
bool IsSelected(size_t fault, size_t model, size_t type, char known) {
  if (Mode() == "missed") {
    return known != static_cast<char>(Outcome::kRefused) &&
           known != static_cast<char>(Outcome::kNoPlace);
  }
  if (!Mode().empty()) return true;
  return kSubjectModels[model] == "mlp" && type == fault % 2;
}

class Breaks : public testing::TestWithParam<std::tuple<size_t, size_t>> {};

TEST_P(Breaks, AreRefused) {
  static const auto devices = OpenLocalDevices({.num_devices = 4});
  ASSERT_TRUE(devices.ok()) << Message(devices.status());
  const auto [type_number, model_number] = GetParam();
  const std::string type(kSubjectTypes[type_number]), model(kSubjectModels[model_number]);
  if (Mode().empty() && (model != "mlp" || type_number > 1)) GTEST_SKIP() << "by MINKA_BREAKS=all";
  Table table = ReadTable();
  BreakRuns runs({model, type}, *devices);
  for (size_t i = 0; i < AllBreaks().size(); ++i) {
    const Break& fault = AllBreaks()[i];
    const char before = table.Cell(fault.name, type, model_number);
    if (!IsSelected(i, model_number, type_number, before)) continue;
    const Outcome outcome = runs.Run(fault);
    const std::string what = fmt::format("{}, {} {}", fault.name, model, type);
    if (!Mode().empty()) {
      std::cout << fmt::format("{} {}: {}\n", static_cast<char>(outcome), what,
                               runs.explanation().substr(0, 400))
                << std::flush;
    }
    if (type == "f32") {
      EXPECT_NE(outcome, Outcome::kMissed) << what << ": " << runs.explanation();
    }
    if (WritesTable()) table = ReadTable();  // others may have written to it
    char& known = table.Cell(fault.name, type, model_number);
    if (!WritesTable()) {
      EXPECT_EQ(known, static_cast<char>(outcome)) << what << ": " << runs.explanation();
      continue;
    }
    known = static_cast<char>(outcome);
    table.why_missed.erase(what);
    if (outcome == Outcome::kMissed) table.why_missed[what] = runs.explanation();
    WriteTable(table);
  }
}

INSTANTIATE_TEST_SUITE_P(AllTypes, Breaks,
                         testing::Combine(testing::Range(size_t{0}, kSubjectTypes.size()),
                                          testing::Range(size_t{0}, kSubjectModels.size())),
                         [](const auto& info) {
                           std::string name =
                               fmt::format("{}_{}", kSubjectTypes[std::get<0>(info.param)],
                                           kSubjectModels[std::get<1>(info.param)]);
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace minka
