// Work in a thread of its own, so that Python can wait for it a moment at a time and be
// interrupted.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "executable.h"
#include "planned_step.h"

namespace minka {

using JobResult = std::variant<std::unique_ptr<Executable>, std::unique_ptr<Follower>,
                               std::unique_ptr<PlannedStep>, std::vector<ArrayHandle>, std::string,
                               HostArray, std::vector<Literal>>;

// Thread-safe.
class Job {
 public:
  // `on_phase` is told what it does now.
  using Work = std::function<absl::StatusOr<JobResult>(const std::stop_token& stop,
                                                       const OnPhase& on_phase)>;
  // What the end of a job does to work that still goes on: asks it to stop and waits for it, or
  // leaves it alone, which keeps alive what it needs itself.
  enum class AtEnd { kWait, kLeave };

  Job(Work work, AtEnd at_end) : at_end_(at_end) {
    thread_ = std::jthread([state = state_, work = std::move(work)](const std::stop_token& stop) {
      state->Finish(work(stop, [&](std::string_view phase) { state->SetPhase(phase); }));
    });
  }
  ~Job() {
    if (at_end_ == AtEnd::kLeave) thread_.detach();
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // Is it done within so many seconds?
  bool Wait(double seconds) {
    std::unique_lock lock(state_->mutex);
    return state_->done.wait_for(lock, std::chrono::duration<double>(seconds),
                                 [&] { return state_->result.has_value(); });
  }
  std::string phase() const {
    const std::lock_guard lock(state_->mutex);
    return state_->phase;
  }
  // Asks it to; some work goes on for a while.
  void Stop() { thread_.request_stop(); }
  bool can_be_left() const { return at_end_ == AtEnd::kLeave; }
  // Once. Precondition: it is done.
  absl::StatusOr<JobResult> Take() {
    const std::lock_guard lock(state_->mutex);
    return *std::move(state_->result);
  }

 private:
  struct State {
    void SetPhase(std::string_view now) {
      const std::lock_guard lock(mutex);
      phase = now;
    }
    void Finish(absl::StatusOr<JobResult> now) {
      const std::lock_guard lock(mutex);
      result = std::move(now);
      done.notify_all();
    }

    std::mutex mutex;  // of the others
    std::condition_variable done;
    std::string phase;
    std::optional<absl::StatusOr<JobResult>> result;  // once it is done
  };

  const std::shared_ptr<State> state_ = std::make_shared<State>();
  const AtEnd at_end_;
  std::jthread thread_;
};

}  // namespace minka
