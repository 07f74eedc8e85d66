#include "minka/tools/quantities.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>

#include "minka/base/status.h"

namespace minka {
namespace {

struct Quantity {
  double value = -1;
  std::string unit;
};

// A value of -1: no number.
Quantity SplitUnit(const std::string& text) {
  size_t used = 0;
  double value = -1;
  try {
    value = std::stod(text, &used);
  } catch (const std::logic_error&) {
    return {};
  }
  return {value, text.substr(used)};
}

}  // namespace

absl::StatusOr<double> ParseSeconds(const std::string& flag, const std::string& text) {
  static const std::map<std::string, double> kUnits = {{"", 1},   {"s", 1},    {"ms", 1e-3},
                                                       {"m", 60}, {"min", 60}, {"h", 3600}};
  const Quantity quantity = SplitUnit(text);
  const auto unit = kUnits.find(quantity.unit);
  if (unit == kUnits.end() || !(quantity.value > 0) || !std::isfinite(quantity.value)) {
    return InvalidArgument("{} {} is not a time; write for example 60s, 500ms or 2m", flag, text);
  }
  return quantity.value * unit->second;
}

absl::StatusOr<int64_t> ParseBytes(const std::string& flag, const std::string& text) {
  static const std::map<std::string, double> kUnits = {
      {"", 1},         {"B", 1},      {"kB", 1e3},     {"KB", 1e3},     {"MB", 1e6},
      {"GB", 1e9},     {"TB", 1e12},  {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30},
      {"TiB", 0x1p40}, {"k", 0x1p10}, {"m", 0x1p20},   {"g", 0x1p30},   {"K", 0x1p10},
      {"M", 0x1p20},   {"G", 0x1p30}, {"T", 0x1p40}};
  const Quantity quantity = SplitUnit(text);
  const auto unit = kUnits.find(quantity.unit);
  if (unit == kUnits.end() || !(quantity.value > 0) || quantity.value * unit->second >= 0x1p62) {
    return InvalidArgument("{} {} is not a size; write for example 2GiB, 500MB or 4096", flag,
                           text);
  }
  return static_cast<int64_t>(quantity.value * unit->second);
}

std::vector<std::string> SplitAtCommas(const std::string& text) {
  std::vector<std::string> items;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    items.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return items;
}

absl::StatusOr<std::vector<double>> ParseNumbers(const std::string& flag, const std::string& text) {
  std::vector<double> numbers;
  for (const std::string& item : SplitAtCommas(text)) {
    double number = 0;
    if (!CLI::detail::lexical_cast(item, number)) {
      return InvalidArgument("{} {} is no list of numbers; write for example 1,1", flag, text);
    }
    numbers.push_back(number);
  }
  return numbers;
}

}  // namespace minka
