#include "minka/driver/hosts.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "minka/base/file.h"
#include "minka/base/json.h"
#include "minka/base/status.h"
#include "minka/runtime/mesh/local_devices.h"

namespace minka {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostTokenBytes = 1024;

absl::StatusOr<RemoteWorker> WorkerOf(const Json& json, size_t number) {
  const std::string what = fmt::format("workers[{}]", number);
  if (!json.is_object()) return InvalidArgument("{} is no object", what);
  for (const auto& [key, value] : json.items()) {
    if (key != "address" && key != "num_devices") {
      return InvalidArgument("{} has a field {}; address and num_devices are known", what, key);
    }
  }
  const auto address = json.find("address");
  if (address == json.end() || !address->is_string() ||
      address->get<std::string>().find(':') == std::string::npos) {
    return InvalidArgument("{}.address is no text of the form HOST:PORT", what);
  }
  const auto num_devices = json.find("num_devices");
  if (num_devices == json.end() || !num_devices->is_number_integer() ||
      num_devices->get<int64_t>() < 1 || num_devices->get<int64_t>() > kMaxLocalDevices) {
    return InvalidArgument("{}.num_devices is no whole number from 1 to {}", what,
                           kMaxLocalDevices);
  }
  return RemoteWorker{.address = address->get<std::string>(),
                      .num_devices = num_devices->get<int>()};
}

}  // namespace

absl::StatusOr<Hosts> HostsFromJson(std::string_view json, std::string& token_file) {
  ASSIGN_OR_RETURN(const Json parsed, ParseJson(json));
  if (!parsed.is_object()) return InvalidArgument("it is no JSON object");
  for (const auto& [key, value] : parsed.items()) {
    if (key != "token_file" && key != "workers") {
      return InvalidArgument("it has a field {}; token_file and workers are known", key);
    }
  }
  const auto token = parsed.find("token_file");
  if (token == parsed.end() || !token->is_string() || token->get<std::string>().empty()) {
    return InvalidArgument("token_file is missing: the file whose first line the workers know");
  }
  token_file = token->get<std::string>();
  const auto workers = parsed.find("workers");
  if (workers == parsed.end() || !workers->is_array() || workers->empty()) {
    return InvalidArgument("workers is missing: a list of {{\"address\", \"num_devices\"}}");
  }
  Hosts hosts;
  for (size_t i = 0; i < workers->size(); ++i) {
    ASSIGN_OR_RETURN(RemoteWorker worker, WorkerOf((*workers)[i], i));
    for (size_t other = 0; other < i; ++other) {
      if (hosts.workers[other].address != worker.address) continue;
      return InvalidArgument("workers[{}] and workers[{}] are both {}; a worker takes one mesh",
                             other, i, worker.address);
    }
    hosts.workers.push_back(std::move(worker));
  }
  return hosts;
}

absl::StatusOr<Hosts> ReadHosts(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  std::string token_file;
  absl::StatusOr<Hosts> hosts = HostsFromJson(text, token_file);
  if (!hosts.ok()) return WithContext(hosts.status(), path);
  const auto folder = std::filesystem::path(path).parent_path();
  ASSIGN_OR_RETURN(hosts->token, ReadTokenFile((folder / token_file).string()));
  return hosts;
}

absl::StatusOr<std::string> ReadTokenFile(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  std::string token = text.substr(0, text.find('\n'));
  if (token.empty()) return InvalidArgument("the first line of {} is empty; it is the token", path);
  // Only such text can be sent beside a request.
  const bool is_text = std::ranges::all_of(token, [](char c) { return c >= ' ' && c <= '~'; });
  if (is_text && token.size() <= kMostTokenBytes) return token;
  return InvalidArgument(
      "the first line of {}, the token, is not of up to {} printable ASCII characters", path,
      kMostTokenBytes);
}

}  // namespace minka
