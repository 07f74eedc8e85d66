#include "minka/base/processor_time.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace minka {

ProcessorTime ProcessorTimeNow() {
  std::ifstream stat("/proc/stat");
  std::string cpu;
  double user = 0, nice = 0, system = 0;
  stat >> cpu >> user >> nice >> system;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return {.all_s = (user + nice + system) / static_cast<double>(sysconf(_SC_CLK_TCK)),
          .own_s = seconds(usage.ru_utime) + seconds(usage.ru_stime)};
}

double OthersShare(const ProcessorTime& before, const ProcessorTime& after) {
  const double all = after.all_s - before.all_s, own = after.own_s - before.own_s;
  return all > 0 ? std::clamp((all - own) / all, 0.0, 1.0) : 0;
}

}  // namespace minka
