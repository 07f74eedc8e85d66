#include "minka/program/task.h"

#include <fmt/format.h>

#include "minka/base/check.h"

namespace minka {

std::string_view ProgramKindName(ProgramKind kind) {
  switch (kind) {
    case ProgramKind::kFront:
      return "front";
    case ProgramKind::kForward:
      return "forward";
    case ProgramKind::kBackward:
      return "backward";
    case ProgramKind::kWeightGradient:
      return "weight-gradient";
    case ProgramKind::kApply:
      return "apply";
    case ProgramKind::kWhole:
      return "whole";
  }
  MINKA_CHECK(false);
}

std::string ToString(const ProgramTask& task) {
  const std::string_view name = ProgramKindName(task.kind);
  return task.phase > 0 ? fmt::format("{} {}", name, task.phase) : std::string(name);
}

}  // namespace minka
