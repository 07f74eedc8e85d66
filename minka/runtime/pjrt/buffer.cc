#include "minka/runtime/pjrt/buffer.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <span>
#include <utility>

#include "minka/base/status.h"
#include "minka/runtime/pjrt/client_state.h"
#include "minka/runtime/pjrt/row_major_layout.h"

namespace minka::pjrt {
namespace {

int64_t SizeOnDevice(const PJRT_Api* api, PJRT_Buffer* buffer, const Shape& shape) {
  auto args = Arguments<PJRT_Buffer_OnDeviceSizeInBytes_Args>();
  args.buffer = buffer;
  if (!Call(api, &PJRT_Api::PJRT_Buffer_OnDeviceSizeInBytes, args).ok()) return shape.num_bytes();
  return static_cast<int64_t>(args.on_device_size_in_bytes);
}

}  // namespace

// Thread-safe.
class Buffer::Handle {
 public:
  Handle(std::shared_ptr<ClientState> client, PJRT_Buffer* buffer)
      : client_(std::move(client)), buffer_(buffer) {}
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    auto args = Arguments<PJRT_Buffer_Destroy_Args>();
    args.buffer = buffer_;
    CallIgnoringError(client_->api, &PJRT_Api::PJRT_Buffer_Destroy, args);
  }

  PJRT_Buffer* get() const { return buffer_; }

  absl::Status BeginLoan() {
    const std::lock_guard lock(mutex_);
    if (num_loans_ == 0) {
      auto args = Arguments<PJRT_Buffer_IncreaseExternalReferenceCount_Args>();
      args.buffer = buffer_;
      RETURN_IF_ERROR(
          Call(client_->api, &PJRT_Api::PJRT_Buffer_IncreaseExternalReferenceCount, args));
    }
    ++num_loans_;
    return absl::OkStatus();
  }
  void EndLoan() {
    const std::lock_guard lock(mutex_);
    if (--num_loans_ > 0) return;
    auto args = Arguments<PJRT_Buffer_DecreaseExternalReferenceCount_Args>();
    args.buffer = buffer_;
    CallIgnoringError(client_->api, &PJRT_Api::PJRT_Buffer_DecreaseExternalReferenceCount, args);
  }

 private:
  const std::shared_ptr<ClientState> client_;
  PJRT_Buffer* const buffer_;
  std::mutex mutex_;   // plugins count external references without one
  int num_loans_ = 0;  // guarded by mutex_
};

Buffer::Buffer(std::shared_ptr<ClientState> client, PJRT_Buffer* buffer, int device,
               std::shared_ptr<const Shape> shape, Metering metering)
    : client_(std::move(client)),
      handle_(std::make_shared<Handle>(client_, buffer)),
      device_(device),
      size_bytes_(SizeOnDevice(client_->api, buffer, *shape)),
      shape_(std::move(shape)) {
  if (metering == Metering::kByBuffer) client_->meter->AddBuffer(device_, size_bytes_);
}

Buffer::Buffer(Buffer&& other) noexcept
    : client_(std::move(other.client_)),
      handle_(std::move(other.handle_)),
      device_(other.device_),
      state_(std::exchange(other.state_, BufferState::kDeleted)),
      size_bytes_(std::exchange(other.size_bytes_, 0)),
      shape_(std::move(other.shape_)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  Release();
  client_ = std::move(other.client_);
  handle_ = std::move(other.handle_);
  device_ = other.device_;
  state_ = std::exchange(other.state_, BufferState::kDeleted);
  size_bytes_ = std::exchange(other.size_bytes_, 0);
  shape_ = std::move(other.shape_);
  return *this;
}

Buffer::~Buffer() { Release(); }

void Buffer::Release() {
  if (handle_ == nullptr) return;
  if (state_ == BufferState::kAlive) client_->meter->RemoveBuffer(device_, size_bytes_);
  handle_.reset();
  state_ = BufferState::kDeleted;
  size_bytes_ = 0;
}

PJRT_Buffer* Buffer::handle() const { return handle_ == nullptr ? nullptr : handle_->get(); }

void Buffer::Delete() {
  if (state_ == BufferState::kAlive) Release();
}

void Buffer::MarkDonated() {
  state_ = BufferState::kDonated;
  size_bytes_ = 0;
}

absl::Status Buffer::CheckAlive() const {
  switch (state_) {
    case BufferState::kAlive:
      return absl::OkStatus();
    case BufferState::kDeleted:
      return FailedPrecondition("the buffer was deleted");
    case BufferState::kDonated:
      return FailedPrecondition("the buffer {} on device {} was donated to a launch",
                                ToString(*shape_), device_);
  }
  return absl::OkStatus();
}

absl::StatusOr<Event> Buffer::CopyToHost(std::span<char> destination) const {
  RETURN_IF_ERROR(CheckAlive());
  if (static_cast<int64_t>(destination.size()) != shape_->num_bytes())
    return InvalidArgument("{} takes {} bytes, the destination has {}", ToString(*shape_),
                           shape_->num_bytes(), destination.size());
  // With null the plugin only reports the size; an empty array has nothing to copy.
  if (destination.empty()) return Ready();
  RowMajorLayout layout(shape_->rank());
  auto args = Arguments<PJRT_Buffer_ToHostBuffer_Args>();
  args.src = handle();
  args.host_layout = layout.get();
  args.dst = destination.data();
  args.dst_size = destination.size();
  RETURN_IF_ERROR(Call(client_->api, &PJRT_Api::PJRT_Buffer_ToHostBuffer, args));
  return Event(client_->api, args.event);
}

// The contents where this process can read them as ToHost gives them; null: nowhere. They must be
// computed.
const char* Buffer::HostContents() const {
  if (client_->kind != Platform::kCpu || size_bytes_ != shape_->num_bytes()) return nullptr;
  auto layout = Arguments<PJRT_Buffer_GetMemoryLayout_Args>();
  layout.buffer = handle();
  if (!Call(client_->api, &PJRT_Api::PJRT_Buffer_GetMemoryLayout, layout).ok()) return nullptr;
  const PJRT_Buffer_MemoryLayout_Tiled& tiled = layout.layout.tiled;
  const bool is_row_major =
      layout.layout.type == PJRT_Buffer_MemoryLayout_Type_Tiled && tiled.num_tiles == 0 &&
      std::ranges::equal(std::span(tiled.minor_to_major, tiled.minor_to_major_size),
                         RowMajorLayout(shape_->rank()).minor_to_major());
  if (!is_row_major) return nullptr;
  auto args = Arguments<PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args>();
  args.buffer = handle();
  if (!Call(client_->api, &PJRT_Api::PJRT_Buffer_OpaqueDeviceMemoryDataPointer, args).ok()) {
    return nullptr;
  }
  return static_cast<const char*>(args.device_memory_ptr);
}

absl::StatusOr<std::string> Buffer::ToHost() const {
  ASSIGN_OR_RETURN(const Event ready, Ready());
  RETURN_IF_ERROR(ready.Await());
  // The plugin would have another thread copy them, which takes longer for small arrays than to
  // compute them.
  if (const char* const contents = HostContents()) {
    return std::string(contents, static_cast<size_t>(shape_->num_bytes()));
  }
  std::string bytes(shape_->num_bytes(), '\0');
  ASSIGN_OR_RETURN(const Event copied, CopyToHost(bytes));
  RETURN_IF_ERROR(copied.Await());
  return bytes;
}

absl::Status Buffer::ReadInto(std::span<char> destination) const {
  ASSIGN_OR_RETURN(const Event ready, Ready());
  RETURN_IF_ERROR(ready.Await());
  const char* const contents = HostContents();
  if (contents != nullptr && static_cast<int64_t>(destination.size()) == shape_->num_bytes()) {
    std::memcpy(destination.data(), contents, destination.size());
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const Event copied, CopyToHost(destination));
  return copied.Await();
}

LentContents LendString(std::string contents) {
  auto owner = std::make_shared<const std::string>(std::move(contents));
  const std::span<const char> bytes = *owner;
  return {.bytes = bytes, .owner = std::move(owner)};
}

absl::StatusOr<LentContents> Buffer::Lend() const {
  ASSIGN_OR_RETURN(const Event ready, Ready());
  RETURN_IF_ERROR(ready.Await());
  if (const char* const contents = HostContents()) {
    RETURN_IF_ERROR(handle_->BeginLoan());
    return LentContents{.bytes = {contents, static_cast<size_t>(shape_->num_bytes())},
                        .owner = std::shared_ptr<const void>(
                            contents, [handle = handle_](const void*) { handle->EndLoan(); })};
  }
  ASSIGN_OR_RETURN(std::string copy, ToHost());
  return LendString(std::move(copy));
}

absl::StatusOr<Event> Buffer::Ready() const {
  RETURN_IF_ERROR(CheckAlive());
  auto args = Arguments<PJRT_Buffer_ReadyEvent_Args>();
  args.buffer = handle();
  RETURN_IF_ERROR(Call(client_->api, &PJRT_Api::PJRT_Buffer_ReadyEvent, args));
  return Event(client_->api, args.event);
}

}  // namespace minka::pjrt
