// The programs of a pipeline stage, by what they do and when they run.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

namespace minka {

// In the order in which a step runs them.
enum class ProgramKind : uint8_t {
  kFront,           // once per step, before the first micro-batch
  kForward,         // for each micro-batch
  kBackward,        // for each micro-batch; what other stages wait for, where it is split
  kWeightGradient,  // for each micro-batch; the rest of the backward pass
  kApply,           // once per step, behind the last micro-batch
  kWhole,           // the whole step, where it is not cut
};

// "front", "forward", "backward", "weight-gradient", "apply", "whole".
std::string_view ProgramKindName(ProgramKind kind);

// One program of a stage. What runs once per step is cut into phases wherever stages wait for each
// other: a global norm is summed on each stage (phase 0), over all (1), and read by the update (2).
struct ProgramTask {
  ProgramKind kind = ProgramKind::kForward;
  int phase = 0;  // kFront, kApply
  auto operator<=>(const ProgramTask&) const = default;
};

// "forward", "apply 1".
std::string ToString(const ProgramTask& task);

// Does it run for each micro-batch?
inline bool IsPerMicroBatch(ProgramKind kind) {
  return kind != ProgramKind::kFront && kind != ProgramKind::kApply && kind != ProgramKind::kWhole;
}

}  // namespace minka
