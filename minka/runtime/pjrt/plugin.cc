#include "minka/runtime/pjrt/plugin.h"

#include <dlfcn.h>

#include <filesystem>

#include "fmt/ranges.h"
#include "minka/base/status.h"
#include "minka/runtime/pjrt/api.h"

namespace minka::pjrt {
namespace {

// The header's version: every slot used here has been at its place since.
constexpr int kOldestMinorVersion = 81;

std::string ValueText(const PJRT_NamedValue& value) {
  switch (value.type) {
    case PJRT_NamedValue_kString:
      return {value.string_value, value.value_size};
    case PJRT_NamedValue_kInt64:
      return fmt::to_string(value.int64_value);
    case PJRT_NamedValue_kInt64List:
      return fmt::format("{}", fmt::join(value.int64_array_value,
                                         value.int64_array_value + value.value_size, "."));
    case PJRT_NamedValue_kFloat:
      return fmt::to_string(value.float_value);
    case PJRT_NamedValue_kBool:
      return value.bool_value ? "true" : "false";
  }
  return "of a type newer than this program";
}

absl::StatusOr<const PJRT_Api*> OpenApi(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return NotFound("plugin {} does not exist", path);
  // With a slash, dlopen does not search the system's folders for a file of that name.
  const std::string file = std::filesystem::absolute(path).string();
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return InvalidArgument("{} is no PJRT plugin: {}", path, dlerror());
  auto get_api = reinterpret_cast<const PJRT_Api* (*)()>(dlsym(library, "GetPjrtApi"));
  if (get_api == nullptr)
    return InvalidArgument("{} is no PJRT plugin: it does not export GetPjrtApi", path);
  const PJRT_Api* api = get_api();
  if (api == nullptr) return InvalidArgument("{} is no PJRT plugin: GetPjrtApi gives null", path);
  return api;
}

absl::Status CheckVersion(const PJRT_Api* api, const std::string& path) {
  const PJRT_Api_Version& version = api->pjrt_api_version;
  if (version.major_version == 0 && version.minor_version >= kOldestMinorVersion)
    return absl::OkStatus();
  return FailedPrecondition("{} speaks PJRT API {}.{}; minka needs 0.{} or a later 0.x", path,
                            version.major_version, version.minor_version, kOldestMinorVersion);
}

}  // namespace

absl::StatusOr<Plugin> Plugin::Load(const std::string& path) {
  Plugin plugin;
  plugin.path_ = path;
  ASSIGN_OR_RETURN(plugin.api_, OpenApi(path));
  RETURN_IF_ERROR(CheckVersion(plugin.api_, path));
  auto initialize = Arguments<PJRT_Plugin_Initialize_Args>();
  RETURN_IF_ERROR(
      WithContext(Call(plugin.api_, &PJRT_Api::PJRT_Plugin_Initialize, initialize), path));
  auto attributes = Arguments<PJRT_Plugin_Attributes_Args>();
  RETURN_IF_ERROR(
      WithContext(Call(plugin.api_, &PJRT_Api::PJRT_Plugin_Attributes, attributes), path));
  for (size_t i = 0; i < attributes.num_attributes; ++i) {
    const PJRT_NamedValue& attribute = attributes.attributes[i];
    plugin.attributes_[std::string(attribute.name, attribute.name_size)] = ValueText(attribute);
  }
  return plugin;
}

int Plugin::api_minor_version() const { return api_->pjrt_api_version.minor_version; }

Platform Plugin::kind() const {
  return attributes_.contains("cuda_version") ? Platform::kCuda : Platform::kCpu;
}

}  // namespace minka::pjrt
