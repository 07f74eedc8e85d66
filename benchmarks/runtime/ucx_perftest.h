// UCX's own benchmark, of Debian's package ucx-utils, between two processes of this host.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace minka {

bool IsUcxPerftestInstalled();

struct UcxPerftestOptions {
  std::string test = "tag_bw";  // or tag_lat
  bool sleeps = false;          // waits by sleeping instead of polling
  size_t num_bytes = 0;         // of a message
  int num_messages = 1;
  int num_warm_up_messages = 1;
};

struct UcxPerftestResult {
  double message_us = 0;  // of one message; for tag_lat the time one way
  double gb_per_second = 0;
};

// One run on the devices that UcxTransport takes by default.
absl::StatusOr<UcxPerftestResult> RunUcxPerftest(const UcxPerftestOptions& options);

}  // namespace minka
