// How far apart this machine's cores are, in time: the host of a virtual machine may move them,
// from cores that share a cache to others and back. A core is what the operating system takes for
// one.
#pragma once

#include <chrono>
#include <span>

namespace minka {

// Nanoseconds that a word takes from one core to another and back: the most of neighbours among the
// cores that this process may use, eight pairs at most, medians of short rounds. 0, not known:
// there is one core, threads cannot be kept on theirs, or cores have something else to run for so
// long that a pair takes 10 ms; where they are idle it takes less than one. Not thread-safe: two at
// a time measure each other.
double CoreRoundTripNs();

// Two cores that share a cache answer each other in a quarter to a half of the time that others
// take (76 to 96 and 220 to 350 ns on AMD EPYC). What is not known (0) is the same as anything.
bool IsSameCoreDistance(double one_ns, double other_ns);

// By CoreRoundTripNs, before and behind something.
struct CoreDistances {
  double before_ns = 0, behind_ns = 0;

  bool AreAt(double core_ns) const {
    return IsSameCoreDistance(before_ns, core_ns) && IsSameCoreDistance(behind_ns, core_ns);
  }
};

// Where the cores were most often; 0: not known.
double UsualCoreDistance(std::span<const CoreDistances> distances);

// Sleeps until the cores are there, for little more than `left`, which it lowers by what that took.
// Are they, or is that not known?
bool AwaitCoreDistance(double core_ns, std::chrono::duration<double>& left);

}  // namespace minka
