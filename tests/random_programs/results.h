// How the tests of random programs are told what to run, and when two runs gave the same.
#pragma once

#include <optional>
#include <string>

#include "minka/ir/literal.h"

namespace minka {

// The number in an environment variable.
int FromEnvironment(const char* name, int otherwise);

// Of MINKA_RANDOM_PARTS parts of the seeds (default 1) a run takes one, another with every commit
// (tests/support/rotation.h). Neighbours, an even and an odd seed, are of one part.
bool IsOfThisRun(int seed);

// The first difference; zeros of either sign are equal, because a sum may turn one into the other.
// `noise`: as in RandomProgram.
std::optional<std::string> Difference(const std::string& got, const std::string& want,
                                      const Shape& shape, double noise);

}  // namespace minka
