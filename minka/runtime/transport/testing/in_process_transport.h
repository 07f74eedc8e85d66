// Ends of one process: threads that stand for the processes of a job.
#pragma once

#include <memory>
#include <vector>

#include "minka/runtime/transport/transport.h"

namespace minka {

// One end per peer, all connected. Bytes are copied once, by who waits for them. A message to an
// end that is cancelled or destroyed is let go.
std::vector<std::unique_ptr<Transport>> MakeInProcessTransports(int num_peers);

}  // namespace minka
