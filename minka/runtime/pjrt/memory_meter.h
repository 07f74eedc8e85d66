// Measured memory of devices whose plugin does not measure it.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

namespace minka::pjrt {

// What one launch does to one device's memory, in bytes.
struct LaunchBytes {
  int64_t output_bytes = 0;   // results, as PJRT sizes them
  int64_t alias_bytes = 0;    // of those, results that take the place of a donated argument
  int64_t donated_bytes = 0;  // arguments that are gone after the launch
  int64_t temp_bytes = 0;     // held while the executable runs
};

// Sums the sizes that PJRT reports for live buffers, per device, and keeps the largest sum of live
// buffers and the temporary bytes of the executable that runs. Launches of a device run in the
// order they are made, so a launch is counted when it is made: the peak does not depend on timing.
// Thread-safe.
class MemoryMeter {
 public:
  explicit MemoryMeter(int num_devices) : devices_(num_devices) {}

  void AddBuffer(int device, int64_t bytes);
  void RemoveBuffer(int device, int64_t bytes);
  void AddLaunch(int device, const LaunchBytes& launch);

  // Bytes of the buffers alive now.
  int64_t live_bytes(int device) const;
  // The largest sum since the start or the last ResetPeak.
  int64_t peak_bytes(int device) const;
  // Forgets the peaks: from now on they count from what is alive.
  void ResetPeak();

 private:
  struct DeviceBytes {
    int64_t live = 0;
    int64_t peak = 0;
  };

  mutable std::mutex mutex_;
  std::vector<DeviceBytes> devices_;  // guarded by mutex_
};

}  // namespace minka::pjrt
