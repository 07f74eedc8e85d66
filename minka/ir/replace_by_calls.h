// Writes instructions anew as programs of several.
#pragma once

#include <functional>
#include <optional>

#include "minka/ir/module.h"

namespace minka {

// A module from the instruction's operands to its results; nullopt leaves the instruction as it is.
using BodyOf =
    std::function<std::optional<Module>(const Computation& computation, const Instruction&)>;

// Replaces the instructions that get a body by calls of it. InlineCalls() then makes the calls part
// of their computations.
Module ReplaceByCalls(Module module, const BodyOf& body_of);

}  // namespace minka
