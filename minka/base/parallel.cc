#include "minka/base/parallel.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace minka {

void ForEachInParallel(int n, int num_threads, const std::function<void(int)>& run) {
  std::atomic<int> next = 0;
  const auto run_what_is_left = [&] {
    for (int i = next++; i < n; i = next++) run(i);
  };
  std::vector<std::jthread> others;
  for (int i = 1; i < std::min(n, num_threads); ++i) others.emplace_back(run_what_is_left);
  run_what_is_left();
}

int NumHardwareThreads() {
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) == 0) return CPU_COUNT(&allowed);
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace minka
