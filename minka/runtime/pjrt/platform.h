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

// Options of Client_Create, by name. A plugin refuses names that it does not know. A GPU's memory
// is taken as it is needed, because a step and what it is checked with may use it one beside the
// other, and but for a part that compiler and libraries need for themselves.
using ClientOption = std::variant<int64_t, bool, float, std::vector<int64_t>>;
std::map<std::string, ClientOption> PlatformClientOptions(Platform kind, int first_device,
                                                          int num_devices);

// What keeps XLA from planning again: recomputed operations and repeated gathers behind an
// opt-barrier stay, all-reduces are not combined beyond the plan, and the schedule does not trade
// memory for concurrency. And what was seen to compute wrongly: docs/design/0004.
Overrides RequiredOverrides(Platform kind);

// And what depends on the client.
Overrides ClientOverrides(Platform kind, int num_devices);

// The pool of threads in which an XLA CPU client runs operations. Members of a collective wait in
// it for each other, a thread for each device of the client, and operations that divide their work
// among its threads (convolutions) may wait for these, too. Where devices already keep all cores
// busy, nothing is gained by dividing: no operation does, and a thread for each device is enough
// (one alone multiplies by another path of Eigen, docs/design/0012-prices.md).
struct CpuThreadPool {
  int num_threads = 1;
  bool divides_operations = false;
};
CpuThreadPool CpuThreadPoolFor(int num_devices);

// `extra` on top of `required`; lists of pass names (xla_disable_hlo_passes) are joined.
Overrides MergeOverrides(Overrides required, const Overrides& extra);

}  // namespace minka::pjrt
