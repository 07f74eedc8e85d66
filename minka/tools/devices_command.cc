// `minka devices`: what this machine has to run on.
#include <memory>
#include <optional>
#include <string>

#include "fmt/format.h"
#include "minka/base/status.h"
#include "minka/report/format.h"
#include "minka/report/table.h"
#include "minka/runtime/mesh/local_devices.h"
#include "minka/tools/child_process.h"
#include "minka/tools/command.h"
#include "minka/tools/local_cluster.h"
#include "nlohmann/json.hpp"

namespace minka {
namespace {

struct DevicesFlags {
  std::string cluster = kLocalCudaCluster;
  std::string plugin;
  bool json = false;
};

absl::Status ListDevices(const DevicesFlags& flags) {
  RETURN_IF_ERROR(CheckRunsLocally("devices", {.cluster = flags.cluster}));
  const bool is_cpu = flags.cluster == kLocalCluster;
  ReportPhase("devices");
  ASSIGN_OR_RETURN(const LocalDevices local,
                   OpenLocalDevices({.num_devices = is_cpu ? 1 : kAllDevices,
                                     .plugin_path = flags.plugin,
                                     .kind = PlatformOfLocal(flags.cluster)}));
  Table table({{"device"}, {"kind"}, {"memory for arrays", Align::kRight}, {"rates"}});
  auto list = nlohmann::ordered_json::array();
  for (int i = 0; i < local.client.num_devices(); ++i) {
    const std::string& kind = local.client.devices()[i].kind;
    const std::optional<pjrt::AllocatorBytes> memory = local.client.allocator_bytes(i);
    const int64_t bytes = memory ? memory->limit_bytes : 0;
    const bool has_rates = is_cpu || Cluster::LocalCuda(1).SetGpu(kind, 0);
    table.Add({fmt::format("{}", i), kind, bytes > 0 ? FormatBytes(bytes) : "the machine's",
               has_rates ? "known" : "to be measured"});
    list.push_back({{"kind", kind}, {"memory_bytes", bytes}, {"has_rates", has_rates}});
  }
  if (flags.json) {
    return Print(nlohmann::ordered_json{{"schema_version", 1},
                                        {"platform", local.client.platform()},
                                        {"version", local.version()},
                                        {"devices", list}}
                     .dump() +
                 "\n");
  }
  const char* const note = is_cpu ? "\nand as many more, virtual ones, as are asked for" : "";
  return Print(fmt::format("{}\n\n{}{}\n", local.version(), table.ToString(), note));
}

}  // namespace

void AddDevicesCommand(CLI::App& app, CommandLine& line) {
  const auto flags = std::make_shared<DevicesFlags>();
  CLI::App* const command =
      app.add_subcommand("devices", "List this machine's GPUs, or its cores as a device");
  command->add_option("--cluster", flags->cluster, "local-cuda or local")->capture_default_str();
  command->add_option("--plugin", flags->plugin,
                      "PJRT plugin. Default: MINKA_PJRT_PLUGIN, else searched");
  command->add_flag("--json", flags->json, "Print one JSON object instead of a table");
  command->callback([flags, &line] {
    if (!IsChild()) {
      line.exit_code = RunInChildAndReport(line.arguments);
    } else {
      Finish(ListDevices(*flags), line);
    }
  });
}

}  // namespace minka
