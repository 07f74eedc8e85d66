// `minka workers`: what the workers of a hosts file are and do.
#include <memory>
#include <string>

#include "minka/base/status.h"
#include "minka/driver/hosts.h"
#include "minka/report/format.h"
#include "minka/report/table.h"
#include "minka/tools/command.h"
#include "nlohmann/json.hpp"

namespace minka {
namespace {

struct WorkersFlags {
  std::string hosts;
  bool json = false;
};

absl::Status ListWorkers(const WorkersFlags& flags) {
  ASSIGN_OR_RETURN(const Hosts hosts, ReadHosts(flags.hosts));
  Table table({{"worker"},
               {"address"},
               {"host"},
               {"CPUs", Align::kRight},
               {"devices", Align::kRight},
               {"memory", Align::kRight},
               {"available", Align::kRight},
               {"version"},
               {"state"}});
  auto list = nlohmann::ordered_json::array();
  int num_missing = 0;
  for (size_t i = 0; i < hosts.workers.size(); ++i) {
    const RemoteWorker& worker = hosts.workers[i];
    nlohmann::ordered_json json = {{"address", worker.address},
                                   {"num_devices", worker.num_devices}};
    const absl::StatusOr<worker::AboutReply> about = AskAboutWorker(worker.address, hosts.token);
    if (about.ok()) {
      const std::string state = about->is_busy() ? "busy" : "idle";
      table.Add({fmt::format("{}", i), worker.address, about->host(),
                 fmt::format("{}", about->cpus()), fmt::format("{}", worker.num_devices),
                 FormatBytes(about->memory_bytes()), FormatBytes(about->available_memory_bytes()),
                 about->version(), state});
      json["host"] = about->host();
      json["num_cpus"] = about->cpus();
      json["memory_bytes"] = about->memory_bytes();
      json["available_memory_bytes"] = about->available_memory_bytes();
      json["version"] = about->version();
      json["state"] = state;
    } else {
      const std::string state = Message(about.status());
      table.Add({fmt::format("{}", i), worker.address, "", "", "", "", "", "", state});
      json["state"] = state;
      ++num_missing;
    }
    list.push_back(std::move(json));
  }
  RETURN_IF_ERROR(Print(
      flags.json ? nlohmann::ordered_json{{"schema_version", 1}, {"workers", list}}.dump() + "\n"
                 : table.ToString()));
  if (num_missing == 0) return absl::OkStatus();
  return Unavailable("{} of {} workers cannot be used", num_missing, hosts.workers.size());
}

}  // namespace

void AddWorkersCommand(CLI::App& app, CommandLine& line) {
  const auto flags = std::make_shared<WorkersFlags>();
  CLI::App* const command =
      app.add_subcommand("workers", "List the workers of a hosts file, and what they do");
  command
      ->add_option("--hosts", flags->hosts,
                   "File that names workers and the file of their token (see the guide of "
                   "pipelines)")
      ->required();
  command->add_flag("--json", flags->json, "Print one JSON object instead of a table");
  command->callback([flags, &line] { Finish(ListWorkers(*flags), line); });
}

}  // namespace minka
