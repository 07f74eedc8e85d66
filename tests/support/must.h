// For tests and programs that cannot go on without a result.
#pragma once

#include <utility>

#include "absl/status/statusor.h"
#include "minka/base/check.h"
#include "minka/base/status.h"

namespace minka {

// The result; ends the process with the message where there is none.
template <typename T>
T Must(absl::StatusOr<T> result) {
  MINKA_CHECK(result.ok(), "{}", Message(result.status()));
  return *std::move(result);
}

}  // namespace minka
