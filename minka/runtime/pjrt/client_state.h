// What a client, its buffers and its executables share. For the sources of this folder only.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "minka/runtime/pjrt/api.h"
#include "minka/runtime/pjrt/client.h"

namespace minka::pjrt {

struct ClientState {
  ClientState(const PJRT_Api* api, PJRT_Client* client) : api(api), client(client) {}
  ClientState(const ClientState&) = delete;
  ClientState& operator=(const ClientState&) = delete;
  ~ClientState();

  const PJRT_Api* const api;
  PJRT_Client* const client;
  Platform kind = Platform::kCpu;
  std::string platform;
  std::vector<PJRT_Device*> handles;  // parallel to devices
  std::vector<Device> devices;
  std::unique_ptr<MemoryMeter> meter;
  std::vector<std::atomic<int64_t>> allocator_peaks_at_reset;  // by device
};

}  // namespace minka::pjrt
