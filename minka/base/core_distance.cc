#include "minka/base/core_distance.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

namespace minka {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMostPairs = 8;
constexpr std::chrono::milliseconds kLongestPair(10), kNap(200);

std::vector<int> AllowedCores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return {};
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &allowed)) cores.push_back(core);
  }
  return cores;
}

// Of the calling thread.
bool StayOn(int core) {
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(core, &only);
  return pthread_setaffinity_np(pthread_self(), sizeof only, &only) == 0;
}

// Two threads, each on its core, that hand a number on to each other.
class Pair {
 public:
  // The median of rounds, each the mean of some numbers there and back; 0: not known.
  double RoundTripNs(int core, int other) && {
    std::thread answering([&] {
      if (!Begin(other)) return;
      for (int i = 0; i < kRounds * kNumbers && Await(2 * i + 1); ++i) Send(2 * i + 2);
    });
    std::array<double, kRounds> ns = {};
    std::thread asking([&] {
      if (!Begin(core)) return;
      for (double& round_ns : ns) {
        const auto start = Clock::now();
        for (int i = 0; i < kNumbers; ++i) {
          const int asked = word_.load(std::memory_order_relaxed) + 1;
          Send(asked);
          if (!Await(asked + 1)) return;
        }
        round_ns =
            std::chrono::duration<double, std::nano>(Clock::now() - start).count() / kNumbers;
      }
    });
    asking.join();
    answering.join();
    if (is_over_) return 0;
    std::ranges::nth_element(ns, ns.begin() + kRounds / 2);
    return ns[kRounds / 2];
  }

 private:
  static constexpr int kRounds = 9, kNumbers = 100;

  // Both stay on their cores, or neither goes on.
  bool Begin(int core) {
    if (!StayOn(core)) is_over_ = true;
    ++num_there_;
    return AwaitThat([&] { return num_there_ == 2; });
  }
  void Send(int number) { word_.store(number, std::memory_order_release); }
  bool Await(int number) {
    return AwaitThat([&] { return word_.load(std::memory_order_acquire) == number; });
  }
  template <typename Condition>
  bool AwaitThat(const Condition& is_true) {
    constexpr int64_t kLooksPerClock = 4096;
    for (int64_t looks = 1; !is_true(); ++looks) {
      if (looks % kLooksPerClock == 0 && Clock::now() > end_) is_over_ = true;
      if (is_over_) return false;
    }
    return !is_over_;
  }

  const Clock::time_point end_ = Clock::now() + kLongestPair;
  std::atomic<int> num_there_{0};
  std::atomic<bool> is_over_{false};
  std::atomic<int> word_{0};
};

}  // namespace

double CoreRoundTripNs() {
  const std::vector<int> cores = AllowedCores();
  if (cores.size() < 2) return 0;
  const size_t num_pairs = std::min(cores.size() - 1, kMostPairs);
  double most_ns = 0;
  for (size_t pair = 0; pair < num_pairs; ++pair) {
    const size_t first = pair * (cores.size() - 1) / num_pairs;
    const double ns = Pair().RoundTripNs(cores[first], cores[first + 1]);
    if (ns == 0) return 0;
    most_ns = std::max(most_ns, ns);
  }
  return most_ns;
}

bool IsSameCoreDistance(double one_ns, double other_ns) {
  constexpr double kMostApart = 1.6;
  if (one_ns == 0 || other_ns == 0) return true;
  return std::max(one_ns, other_ns) <= kMostApart * std::min(one_ns, other_ns);
}

double UsualCoreDistance(std::span<const CoreDistances> distances) {
  // Nearer than IsSameCoreDistance asks for, so that nothing in between counts for both.
  constexpr double kMostApart = 1.25;
  std::vector<double> usual_ns;
  for (const CoreDistances& middle : distances) {
    const auto is_near = [&](double ns) {
      return ns <= kMostApart * middle.before_ns && middle.before_ns <= kMostApart * ns;
    };
    std::vector<double> near_ns;
    for (const auto& [before_ns, behind_ns] : distances) {
      if (before_ns > 0 && is_near(before_ns) && is_near(behind_ns)) near_ns.push_back(before_ns);
    }
    if (near_ns.size() > usual_ns.size()) usual_ns = std::move(near_ns);
  }
  if (usual_ns.empty()) return 0;
  const auto median = usual_ns.begin() + static_cast<int64_t>(usual_ns.size() / 2);
  std::ranges::nth_element(usual_ns, median);
  return *median;
}

bool AwaitCoreDistance(double core_ns, std::chrono::duration<double>& left) {
  if (core_ns == 0) return true;
  const auto start = Clock::now();
  bool are_there = IsSameCoreDistance(CoreRoundTripNs(), core_ns);
  while (!are_there && Clock::now() - start < left) {
    std::this_thread::sleep_for(kNap);
    are_there = IsSameCoreDistance(CoreRoundTripNs(), core_ns);
  }
  left -= std::min<std::chrono::duration<double>>(left, Clock::now() - start);
  return are_there;
}

}  // namespace minka
