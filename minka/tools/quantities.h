// Quantities as flags spell them; messages name the flag.
#pragma once

#include <charconv>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "fmt/format.h"

namespace minka {

// "60s", "500ms", "2m", "1h", "1.5" (seconds).
absl::StatusOr<double> ParseSeconds(const std::string& flag, const std::string& text);

// "2GiB", "500MB", "1.5g" (binary), "4096".
absl::StatusOr<int64_t> ParseBytes(const std::string& flag, const std::string& text);

// "a,b" -> {"a", "b"}.
std::vector<std::string> SplitAtCommas(const std::string& text);

// "3,1" -> {3, 1}.
absl::StatusOr<std::vector<double>> ParseNumbers(const std::string& flag, const std::string& text);

// A check of flags: a whole number of at least `least` that fits into Number.
template <typename Number>
CLI::Validator WholeNumberFrom(Number least) {
  const auto check = [least](const std::string& text) -> std::string {
    Number number = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error == std::errc() && stop == text.data() + text.size() && number >= least) return "";
    return fmt::format("{} is no whole number in [{}, {}]", text, least,
                       std::numeric_limits<Number>::max());
  };
  return CLI::Validator(check, /*validator_desc=*/"");
}

}  // namespace minka
