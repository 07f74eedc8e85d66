#include "minka/plan/reshard_text.h"

#include <array>
#include <charconv>
#include <optional>
#include <vector>

#include "minka/base/status.h"

namespace minka {
namespace {

constexpr std::array kKinds = {ReshardKind::kAllReduce, ReshardKind::kReduceScatter,
                               ReshardKind::kAllGather, ReshardKind::kAllToAll,
                               ReshardKind::kSlice,     ReshardKind::kMakePartial};

bool HasDim(ReshardKind kind) {
  return kind != ReshardKind::kAllReduce && kind != ReshardKind::kMakePartial;
}

std::string AxesText(const AxisList& axes, const Mesh& mesh) {
  std::string text;
  for (int i = 0; i < axes.size(); ++i) {
    if (i > 0) text += '+';
    text += mesh.axis(axes[i]).name;
  }
  return text;
}

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::optional<int> ParseNumber(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

absl::StatusOr<AxisList> ParseAxes(std::string_view text, const Mesh& mesh) {
  AxisList axes;
  for (const std::string_view name : Split(text, '+')) {
    const int axis = mesh.FindAxis(name);
    if (axis < 0) return InvalidArgument("mesh {} has no axis '{}'", mesh.ToString(), name);
    if (axes.axes().contains(axis)) return InvalidArgument("axis {} is named twice", name);
    axes.PushMinor(axis);
  }
  return axes;
}

absl::Status CheckDim(const Sharding& before, int dim) {
  if (dim >= 0 && dim < static_cast<int>(before.dims.size())) return absl::OkStatus();
  return InvalidArgument("dimension {} does not exist, the value has {}", dim, before.dims.size());
}

// Takes `axes` from the minor end of `dim`.
absl::Status PopAxes(Sharding& sharding, int dim, const AxisList& axes, const ReshardStep& step,
                     const Mesh& mesh) {
  for (int i = axes.size() - 1; i >= 0; --i) {
    AxisList& list = sharding.dims[dim];
    if (list.empty() || list.minor() != axes[i]) {
      return InvalidArgument("{} of axis {}, which is not the minor axis of dimension {}",
                             ToString(step.kind), mesh.axis(axes[i]).name, dim);
    }
    list.PopMinor();
  }
  return absl::OkStatus();
}

void PushAxes(AxisList& dim, const AxisList& axes) {
  for (int i = 0; i < axes.size(); ++i) dim.PushMinor(axes[i]);
}

absl::Status RemovePartial(Sharding& sharding, const ReshardStep& step, const Mesh& mesh) {
  for (int i = 0; i < step.axes.size(); ++i) {
    if (!sharding.partial.contains(step.axes[i])) {
      return InvalidArgument("{} over axis {}, over which the value is not partial",
                             ToString(step.kind), mesh.axis(step.axes[i]).name);
    }
    sharding.partial.Remove(step.axes[i]);
  }
  return absl::OkStatus();
}

absl::Status CheckUnused(const Sharding& sharding, const ReshardStep& step, const Mesh& mesh) {
  for (int i = 0; i < step.axes.size(); ++i) {
    if (sharding.used_axes().contains(step.axes[i])) {
      return InvalidArgument("{} over axis {}, which the value uses already", ToString(step.kind),
                             mesh.axis(step.axes[i]).name);
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string ToString(const ReshardStep& step, const Mesh& mesh) {
  std::string text = fmt::format("{} {}", ToString(step.kind), AxesText(step.axes, mesh));
  if (HasDim(step.kind)) text += fmt::format(" dim {}", step.dim);
  if (step.kind == ReshardKind::kAllToAll) text += fmt::format(" to {}", step.to_dim);
  return text;
}

absl::StatusOr<ReshardStep> ParseReshardStep(std::string_view text, const Sharding& before,
                                             const Mesh& mesh) {
  const std::vector<std::string_view> words = Split(text, ' ');
  ReshardStep step;
  bool known = false;
  for (const ReshardKind kind : kKinds) {
    if (ToString(kind) != words[0]) continue;
    step.kind = kind;
    known = true;
  }
  if (!known) return InvalidArgument("'{}' is not a reshard step", text);
  const size_t num_words = step.kind == ReshardKind::kAllToAll ? 6 : HasDim(step.kind) ? 4 : 2;
  if (words.size() != num_words) {
    return InvalidArgument("'{}' is not of the form '{} AXES{}{}'", text, words[0],
                           num_words >= 4 ? " dim N" : "", num_words == 6 ? " to N" : "");
  }
  ASSIGN_OR_RETURN(step.axes, ParseAxes(words[1], mesh));
  for (size_t i = 2; i < num_words; i += 2) {
    const std::optional<int> number = ParseNumber(words[i + 1]);
    if (words[i] != (i == 2 ? "dim" : "to") || !number) {
      return InvalidArgument("'{}': '{} {}' is not a dimension", text, words[i], words[i + 1]);
    }
    (i == 2 ? step.dim : step.to_dim) = *number;
  }
  ASSIGN_OR_RETURN(step.result, ApplyStep(before, step, mesh));
  return step;
}

absl::StatusOr<Sharding> ApplyStep(const Sharding& before, const ReshardStep& step,
                                   const Mesh& mesh) {
  Sharding after = before;
  if (step.axes.empty()) return InvalidArgument("{} without an axis", ToString(step.kind));
  if (HasDim(step.kind)) RETURN_IF_ERROR(CheckDim(before, step.dim));
  switch (step.kind) {
    case ReshardKind::kAllReduce:
      RETURN_IF_ERROR(RemovePartial(after, step, mesh));
      break;
    case ReshardKind::kReduceScatter:
      RETURN_IF_ERROR(RemovePartial(after, step, mesh));
      PushAxes(after.dims[step.dim], step.axes);
      break;
    case ReshardKind::kAllGather:
      RETURN_IF_ERROR(PopAxes(after, step.dim, step.axes, step, mesh));
      break;
    case ReshardKind::kAllToAll:
      RETURN_IF_ERROR(CheckDim(before, step.to_dim));
      if (step.to_dim == step.dim) return InvalidArgument("all-to-all within one dimension");
      RETURN_IF_ERROR(PopAxes(after, step.dim, step.axes, step, mesh));
      PushAxes(after.dims[step.to_dim], step.axes);
      break;
    case ReshardKind::kSlice:
      RETURN_IF_ERROR(CheckUnused(before, step, mesh));
      PushAxes(after.dims[step.dim], step.axes);
      break;
    case ReshardKind::kMakePartial:
      RETURN_IF_ERROR(CheckUnused(before, step, mesh));
      after.partial = after.partial.Union(step.axes.axes());
      break;
  }
  return after;
}

}  // namespace minka
