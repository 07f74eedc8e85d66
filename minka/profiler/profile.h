// Measures what operations and collectives cost on this machine's devices: programs of many equal
// operations, run by all devices at once.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "minka/cost/calibration.h"
#include "minka/runtime/mesh/local_devices.h"

namespace minka {

struct ProfileOptions {
  // Measures with as many devices of the client as this; with one there are no collectives.
  int num_devices = 8;
  int repetitions = 7;  // of each program at least, fewer of long ones; the median counts
  // Called before each measurement.
  std::function<void(std::string_view what, int done, int total)> on_progress;
};

// About three minutes on two idle cores, four or five where the host of a virtual machine moves its
// cores meanwhile, so that much is measured again.
absl::StatusOr<Calibration> Profile(const LocalDevices& devices, const ProfileOptions& options);

// Where the calibration of this processor, number of cores and plugin is kept:
// $XDG_CACHE_HOME/minka/ or ~/.cache/minka/.
std::string CalibrationPath(const LocalDevices& devices, int num_devices);

// A new calibration, which is kept. Of a user's processes one at a time measures: the others would
// be measured, too.
absl::StatusOr<Calibration> ProfileAndKeep(const LocalDevices& devices,
                                           const ProfileOptions& options);

// The calibration kept from an earlier call, or by a process that is waited for, else a new one as
// ProfileAndKeep makes; failing to keep it is no error. What an earlier version kept is measured
// anew; a file that cannot be read as one or has numbers out of range is refused by name.
absl::StatusOr<Calibration> LoadOrProfile(const LocalDevices& devices,
                                          const ProfileOptions& options);

}  // namespace minka
