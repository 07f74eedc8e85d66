// The completion of asynchronous work in a plugin.
#pragma once

#include <functional>

#include "absl/status/status.h"

struct PJRT_Api;
struct PJRT_Event;

namespace minka::pjrt {

// Owns a PJRT event; move-only. Dropping it does not stop or await the work. May be awaited from
// any thread.
class Event {
 public:
  // Complete from the start.
  Event() = default;
  // Takes ownership; a null event is complete.
  Event(const PJRT_Api* api, PJRT_Event* event) : api_(api), event_(event) {}
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;
  ~Event();

  // True once the work has succeeded or failed.
  bool IsReady() const;

  // Blocks until the work is done; the work's error, the same at every call.
  absl::Status Await() const;

  // Calls back once, with the work's status: on a thread of the plugin, or at once in this thread
  // if the work is done. The callback must not block and must not call Await.
  absl::Status OnReady(std::function<void(const absl::Status&)> callback) const;

 private:
  const PJRT_Api* api_ = nullptr;
  PJRT_Event* event_ = nullptr;
};

}  // namespace minka::pjrt
