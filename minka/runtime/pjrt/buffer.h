// One array on one device.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "minka/ir/shape.h"
#include "minka/runtime/pjrt/event.h"

struct PJRT_Buffer;

namespace minka::pjrt {

struct ClientState;

enum class BufferState {
  kAlive,
  kDeleted,  // by Delete
  kDonated,  // consumed by a launch, whose result may live in its memory
};

// Who adds a new buffer's bytes to the client's MemoryMeter.
enum class Metering {
  kByBuffer,
  kByLaunch,  // the launch that makes it, together with its temporary bytes
};

// An array's contents in memory of this process, dense and row-major as in Client::CopyFromHost.
struct LentContents {
  std::span<const char> bytes;
  std::shared_ptr<const void> owner;  // keeps them as they are
};

// Contents that nobody else has.
LentContents LendString(std::string contents);

// Owns a PJRT buffer; move-only. A moved-from buffer is deleted and has no shape. Its contents may
// still be computed when it exists: whatever uses it waits by itself. Reading is thread-safe;
// Delete, donation and moves need the caller's order.
class Buffer {
 public:
  // Takes ownership.
  Buffer(std::shared_ptr<ClientState> client, PJRT_Buffer* buffer, int device,
         std::shared_ptr<const Shape> shape, Metering metering);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  const Shape& shape() const { return *shape_; }
  int device() const { return device_; }
  BufferState state() const { return state_; }
  // Bytes on the device as PJRT sizes them; 0 once deleted or donated.
  int64_t size_bytes() const { return size_bytes_; }

  // The contents, dense and row-major as in Client::CopyFromHost. Blocks until they are computed
  // and copied; an error of the launch that makes them comes out here.
  absl::StatusOr<std::string> ToHost() const;

  // The same into `destination`, which must have exactly the array's size on the host.
  absl::Status ReadInto(std::span<char> destination) const;

  // The same without blocking: `destination` must have exactly the array's size on the host and
  // live until the event.
  absl::StatusOr<Event> CopyToHost(std::span<char> destination) const;

  // The contents without a copy where this process can read them on the device, else as ToHost.
  // Until the owner is dropped, on any thread, the plugin keeps their memory: a launch that the
  // buffer is donated to copies it. Blocks until they are computed.
  absl::StatusOr<LentContents> Lend() const;

  // Completes when the contents are computed.
  absl::StatusOr<Event> Ready() const;

  // Frees the memory as soon as launches already made no longer need it. A second call does
  // nothing.
  void Delete();

  // For launches: the plugin's buffer, and the note that a launch has consumed it (the meter was
  // told by the launch).
  PJRT_Buffer* handle() const;
  const ClientState* client() const { return client_.get(); }
  void MarkDonated();

 private:
  class Handle;  // the plugin's buffer, also of those it is lent to

  absl::Status CheckAlive() const;
  const char* HostContents() const;
  void Release();

  std::shared_ptr<ClientState> client_;
  std::shared_ptr<Handle> handle_;
  int device_ = 0;
  BufferState state_ = BufferState::kAlive;
  int64_t size_bytes_ = 0;
  std::shared_ptr<const Shape> shape_;
};

}  // namespace minka::pjrt
