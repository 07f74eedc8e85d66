// Calls of the PJRT C API as absl::Status. For the sources of this folder only.
//
//   auto args = Arguments<PJRT_Client_Compile_Args>();
//   args.client = client;
//   RETURN_IF_ERROR(Call(api, &PJRT_Api::PJRT_Client_Compile, args));
#pragma once

#include <pjrt_c_api.h>

#include <cstddef>
#include <cstring>
#include <type_traits>

#include "absl/status/status.h"

namespace minka::pjrt {

// An argument struct with room behind it, all zero. A plugin newer than the header refuses structs
// shorter than its own, and takes zero as "not given" in every field added since; older plugins
// accept longer structs.
template <typename Args>
struct Zeroed : Args {
  std::byte room_for_newer_fields[256];
};

template <typename Args>
Zeroed<Args> Arguments() {
  Zeroed<Args> args;
  std::memset(static_cast<void*>(&args), 0, sizeof(args));
  args.struct_size = sizeof(args);
  return args;
}

// OK for null; takes the error and destroys it.
absl::Status TakeError(const PJRT_Api* api, PJRT_Error* error);

absl::Status MissingFunction(const PJRT_Api* api, size_t slot_offset);

// Calls a function of the API, or says that this plugin has none: slots beyond the plugin's
// struct_size do not exist.
template <typename Args>
absl::Status Call(const PJRT_Api* api, PJRT_Error* (*PJRT_Api::*function)(Args*),
                  std::type_identity_t<Args>& args) {
  const auto* slot = reinterpret_cast<const char*>(&(api->*function));
  const auto offset = static_cast<size_t>(slot - reinterpret_cast<const char*>(api));
  if (offset + sizeof(void*) > api->struct_size || api->*function == nullptr)
    return MissingFunction(api, offset);
  return TakeError(api, (api->*function)(&args));
}

// For the calls that release something: there is nobody to tell.
template <typename Args>
void CallIgnoringError(const PJRT_Api* api, PJRT_Error* (*PJRT_Api::*function)(Args*),
                       std::type_identity_t<Args>& args) {
  Call(api, function, args).IgnoreError();
}

}  // namespace minka::pjrt
