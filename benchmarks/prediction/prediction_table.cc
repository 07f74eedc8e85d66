#include "benchmarks/prediction/prediction_table.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "fmt/format.h"

namespace minka {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kLongStepUs = 20e3;
constexpr double kClearDifference = 0.2;  // of the slower plan's time over the faster one's

double Number(const Json& row, const char* key) { return row[key].get<double>(); }

// Rows of earlier versions do not say.
double Slowdown(const Json& row) { return row.value("slowdown", 1.0); }

// As fast as the machine was when it was profiled.
double MeasuredUs(const Json& row) { return Number(row, "median_us") / Slowdown(row); }

double MemoryRatio(const Json& row) {
  return Number(row, "estimated_bytes") / Number(row, "compiled_bytes");
}

struct Errors {
  int count = 0;
  double mean = 0, worst = 0;  // absolute; worst with its sign

  void Add(double error) {
    mean = (mean * count + std::abs(error)) / (count + 1);
    ++count;
    if (std::abs(error) > std::abs(worst)) worst = error;
  }
  std::string ToString() const {
    return fmt::format("mean {:.1f} %, worst {:+.1f} %", 100 * mean, 100 * worst);
  }
};

std::string Row(const Json& row, const Json& before, bool has_before) {
  const std::string name = row["name"];
  const std::string earlier = !has_before ? ""
                              : before.contains(name)
                                  ? fmt::format(" {:+.0f} % |", 100 * before[name].get<double>())
                                  : " |";
  return fmt::format(
      "| {} | {} | {} | {:.2f} | {:.2f} | {:.2f} to {:.2f} | {:.2f} | {:.2f} | {:+.1f} % |{} "
      "{:.0f} % | {:.1f} % | {:.0f} % | "
      "{:.1f} | "
      "{:.1f} | "
      "{:.2f} |\n",
      row["step"].get<std::string>(), row["method"].get<std::string>(),
      row["mesh"].get<std::string>(), Number(row, "predicted_us") / 1e3,
      Number(row, "median_us") / 1e3, row["quartiles_us"][0].get<double>() / 1e3,
      row["quartiles_us"][1].get<double>() / 1e3, Number(row, "busy_us") / 1e3, Slowdown(row),
      100 * TimeErrorOf(row), earlier, 100 * Number(row, "others_share"),
      100 * row.value("stolen_share", 0.0), 100 * row.value("moved_share", 0.0),
      Number(row, "estimated_bytes") / (1 << 20), Number(row, "compiled_bytes") / (1 << 20),
      MemoryRatio(row));
}

std::string ErrorSummary(const Json& rows, const Json& before) {
  Errors all, long_ones, all_before, long_before;
  for (const Json& row : rows) {
    const bool is_long = Number(row, "median_us") >= kLongStepUs;
    all.Add(TimeErrorOf(row));
    if (is_long) long_ones.Add(TimeErrorOf(row));
    if (!before.contains(row["name"])) continue;
    all_before.Add(before[row["name"].get<std::string>()]);
    if (is_long) long_before.Add(before[row["name"].get<std::string>()]);
  }
  std::string text =
      fmt::format("- {} steps of 20 ms and more: error {}", long_ones.count, long_ones.ToString());
  if (long_before.count > 0) {
    text += fmt::format("; before, {} of them: {}", long_before.count, long_before.ToString());
  }
  text += fmt::format("\n- all {} programs: error {}", all.count, all.ToString());
  if (all_before.count > 0) text += fmt::format("; before: {}", all_before.ToString());
  return text + "\n";
}

// How often the plan that is predicted to be faster is, among pairs of one step's plans whose
// measured times differ clearly.
std::string PairSummary(const Json& rows) {
  int num_pairs = 0, num_right = 0;
  std::string wrong;
  for (size_t i = 0; i < rows.size(); ++i) {
    for (size_t j = 0; j < rows.size(); ++j) {
      const Json &faster = rows[i], &slower = rows[j];
      if (faster["step"] != slower["step"]) continue;
      if (MeasuredUs(slower) <= (1 + kClearDifference) * MeasuredUs(faster)) {
        continue;
      }
      ++num_pairs;
      if (Number(faster, "predicted_us") < Number(slower, "predicted_us")) {
        ++num_right;
      } else {
        wrong +=
            fmt::format("  - {}, not {} on {}\n", faster["name"].get<std::string>(),
                        slower["method"].get<std::string>(), slower["mesh"].get<std::string>());
      }
    }
  }
  return fmt::format(
      "- {} pairs of plans of one step differ by more than 20 %: the faster one is named in {} "
      "({:.0f} %){}\n{}",
      num_pairs, num_right, num_pairs == 0 ? 100.0 : 100.0 * num_right / num_pairs,
      wrong.empty() ? "" : "; not these:", wrong);
}

std::string MemorySummary(const Json& rows) {
  double sum = 0, least = INFINITY, most = 0;
  int below = 0;
  for (const Json& row : rows) {
    below += MemoryRatio(row) < 1;
    sum += MemoryRatio(row);
    least = std::min(least, MemoryRatio(row));
    most = std::max(most, MemoryRatio(row));
  }
  return fmt::format("- memory estimated / compiled: mean {:.3f}, {:.3f} to {:.3f}, {} below\n",
                     sum / static_cast<double>(rows.size()), least, most, below);
}

std::string MethodSummary(const Json& rows) {
  std::string worse;
  int num_compared = 0;
  for (const Json& shard : rows) {
    if (shard["method"] != "shard") continue;
    for (const Json& other : rows) {
      if (other["step"] != shard["step"] || other["mesh"] != shard["mesh"]) continue;
      if (other["method"] == "shard") continue;
      ++num_compared;
      if (Number(shard, "predicted_us") <= Number(other, "predicted_us")) continue;
      worse += fmt::format("  - {}: predicted slower than {}\n", shard["name"].get<std::string>(),
                           other["method"].get<std::string>());
    }
  }
  return fmt::format(
      "- `shard` is predicted at most as slow as `data` and `zero3` on the same mesh in {} of {} "
      "comparisons\n{}",
      num_compared - std::ranges::count(worse, '\n'), num_compared, worse);
}

}  // namespace

double TimeErrorOf(const Json& row) { return Number(row, "predicted_us") / MeasuredUs(row) - 1; }

std::string MemoryTable(const Json& rows) {
  std::string text =
      "| step | method | mesh | estimated MiB | compiled MiB | ratio "
      "|\n|---|---|---|---|---|---|\n";
  for (const Json& row : rows) {
    text += fmt::format("| {} | {} | {} | {:.2f} | {:.2f} | {:.3f} |\n",
                        row["step"].get<std::string>(), row["method"].get<std::string>(),
                        row["mesh"].get<std::string>(), Number(row, "estimated_bytes") / (1 << 20),
                        Number(row, "compiled_bytes") / (1 << 20), MemoryRatio(row));
  }
  return rows.empty() ? text : text + "\n" + MemorySummary(rows);
}

Json ErrorsOf(const Json& rows) {
  Json errors = Json::object();
  for (const Json& row : rows) errors[row["name"].get<std::string>()] = TimeErrorOf(row);
  return errors;
}

std::string PredictionTable(const Json& rows, const Json& before) {
  const bool has_before = !before.empty();
  std::string text = fmt::format(
      "| step | method | mesh | predicted ms | measured ms | quartiles | busy ms | machine | error "
      "|{} "
      "others | stolen | moved | "
      "estimated "
      "MiB | compiled MiB | ratio "
      "|\n|---|---|---|---|---|---|---|---|---|{}---|---|---|---|---|---|\n",
      has_before ? " before |" : "", has_before ? "---|" : "");
  for (const Json& row : rows) text += Row(row, before, has_before);
  if (rows.empty()) return text;
  return text + "\n" + ErrorSummary(rows, before) + PairSummary(rows) + MethodSummary(rows) +
         MemorySummary(rows);
}

}  // namespace minka
