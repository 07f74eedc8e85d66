// A small generator whose sequence is the same on every machine (splitmix64; Steele, Lea and Flood
// 2014).
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace minka {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  // In [0, bound).
  int32_t Below(int32_t bound) {
    return static_cast<int32_t>((Next() >> 32) * static_cast<uint64_t>(bound) >> 32);
  }
  // In [0, 1).
  double Unit() { return static_cast<double>(Next() >> 11) * 0x1p-53; }

  template <typename T>
  void Shuffle(std::vector<T>& values) {
    for (size_t i = values.size(); i > 1; --i)
      std::swap(values[i - 1], values[Below(static_cast<int32_t>(i))]);
  }

 private:
  uint64_t state_;
};

}  // namespace minka
