// The worker's end: a server that carries out what drivers ask for.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"

namespace minka {

class ProgressPage;
struct SharedArenas;

struct ServeOptions {
  std::string listen = "127.0.0.1:0";  // HOST:PORT; port 0: any that is free
  // Where arrays come in, a network device by name; empty: that of the address listened on.
  std::string interface;
  std::string token;    // what a driver must know; not empty
  std::string version;  // that a driver must have
  // Ends with its first session, whose driver started it.
  bool is_child = false;
  const SharedArenas* arenas = nullptr;  // that the driver shares with it; null: none
};

// Serves until a session ends (is_child) or `is_over` says so, which is asked several times a
// second. `on_listening` is told where ("127.0.0.1:41233"). Unavailable for an address that cannot
// be had, InvalidArgument for one that is not of a single network device. Blocks.
absl::Status ServeWorker(const ServeOptions& options, ProgressPage& progress,
                         const std::function<void(const std::string& address)>& on_listening,
                         const std::function<bool()>& is_over);

}  // namespace minka
