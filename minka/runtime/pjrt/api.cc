#include "minka/runtime/pjrt/api.h"

#include <string>

#include "minka/base/status.h"

namespace minka::pjrt {
namespace {

absl::StatusCode CodeOf(const PJRT_Api* api, const PJRT_Error* error) {
  auto args = Arguments<PJRT_Error_GetCode_Args>();
  args.error = error;
  // An error while asking for the code of an error leaves the code zero; it must not read as
  // success.
  PJRT_Error* second = api->PJRT_Error_GetCode(&args);
  if (second != nullptr) TakeError(api, second).IgnoreError();
  const auto code = static_cast<absl::StatusCode>(args.code);
  return code == absl::StatusCode::kOk ? absl::StatusCode::kUnknown : code;
}

std::string MessageOf(const PJRT_Api* api, const PJRT_Error* error) {
  auto args = Arguments<PJRT_Error_Message_Args>();
  args.error = error;
  api->PJRT_Error_Message(&args);
  return {args.message, args.message_size};
}

}  // namespace

absl::Status TakeError(const PJRT_Api* api, PJRT_Error* error) {
  if (error == nullptr) return absl::OkStatus();
  const absl::Status status = MakeError(CodeOf(api, error), MessageOf(api, error));
  auto args = Arguments<PJRT_Error_Destroy_Args>();
  args.error = error;
  api->PJRT_Error_Destroy(&args);
  return status;
}

absl::Status MissingFunction(const PJRT_Api* api, size_t slot_offset) {
  return Unimplemented(
      "the plugin (PJRT API {}.{}) does not offer the function at offset {} of PJRT_Api",
      api->pjrt_api_version.major_version, api->pjrt_api_version.minor_version, slot_offset);
}

}  // namespace minka::pjrt
