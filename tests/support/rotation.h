// Which part of a full product of cases a run of the tests takes.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace minka {

// MINKA_TEST_ROTATION, a number that CI raises with every commit; 0 where it is not set.
inline uint64_t TestRotation() {
  const char* const rotation = std::getenv("MINKA_TEST_ROTATION");
  return rotation ? std::strtoull(rotation, nullptr, 10) : 0;
}

}  // namespace minka
