#include "tests/random_programs/results.h"

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "fmt/format.h"
#include "tests/support/rotation.h"

namespace minka {

int FromEnvironment(const char* name, int otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : static_cast<int>(std::strtol(value, nullptr, 10));
}

bool IsOfThisRun(int seed) {
  const auto num_parts = static_cast<uint64_t>(FromEnvironment("MINKA_RANDOM_PARTS", 1));
  return static_cast<uint64_t>(seed / 2) % num_parts == TestRotation() % num_parts;
}

std::optional<std::string> Difference(const std::string& got, const std::string& want,
                                      const Shape& shape, double noise) {
  const Literal got_literal{shape, std::make_shared<const std::string>(got)};
  const Literal want_literal{shape, std::make_shared<const std::string>(want)};
  for (int64_t i = 0; i < shape.num_elements(); ++i) {
    const double a = ElementAsDouble(got_literal, i);
    const double b = ElementAsDouble(want_literal, i);
    if (a == b || (std::isnan(a) && std::isnan(b))) continue;
    if (noise > 0 && std::abs(a - b) <= noise + 1e-5 * (std::abs(a) + std::abs(b))) continue;
    return fmt::format("element {} of {} is {}, on one device {}", i, ToString(shape), a, b);
  }
  return std::nullopt;
}

}  // namespace minka
