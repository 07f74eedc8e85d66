// A connection to the devices of one plugin, and the arrays on them.
//
//   ASSIGN_OR_RETURN(const std::string path, FindPlugin({.kind = Platform::kCpu}));
//   ASSIGN_OR_RETURN(const Plugin plugin, Plugin::Load(path));
//   ASSIGN_OR_RETURN(Client client, Client::Create(plugin, {.num_devices = 8}));
//   ASSIGN_OR_RETURN(Buffer x, client.CopyFromHost(0, {ElementType::kF32, {2, 2}}, bytes));
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "minka/ir/shape.h"
#include "minka/runtime/pjrt/buffer.h"
#include "minka/runtime/pjrt/memory_meter.h"
#include "minka/runtime/pjrt/plugin.h"

namespace minka::pjrt {

struct ClientState;

struct ClientOptions {
  // Virtual devices on CPU, visible ones on GPU; 0: as many as the plugin offers.
  int num_devices = 0;
  int first_device = 0;  // of the visible ones
};

struct Device {
  int id = 0;               // the plugin's number of it
  std::string kind;         // e.g. "cpu", "NVIDIA H100 80GB HBM3"
  std::string description;  // for messages
};

// What the plugin's allocator says of one device.
struct AllocatorBytes {
  int64_t in_use_bytes = 0;
  int64_t peak_bytes = 0;   // since the client was made
  int64_t limit_bytes = 0;  // 0: unknown
};

// A handle: copies share the connection, which ends when the last of them and of its buffers and
// executables is gone. Thread-safe. One client per mesh and process: XLA runs multi-device launches
// of one client one after the other, even on different devices.
//
// Devices are named by their position in devices() everywhere in this folder.
class Client {
 public:
  static absl::StatusOr<Client> Create(const Plugin& plugin, const ClientOptions& options);

  const std::string& platform() const;  // "cpu", "cuda"
  Platform kind() const;
  const std::vector<Device>& devices() const;
  int num_devices() const { return static_cast<int>(devices().size()); }

  // Copies a dense row-major array to a device; `bytes` may be changed as soon as this returns.
  // Multi-byte elements are little endian; predicates and types narrower than a byte take one byte
  // each, of which on the way back only the type's low bits count.
  absl::StatusOr<Buffer> CopyFromHost(int device, const Shape& shape, std::string_view bytes) const;
  // The same of contents that stay as they are until their owner is dropped, on any thread: a
  // device with memory of its own may read them later.
  absl::StatusOr<Buffer> CopyFromHost(int device, const Shape& shape, LentContents contents) const;
  // The same of what `memory` holds, without a copy where devices use this process's memory; it
  // must be aligned to kAlignment, is the device's from now on, and is let go, on any thread, once
  // the device needs it no more.
  absl::StatusOr<Buffer> Adopt(int device, const Shape& shape, std::shared_ptr<char> memory) const;
  static constexpr size_t kAlignment = 64;

  // Lets devices with memory of their own read and write this process's memory by themselves, where
  // their plugin would copy what lies there once more: makes all its pages resident. To stay mapped
  // as long as the client; devices that use this process's memory need none of it.
  absl::Status RegisterHostMemory(std::span<char> memory) const;

  // The sum over live buffers and its largest value, kept by minka (exact on CPU, see MemoryMeter).
  MemoryMeter& meter() const;
  // The allocator's own numbers, where the plugin has them (GPU).
  std::optional<AllocatorBytes> allocator_bytes(int device) const;
  // Measured peak of a device since ResetPeak: the allocator's where it has risen since, else the
  // meter's. (Before that compilers try kernels, for which they allocate.)
  int64_t peak_bytes(int device) const;
  // The largest of those of the first devices.
  int64_t LargestPeakBytes(int num_devices) const;
  void ResetPeak();

  // For the other classes of this folder.
  const std::shared_ptr<ClientState>& state() const { return state_; }

 private:
  explicit Client(std::shared_ptr<ClientState> state) : state_(std::move(state)) {}

  std::shared_ptr<ClientState> state_;
};

}  // namespace minka::pjrt
