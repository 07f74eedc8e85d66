// How busy this machine's cores were, and with what.
#pragma once

namespace minka {

// Seconds since the machine started that all cores together were busy, those of this process and
// its threads among them, and those that a virtual machine's cores had work for and its host gave
// to others. Zero where the system does not say (Linux does).
struct ProcessorTime {
  double all_s = 0, own_s = 0, stolen_s = 0;
};
ProcessorTime ProcessorTimeNow();

// The part of the busy time between two moments that other processes took, 0 to 1.
double OthersShare(const ProcessorTime& before, const ProcessorTime& after);

// The part of the time in which cores had work between two moments that the host of this virtual
// machine gave to others, 0 to 1. Known in hundredths of a second.
double StolenShare(const ProcessorTime& before, const ProcessorTime& after);

}  // namespace minka
