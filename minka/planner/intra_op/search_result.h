// What a search gives: a result, or why there is none.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <variant>

#include "absl/status/status.h"

namespace minka {

struct Refusal {
  absl::Status why;
  // Where nothing fits into the memory allowed: the smallest limit known to work.
  std::optional<int64_t> smallest_limit_bytes;

  // What is left for those who do not search on.
  operator absl::Status() const { return why; }  // NOLINT(google-explicit-constructor)
};

// As absl::StatusOr, whose errors say nothing but text; works with the macros of base/status.h,
// which hand a refusal on as it is where a SearchResult is returned.
template <typename T>
class [[nodiscard]] SearchResult {
 public:
  // NOLINTBEGIN(google-explicit-constructor)
  SearchResult(T result) : result_(std::move(result)) {}
  SearchResult(Refusal refusal) : result_(std::move(refusal)) {}
  SearchResult(absl::Status why) : result_(Refusal{std::move(why), std::nullopt}) {}
  // NOLINTEND(google-explicit-constructor)

  bool ok() const { return std::holds_alternative<T>(result_); }
  // OK, without a limit, where there is a result.
  Refusal status() const { return ok() ? Refusal() : std::get<Refusal>(result_); }

  // Precondition: ok().
  const T& operator*() const& { return std::get<T>(result_); }
  T& operator*() & { return std::get<T>(result_); }
  T&& operator*() && { return std::get<T>(std::move(result_)); }
  const T* operator->() const { return &**this; }
  T* operator->() { return &**this; }

 private:
  std::variant<T, Refusal> result_;
};

}  // namespace minka
