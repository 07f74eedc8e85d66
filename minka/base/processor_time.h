// How busy this machine's cores were, and with what.
#pragma once

namespace minka {

// Seconds since the machine started that all cores together were busy, and those of this process
// and its threads among them. Zero where the system does not say (Linux does).
struct ProcessorTime {
  double all_s = 0, own_s = 0;
};
ProcessorTime ProcessorTimeNow();

// The part of the busy time between two moments that other processes took, 0 to 1.
double OthersShare(const ProcessorTime& before, const ProcessorTime& after);

}  // namespace minka
