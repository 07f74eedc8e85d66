// The devices of this machine: finds and loads a plugin and connects to it.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/runtime/pjrt/client.h"
#include "minka/runtime/pjrt/plugin.h"

namespace minka {

inline constexpr int kMaxLocalDevices = 64;
inline constexpr int kAllDevices = -1;  // that a plugin offers by itself: every GPU

struct LocalDevicesOptions {
  int num_devices = 8;      // or kAllDevices
  std::string plugin_path;  // --plugin; empty: searched, see pjrt::PluginSearch
  Platform kind = Platform::kCpu;
  int first_device = 0;  // of the machine's; virtual ones are all alike
};

struct LocalDevices {
  pjrt::Client client;
  pjrt::Plugin plugin;

  // Platform and versions, the same for the same compiler: "cpu, PJRT 0.81, StableHLO 1.13.3".
  std::string version() const;
};

// Errors list the places where a plugin was looked for, or say how many devices there are. Sets
// environment variables that XLA reads (pjrt::PrepareEnvironment), unless they are set, and NPROC,
// unless it is enough for the devices.
absl::StatusOr<LocalDevices> OpenLocalDevices(const LocalDevicesOptions& options);

// Puts these variables back as they were when it was made, for processes that are not minka's own:
// children inherit them, and XLAs of other versions end processes that set flags they do not know.
// Devices have read them once they have compiled something.
class KeptEnvironment {
 public:
  KeptEnvironment();
  ~KeptEnvironment();
  KeptEnvironment(const KeptEnvironment&) = delete;
  KeptEnvironment& operator=(const KeptEnvironment&) = delete;

 private:
  std::vector<std::optional<std::string>> values_;
};

// Devices that are opened when they are first asked for: beside workers, many a process needs none.
class LazyLocalDevices {
 public:
  explicit LazyLocalDevices(LocalDevicesOptions options) : options_(std::move(options)) {}
  explicit LazyLocalDevices(LocalDevices opened) : opened_(std::move(opened)) {}

  absl::StatusOr<LocalDevices> Get();
  Platform kind() const { return opened_ ? opened_->client.kind() : options_.kind; }

 private:
  LocalDevicesOptions options_;
  std::optional<LocalDevices> opened_;
};

}  // namespace minka
