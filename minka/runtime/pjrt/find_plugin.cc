#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <vector>

#include "minka/base/status.h"
#include "minka/runtime/pjrt/plugin.h"

namespace minka::pjrt {
namespace {

namespace fs = std::filesystem;

// A plugin inside a Python package, e.g. <site>/xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so. CUDA's
// package carries a version number (xla_cuda12, xla_cuda13), hence a prefix.
struct PackageFile {
  std::string folder;
  std::string package_prefix;
  std::string file;
  std::string way_out;
};

PackageFile PackageFileOf(Platform kind) {
  switch (kind) {
    case Platform::kCpu:
      return {"xla_plugins", "xla_cpu_pjrt", "xla_cpu_pjrt.so",
              "Run 'make deps', or 'pip install xla-cpu-pjrt'"};
    case Platform::kCuda:
      return {"jax_plugins", "xla_cuda", "xla_cuda_plugin.so", "Run 'pip install jax[cuda13]'"};
  }
  return {};
}

std::vector<std::string> SortedEntries(const std::string& folder, const std::string& prefix) {
  std::vector<std::string> entries;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (it->path().filename().string().starts_with(prefix)) entries.push_back(it->path().string());
  std::sort(entries.begin(), entries.end());
  return entries;
}

// The plugin in one site-packages folder; of several versions the last; empty: none.
std::string PluginInSite(const std::string& site, const PackageFile& package) {
  std::vector<std::string> packages =
      SortedEntries(site + "/" + package.folder, package.package_prefix);
  std::reverse(packages.begin(), packages.end());
  for (const std::string& folder : packages) {
    const std::string file = folder + "/" + package.file;
    std::error_code error;
    if (fs::is_regular_file(file, error)) return file;
  }
  return "";
}

// What `python` would search for modules, one folder per entry; empty when it cannot be run.
std::vector<std::string> PythonPath(const std::string& python) {
  const std::string command =
      python + " -c 'import sys; print(\"\\n\".join(sys.path))' 2>/dev/null";
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return {};
  std::string output;
  char block[4096];
  for (size_t n; (n = std::fread(block, 1, sizeof(block), pipe)) > 0;) output.append(block, n);
  if (pclose(pipe) != 0) return {};
  std::vector<std::string> folders;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);)
    if (!line.empty()) folders.push_back(line);
  return folders;
}

absl::StatusOr<std::string> GivenPath(const std::string& path, const std::string& source) {
  std::error_code error;
  if (!fs::exists(path, error)) return NotFound("{} names {}, which does not exist", source, path);
  if (fs::is_directory(path, error))
    return InvalidArgument("{} names {}, which is a folder; name the plugin's .so file", source,
                           path);
  return path;
}

std::string PluginInVenv(const std::string& venv, const PackageFile& package) {
  for (const std::string& python : SortedEntries(venv + "/lib", "python3"))
    if (std::string file = PluginInSite(python + "/site-packages", package); !file.empty())
      return file;
  return "";
}

}  // namespace

absl::StatusOr<std::string> FindPlugin(const PluginSearch& search) {
  if (!search.path.empty()) return GivenPath(search.path, "--plugin");
  const char* variable = std::getenv("MINKA_PJRT_PLUGIN");
  if (variable != nullptr && *variable != '\0') return GivenPath(variable, "MINKA_PJRT_PLUGIN");
  const PackageFile package = PackageFileOf(search.kind);
  const std::string venv = search.venv.empty() ? MINKA_VENV : search.venv;
  if (std::string file = PluginInVenv(venv, package); !file.empty()) return file;
  for (const std::string& site : PythonPath(search.python))
    if (std::string file = PluginInSite(site, package); !file.empty()) return file;
  const std::string inside =
      fmt::format("{}/{}*/{}", package.folder, package.package_prefix, package.file);
  return NotFound(
      "no PJRT plugin for {}; tried\n"
      "  --plugin: not given\n"
      "  MINKA_PJRT_PLUGIN: not set\n"
      "  {}/lib/python3*/site-packages/{}: no such file\n"
      "  {} in the module path of {}: no such file\n"
      "{}, or name the file with --plugin.",
      PlatformName(search.kind), venv, inside, inside, search.python, package.way_out);
}

void PrepareEnvironment(Platform kind) {
  setenv("TF_CPP_MIN_LOG_LEVEL", "2", /*overwrite=*/0);
  if (kind != Platform::kCpu) return;
  const char* set = std::getenv("XLA_FLAGS");
  std::string flags = set == nullptr ? "" : set;
  for (const char* limit : {"--xla_cpu_collective_call_warn_stuck_timeout_seconds=60",
                            "--xla_cpu_collective_call_terminate_timeout_seconds=540"}) {
    const std::string flag = limit;
    if (flags.find(flag.substr(0, flag.find('='))) == std::string::npos)
      flags += (flags.empty() ? "" : " ") + flag;
  }
  setenv("XLA_FLAGS", flags.c_str(), /*overwrite=*/1);
}

}  // namespace minka::pjrt
