#include "minka/runtime/pjrt/event.h"

#include <memory>
#include <utility>

#include "minka/base/status.h"
#include "minka/runtime/pjrt/api.h"

namespace minka::pjrt {
namespace {

struct PendingCallback {
  const PJRT_Api* api;
  std::function<void(const absl::Status&)> callback;
};

void RunCallback(PJRT_Error* error, void* user_arg) {
  const std::unique_ptr<PendingCallback> pending(static_cast<PendingCallback*>(user_arg));
  pending->callback(TakeError(pending->api, error));
}

}  // namespace

Event::Event(Event&& other) noexcept
    : api_(other.api_), event_(std::exchange(other.event_, nullptr)) {}

Event& Event::operator=(Event&& other) noexcept {
  std::swap(api_, other.api_);
  std::swap(event_, other.event_);
  return *this;
}

Event::~Event() {
  if (event_ == nullptr) return;
  auto args = Arguments<PJRT_Event_Destroy_Args>();
  args.event = event_;
  CallIgnoringError(api_, &PJRT_Api::PJRT_Event_Destroy, args);
}

bool Event::IsReady() const {
  if (event_ == nullptr) return true;
  auto args = Arguments<PJRT_Event_IsReady_Args>();
  args.event = event_;
  // An event that cannot be asked has failed; Await tells why.
  return !Call(api_, &PJRT_Api::PJRT_Event_IsReady, args).ok() || args.is_ready;
}

absl::Status Event::Await() const {
  if (event_ == nullptr) return absl::OkStatus();
  auto args = Arguments<PJRT_Event_Await_Args>();
  args.event = event_;
  return Call(api_, &PJRT_Api::PJRT_Event_Await, args);
}

absl::Status Event::OnReady(std::function<void(const absl::Status&)> callback) const {
  if (event_ == nullptr) {
    callback(absl::OkStatus());
    return absl::OkStatus();
  }
  auto pending = std::make_unique<PendingCallback>(PendingCallback{api_, std::move(callback)});
  auto args = Arguments<PJRT_Event_OnReady_Args>();
  args.event = event_;
  args.callback = RunCallback;
  // RunCallback may run, and free it, before the call returns.
  PendingCallback* shared = pending.release();
  args.user_arg = shared;
  const absl::Status status = Call(api_, &PJRT_Api::PJRT_Event_OnReady, args);
  if (!status.ok()) delete shared;
  return status;
}

}  // namespace minka::pjrt
