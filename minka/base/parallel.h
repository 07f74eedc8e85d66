// Independent calls, on several threads.
#pragma once

#include <functional>

namespace minka {

// Calls run(0) to run(n - 1), each once, on so many threads at most, the caller's among them, and
// returns when all have returned. Precondition: run may be called from several threads at a time
// and does not throw.
void ForEachInParallel(int n, int num_threads, const std::function<void(int)>& run);

// How many threads can run at a time: the cores that this process is allowed to use; 1 where the
// system does not say.
int NumHardwareThreads();

}  // namespace minka
