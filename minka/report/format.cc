#include "minka/report/format.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <iterator>
#include <set>
#include <vector>

#include "fmt/format.h"
#include "fmt/ranges.h"

namespace minka {
namespace {

// Three significant digits, without an exponent.
std::string ThreeDigits(double value) {
  const double magnitude = std::abs(value);
  if (magnitude >= 99.95) return fmt::format("{:.0f}", value);
  if (magnitude >= 9.995) return fmt::format("{:.1f}", value);
  return fmt::format("{:.2f}", value);
}

template <size_t kSize>
std::string Scaled(double value, double base, const std::array<const char*, kSize>& units) {
  size_t unit = 0;
  while (unit + 1 < kSize && std::abs(value) >= base * 0.9995) {
    value /= base;
    ++unit;
  }
  if (units[unit][0] == '\0') return ThreeDigits(value);
  return fmt::format("{} {}", ThreeDigits(value), units[unit]);
}

bool IsNumber(std::string_view text) {
  return !text.empty() &&
         std::ranges::all_of(text, [](unsigned char c) { return std::isdigit(c); });
}

// Numbers of layers by place: those of one '*' each.
std::vector<std::set<int64_t>> NumbersByPlace(std::span<const std::string> numbers) {
  std::vector<std::set<int64_t>> by_place;
  for (const std::string& joined : numbers) {
    size_t place = 0;
    for (size_t begin = 0; begin <= joined.size(); ++place) {
      const size_t end = std::min(joined.find(',', begin), joined.size());
      if (place == by_place.size()) by_place.emplace_back();
      int64_t number = -1;  // does not fit
      std::from_chars(joined.data() + begin, joined.data() + end, number);
      by_place[place].insert(number);
      begin = end + 1;
    }
  }
  return by_place;
}

// "{0,2-23}"
std::string RangesText(const std::set<int64_t>& numbers) {
  std::vector<std::string> ranges;
  for (auto first = numbers.begin(); first != numbers.end();) {
    auto last = first;
    while (std::next(last) != numbers.end() && *std::next(last) == *last + 1) ++last;
    ranges.push_back(first == last ? fmt::to_string(*first) : fmt::format("{}-{}", *first, *last));
    first = std::next(last);
  }
  return fmt::format("{{{}}}", fmt::join(ranges, ","));
}

}  // namespace

std::string FormatBytes(int64_t bytes) {
  if (std::abs(bytes) < 1000) return fmt::format("{} B", bytes);
  return Scaled(static_cast<double>(bytes), 1024,
                std::array{"B", "KiB", "MiB", "GiB", "TiB", "PiB"});
}

std::string FormatTime(double us) {
  if (us == 0) return "0 us";
  return Scaled(us, 1000, std::array{"us", "ms", "s"});
}

std::string FormatPercent(double fraction) { return fmt::format("{:.2f} %", 100 * fraction); }

std::string FormatNumberOf(int64_t number, std::string_view one, std::string_view several) {
  return fmt::format("{} {}", number, number == 1 ? one : several);
}

std::string FormatCount(int64_t count) {
  if (std::abs(count) < 1000) return fmt::format("{}", count);
  return Scaled(static_cast<double>(count), 1000, std::array{"", "k", "M", "G", "T"});
}

FoldedName FoldLayers(std::string_view name) {
  FoldedName folded;
  size_t begin = 0;
  while (begin <= name.size()) {
    const size_t end = std::min(name.find_first_of("/'", begin), name.size());
    const std::string_view whole = name.substr(begin, end - begin);
    const bool is_row = whole.ends_with(']');
    const std::string_view component =
        whole.substr(0, is_row ? whole.size() - 1 : whole.find_last_not_of(')') + 1);
    const size_t before = component.rfind(is_row ? '[' : '_');
    const size_t number = before == std::string_view::npos ? 0 : before + 1;
    if (IsNumber(component.substr(number))) {
      folded.pattern += std::string(component.substr(0, number)) + "*";
      folded.numbers += (folded.numbers.empty() ? "" : ",") + std::string(component.substr(number));
    } else {
      folded.pattern += component;
    }
    folded.pattern += whole.substr(component.size());
    if (end < name.size()) folded.pattern += name[end];
    begin = end + 1;
  }
  return folded;
}

std::string FormatRemat(const RematChoice& remat) {
  std::string text;
  for (size_t first = 0; first < remat.size();) {
    size_t end = first + 1;
    while (end < remat.size() && remat[end] == remat[first]) ++end;
    if (remat[first] != RematPolicy::kNone) {
      const bool is_one = end == first + 1;
      text += fmt::format("{}{} {} {}", text.empty() ? "" : ", ", is_one ? "layer" : "layers",
                          is_one ? fmt::to_string(first) : fmt::format("{}-{}", first, end - 1),
                          RematPolicyName(remat[first]));
    }
    first = end;
  }
  return text.empty() ? "nothing" : fmt::format("{}, of {}", text, remat.size());
}

std::string NameOfLayers(std::string_view pattern, std::span<const std::string> numbers,
                         std::span<const std::string> all) {
  const std::vector<std::set<int64_t>> here = NumbersByPlace(numbers),
                                       anywhere = NumbersByPlace(all);
  size_t num_named = 1;
  for (const std::set<int64_t>& place : here) num_named *= place.size();
  const std::set<std::string> distinct(numbers.begin(), numbers.end());
  if (num_named != distinct.size()) return std::string(pattern);
  std::string name;
  size_t place = 0;
  for (const char c : pattern) {
    if (c != '*') {
      name += c;
      continue;
    }
    const std::set<int64_t>& values = here[place];
    const bool is_every_one = values == anywhere[place++];
    name += values.size() == 1 ? fmt::to_string(*values.begin())
            : is_every_one     ? "*"
                               : RangesText(values);
  }
  return name;
}

}  // namespace minka
