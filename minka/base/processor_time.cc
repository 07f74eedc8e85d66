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
  double user = 0, nice = 0, system = 0, idle = 0, disk = 0, hard_irq = 0, soft_irq = 0, stolen = 0;
  stat >> cpu >> user >> nice >> system >> idle >> disk >> hard_irq >> soft_irq >> stolen;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  const auto ticks_per_s = static_cast<double>(sysconf(_SC_CLK_TCK));
  return {.all_s = (user + nice + system) / ticks_per_s,
          .own_s = seconds(usage.ru_utime) + seconds(usage.ru_stime),
          .stolen_s = stolen / ticks_per_s};
}

double OthersShare(const ProcessorTime& before, const ProcessorTime& after) {
  const double all = after.all_s - before.all_s, own = after.own_s - before.own_s;
  return all > 0 ? std::clamp((all - own) / all, 0.0, 1.0) : 0;
}

double StolenShare(const ProcessorTime& before, const ProcessorTime& after) {
  const double all = after.all_s - before.all_s, stolen = after.stolen_s - before.stolen_s;
  return stolen > 0 ? stolen / (stolen + std::max(all, 0.0)) : 0;
}

}  // namespace minka
