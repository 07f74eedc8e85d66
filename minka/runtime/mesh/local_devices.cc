#include "minka/runtime/mesh/local_devices.h"

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string>

#include "minka/base/status.h"
#include "minka/runtime/pjrt/platform.h"

namespace minka {
namespace {

// All that OpenLocalDevices sets.
constexpr const char* kVariables[] = {"XLA_FLAGS", "NPROC", "TF_CPP_MIN_LOG_LEVEL"};

// XLA sizes the pool by NPROC, else by the cores. What is set stays where it is enough: it may come
// from the user, or from a client of fewer devices that was opened before.
void SetThreadPool(int num_devices) {
  int num_set = 0;
  if (const char* const text = std::getenv("NPROC")) {
    std::from_chars(text, text + std::strlen(text), num_set);
  }
  if (num_set >= num_devices) return;
  const int num_threads = pjrt::CpuThreadPoolFor(num_devices).num_threads;
  setenv("NPROC", std::to_string(num_threads).c_str(), /*overwrite=*/1);
}

}  // namespace

std::string LocalDevices::version() const {
  std::string text = fmt::format("{}, PJRT 0.{}", client.platform(), plugin.api_minor_version());
  const auto stablehlo = plugin.attributes().find("stablehlo_current_version");
  if (stablehlo != plugin.attributes().end()) text += ", StableHLO " + stablehlo->second;
  return text;
}

absl::StatusOr<LocalDevices> OpenLocalDevices(const LocalDevicesOptions& options) {
  const bool opens_all = options.num_devices == kAllDevices;
  const bool is_possible = options.num_devices >= 1 && options.num_devices <= kMaxLocalDevices;
  if (!opens_all && !is_possible) {
    return InvalidArgument("{} local devices asked for; 1 to {} can be had", options.num_devices,
                           kMaxLocalDevices);
  }
  if (options.first_device < 0) {
    return InvalidArgument("local devices from number {} are asked for", options.first_device);
  }
  ASSIGN_OR_RETURN(const std::string path,
                   pjrt::FindPlugin({.kind = options.kind, .path = options.plugin_path}));
  pjrt::PrepareEnvironment(options.kind);
  if (options.kind == Platform::kCpu) SetThreadPool(options.num_devices);
  ASSIGN_OR_RETURN(const pjrt::Plugin plugin, pjrt::Plugin::Load(path));
  if (plugin.kind() != options.kind) {
    return InvalidArgument("{} is a plugin for {}; devices of {} are asked for", path,
                           PlatformName(plugin.kind()), PlatformName(options.kind));
  }
  ASSIGN_OR_RETURN(pjrt::Client client,
                   pjrt::Client::Create(plugin, {.num_devices = opens_all ? 0 : options.num_devices,
                                                 .first_device = options.first_device}));
  if (client.num_devices() < options.num_devices) {
    return InvalidArgument("{} devices asked for; the plugin {} offers {}", options.num_devices,
                           path, client.num_devices());
  }
  return LocalDevices{std::move(client), plugin};
}

KeptEnvironment::KeptEnvironment() {
  for (const char* name : kVariables) {
    const char* const value = std::getenv(name);
    values_.push_back(value != nullptr ? std::optional<std::string>(value) : std::nullopt);
  }
}

KeptEnvironment::~KeptEnvironment() {
  for (size_t i = 0; i < values_.size(); ++i) {
    if (values_[i]) {
      setenv(kVariables[i], values_[i]->c_str(), /*overwrite=*/1);
    } else {
      unsetenv(kVariables[i]);
    }
  }
}

absl::StatusOr<LocalDevices> LazyLocalDevices::Get() {
  if (!opened_) {
    ASSIGN_OR_RETURN(opened_, OpenLocalDevices(options_));
  }
  return *opened_;
}

}  // namespace minka
