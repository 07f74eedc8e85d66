#include "minka/base/status.h"

namespace minka {

absl::Status MakeError(absl::StatusCode code, const std::string& message) {
  return absl::Status(code, message);
}

absl::Status WithContext(const absl::Status& status, const std::string& context) {
  if (status.ok()) return status;
  return MakeError(status.code(), context + ": " + Message(status));
}

std::string Message(const absl::Status& status) {
  return std::string(status.message().data(), status.message().size());
}

}  // namespace minka
