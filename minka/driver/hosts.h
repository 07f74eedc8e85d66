// Workers on hosts that a user or another engine has started, by a file:
//
//   {"token_file": "token",
//    "workers": [{"address": "10.0.0.1:7001", "num_devices": 4},
//                {"address": "10.0.0.2:7001", "num_devices": 4}]}
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/runtime/worker/workers.h"

namespace minka {

struct Hosts {
  std::vector<RemoteWorker> workers;  // mesh i of a pipeline goes to worker i
  std::string token;                  // the first line of token_file
};

// A relative token_file lies beside the hosts file. Errors name file and field.
absl::StatusOr<Hosts> ReadHosts(const std::string& path);
// The file's text; `token_file` is only named.
absl::StatusOr<Hosts> HostsFromJson(std::string_view json, std::string& token_file);

// The first line of a token file: printable ASCII, not empty.
absl::StatusOr<std::string> ReadTokenFile(const std::string& path);

}  // namespace minka
