// Whose compiler local programs go through. What goes by it: which PJRT plugin is looked for and
// with which options it compiles (runtime/pjrt/), where local programs say it otherwise than HLO
// asks (lowering/departures.h), and whose memory is imitated (analysis/xla_cpu_memory.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace minka {

enum class Platform : uint8_t { kCpu, kCuda };

// By Platform; as PJRT names them.
inline constexpr std::array<std::string_view, 2> kPlatformNames = {"cpu", "cuda"};

constexpr std::string_view PlatformName(Platform platform) {
  return kPlatformNames[static_cast<size_t>(platform)];
}

constexpr std::optional<Platform> PlatformNamed(std::string_view name) {
  for (size_t i = 0; i < kPlatformNames.size(); ++i) {
    if (kPlatformNames[i] == name) return static_cast<Platform>(i);
  }
  return std::nullopt;
}

}  // namespace minka
