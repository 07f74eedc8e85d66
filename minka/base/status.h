// Errors that a user or the environment can cause: absl::Status with a message that names the
// culprit and the way out.
//
//   if (dims < 0) return InvalidArgument("dimension {} is negative: {}", d, dims);
//   ASSIGN_OR_RETURN(Module module, ReadModule(path));
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fmt/format.h"

namespace minka {

absl::Status MakeError(absl::StatusCode code, const std::string& message);

#define MINKA_DEFINE_ERROR(Name, Code)                                                          \
  template <typename... Args>                                                                   \
  absl::Status Name(fmt::format_string<Args...> format, Args&&... args) {                       \
    return MakeError(absl::StatusCode::Code, fmt::format(format, std::forward<Args>(args)...)); \
  }
MINKA_DEFINE_ERROR(InvalidArgument, kInvalidArgument)
MINKA_DEFINE_ERROR(NotFound, kNotFound)
MINKA_DEFINE_ERROR(FailedPrecondition, kFailedPrecondition)
MINKA_DEFINE_ERROR(ResourceExhausted, kResourceExhausted)
MINKA_DEFINE_ERROR(Unimplemented, kUnimplemented)
MINKA_DEFINE_ERROR(Unavailable, kUnavailable)
MINKA_DEFINE_ERROR(InternalError, kInternal)
#undef MINKA_DEFINE_ERROR

// The status with "context: " in front of its message; OK stays OK.
absl::Status WithContext(const absl::Status& status, const std::string& context);

// The message as std::string (absl's string_view is its own type in Debian's build).
std::string Message(const absl::Status& status);

}  // namespace minka

#define MINKA_CONCAT_INNER(a, b) a##b
#define MINKA_CONCAT(a, b) MINKA_CONCAT_INNER(a, b)

#define RETURN_IF_ERROR(expression)              \
  do {                                           \
    absl::Status minka_status = (expression);    \
    if (!minka_status.ok()) return minka_status; \
  } while (false)

#define ASSIGN_OR_RETURN(declaration, expression) \
  MINKA_ASSIGN_OR_RETURN(MINKA_CONCAT(minka_status_or_, __LINE__), declaration, expression)
#define MINKA_ASSIGN_OR_RETURN(temporary, declaration, expression) \
  auto temporary = (expression);                                   \
  if (!temporary.ok()) return temporary.status();                  \
  declaration = *std::move(temporary)
