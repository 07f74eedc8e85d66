// PJRT plugins: shared objects that compile HLO and run it on one kind of device.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "minka/base/platform.h"

struct PJRT_Api;

namespace minka::pjrt {

// Where to look for a plugin. The defaults are what the programs use.
struct PluginSearch {
  Platform kind = Platform::kCpu;
  std::string path;                // --plugin; empty: not given
  std::string venv;                // virtual environment; empty: the one of the build tree
  std::string python = "python3";  // its xla_plugins and jax_plugins are looked at last
};

// The path of a plugin: `path`, else the environment variable MINKA_PJRT_PLUGIN, else the virtual
// environment, else the packages xla_plugins and jax_plugins of `python`. A path that is given but
// does not exist is an error: there is no falling back. NotFound lists every place tried. Starts a
// python process only when the places before it have nothing.
absl::StatusOr<std::string> FindPlugin(const PluginSearch& search);

// Sets what XLA reads from the environment when a plugin is loaded, unless the user has set it: a
// member of a collective may be ten minutes late before XLA aborts the process (its default of 60 s
// is too short for big steps of virtual devices), and XLA's information messages are off. Changes
// the process's environment: call it first thing in main.
void PrepareEnvironment(Platform kind);

// A loaded plugin. Plugins stay loaded until the process ends, because they own threads; so this is
// a plain value.
class Plugin {
 public:
  // Loads and initializes the plugin, or says why the file is none. Loading a path twice gives the
  // same plugin.
  static absl::StatusOr<Plugin> Load(const std::string& path);

  const PJRT_Api* api() const { return api_; }
  const std::string& path() const { return path_; }
  int api_minor_version() const;

  Platform kind() const;

  // Name to value as text, e.g. "xla_version", "stablehlo_current_version" ("1.13.3"),
  // "cuda_version".
  const std::map<std::string, std::string>& attributes() const { return attributes_; }

 private:
  Plugin() = default;

  const PJRT_Api* api_ = nullptr;
  std::string path_;
  std::map<std::string, std::string> attributes_;
};

}  // namespace minka::pjrt
