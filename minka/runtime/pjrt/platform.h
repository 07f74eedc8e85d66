// All that differs between kinds of devices: the only file that knows which plugin runs.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "minka/runtime/pjrt/plugin.h"

namespace minka::pjrt {

// A typed option of the compiler, named by its DebugOptions field. XLA refuses a bool written as
// text.
using OverrideValue = std::variant<std::string, bool, int64_t, double>;
using Overrides = std::map<std::string, OverrideValue>;

// Options of Client_Create, by name. A plugin refuses names that it does not know.
using ClientOption = std::variant<int64_t, std::vector<int64_t>>;
std::map<std::string, ClientOption> PlatformClientOptions(Platform kind, int num_devices);

// What keeps XLA from planning again: recomputed operations and repeated gathers behind an
// opt-barrier stay, all-reduces are not combined beyond the plan, and the schedule does not trade
// memory for concurrency. And what was seen to compute wrongly: docs/design/0004.
Overrides RequiredOverrides(Platform kind);

// `extra` on top of `required`; lists of pass names (xla_disable_hlo_passes) are joined.
Overrides MergeOverrides(Overrides required, const Overrides& extra);

}  // namespace minka::pjrt
