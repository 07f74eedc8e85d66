// Faults that a lowered per-device program can have, made on purpose.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>

#include "minka/driver/compile.h"
#include "minka/ir/module.h"

namespace minka {

struct Break {
  std::string name;
  // The program with the fault; nullopt where it has no place for it.
  std::function<std::optional<Module>(const CompiledStep& compiled)> apply;
};

std::span<const Break> AllBreaks();

}  // namespace minka
