#include "minka/ir/names.h"

#include <algorithm>
#include <cctype>

#include "fmt/format.h"

namespace minka {
namespace {

bool IsDigit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

std::string WithoutSuffix(const std::string& name) {
  const size_t dot = name.rfind('.');
  if (dot == std::string::npos || dot == 0 || dot + 1 == name.size()) return name;
  return std::all_of(name.begin() + static_cast<int64_t>(dot) + 1, name.end(), IsDigit)
             ? name.substr(0, dot)
             : name;
}

}  // namespace

std::string SanitizedName(std::string_view name) {
  std::string sanitized(name);
  for (char& c : sanitized) {
    const bool allowed =
        std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == '-';
    if (!allowed) c = '_';
  }
  if (!sanitized.empty() && (IsDigit(sanitized[0]) || sanitized[0] == '.' || sanitized[0] == '-')) {
    sanitized.insert(sanitized.begin(), '_');
  }
  return sanitized;
}

std::string UniqueNames::Take(const std::string& wanted) {
  if (Reserve(wanted)) return wanted;
  const std::string base = WithoutSuffix(wanted);
  while (true) {
    std::string candidate = fmt::format("{}.{}", base, ++last_suffix_[base]);
    if (Reserve(candidate)) return candidate;
  }
}

std::string ValueName(std::string_view name, size_t num_results, int32_t result) {
  if (num_results == 1 || name.empty()) return std::string(name);
  return fmt::format("{}#{}", name, result);
}

}  // namespace minka
