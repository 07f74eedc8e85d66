#include "minka/runtime/pjrt/memory_meter.h"

#include <algorithm>

namespace minka::pjrt {

void MemoryMeter::AddBuffer(int device, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  DeviceBytes& memory = devices_[device];
  memory.live += bytes;
  memory.peak = std::max(memory.peak, memory.live);
}

void MemoryMeter::RemoveBuffer(int device, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  devices_[device].live -= bytes;
}

void MemoryMeter::AddLaunch(int device, const LaunchBytes& launch) {
  const std::lock_guard lock(mutex_);
  DeviceBytes& memory = devices_[device];
  memory.live += launch.output_bytes;
  memory.peak = std::max(memory.peak, memory.live - launch.alias_bytes + launch.temp_bytes);
  memory.live -= launch.donated_bytes;
}

int64_t MemoryMeter::live_bytes(int device) const {
  const std::lock_guard lock(mutex_);
  return devices_[device].live;
}

int64_t MemoryMeter::peak_bytes(int device) const {
  const std::lock_guard lock(mutex_);
  return devices_[device].peak;
}

void MemoryMeter::ResetPeak() {
  const std::lock_guard lock(mutex_);
  for (DeviceBytes& memory : devices_) memory.peak = memory.live;
}

}  // namespace minka::pjrt
